"""Find a pod's networks for DEL and GC if the file with the pod's list of networks is lost, damaged or incomplete.

libcni's cache files name the networks that an ADD has added completely; the name of a damaged file still shows its
network. These files may be lost, too. So a DEL without the list also deletes the networks that the pod's annotation and
the configuration name.
"""

from __future__ import annotations

from fastcni.kernel import uapi
from fastcni.kit.call.pod import Pod
from fastcni.kit.links import find
from fastcni.kit.networks.chosen import Asked, definitions_of, standing
from fastcni.kit.networks.chosen import networks_of as networks_of_add
from fastcni.kit.networks.network import Network, ifname_at
from fastcni.kit.networks.ready import exists
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.networks.keys import Keys
    from fastcni.kit.networks.state import Damaged, State

# Kinds of links that the kernel makes in each network namespace, such as tunl0
KERNELS_OWN = ("ipip", "sit", "gre", "gretap", "erspan", "vti", "ip6tnl", "ip6gre", "ip6gretap", "ip6erspan", "vti6")


def complete(req: Request, keys: Keys, kept: State, listed: list[Network], results: list[Network],
             damaged: list[Damaged], for_gc: bool) -> tuple[list[Network], list[tuple[Any, ...]]]:
    """Return (the pod's networks, steps). Run the steps after the DELs of these networks: a step raises CniError if the
    pod may have a further network.

    listed: the networks of the pod's list, [] without a list. results, damaged: libcni's other files of the container.
    for_gc: GC deletes the container, whose namespace no longer exists. Raises CniError 3 if a command other than DEL
    finds no file of the container, 5 if nothing names the networks.
    """
    if req.command != "DEL":
        if not (listed or results or damaged or exists(kept.path)):
            raise CniError(errors.UNKNOWN_CONTAINER, f"{kept.path} has no networks of the container",
                           "was the pod added with another cniDir?")
        doubts: list[tuple[Any, ...]] = [(reject, it, NO_RESULT) for it in damaged]
        return [*listed, *results], doubts if listed else [*doubts, (kept.reject_list,)]
    wanted, all_known = (listed, True) if listed else asked_for(req, keys, kept, bool(results or damaged))
    found, doubts = [*results], []
    for it in damaged:
        network = described(req, keys, wanted, it)
        if network:
            found.append(network)
        else:
            doubts.append((reject, it, NO_DEFINITION))
    if listed:
        return [*listed, *found], doubts
    known = {it.ifname for it in results} | {it.ifname for it in damaged}
    return ([*found, *(it for it in wanted if it.ifname not in known)],
            [*doubts, (look_for_rest, req, kept, all_known, for_gc)])


def asked_for(req: Request, keys: Keys, kept: State, known: bool) -> tuple[list[Network], bool]:
    """Return the networks that an ADD would add now, and whether the pod's annotation is known. If a network cannot be
    found, return only the networks that the configuration gives to each pod. known: libcni's files name some networks.
    Raises CniError 5."""
    try:
        definitions = definitions_of(req, keys)
        asked = Asked(req, definitions.objects)
        return networks_of_add(req, keys, asked, definitions), asked.known
    except CniError as e:
        if exists(kept.path) and not known:
            raise CniError(errors.IO_FAILURE, f"{kept.path} is damaged, and {e.msg}",
                           "the pod's networks are unknown; remove the file if they no longer exist") from None
        of_files = " and those with a file in results" if known else ""
        req.warn(f"multus: {kept.cni_dir} does not list the container's networks, and {e.msg}; only the networks "
                 f"that the configuration has{of_files} are deleted")
        networks = standing(req, keys, req.warn)
        for place, network in enumerate(networks):
            network.ifname = ifname_at(place, req.ifname)
        return networks, False


def described(req: Request, keys: Keys, wanted: list[Network], damaged: Damaged) -> Network | None:
    """Return the network of a damaged file, or None if no definition has the network's name. Search the definition in
    `wanted`, and then by definitions_of()."""
    for it in wanted:
        if (it.definition.name, it.ifname) == (damaged.network, damaged.ifname):
            return it
    args = dict(pair.partition("=")[::2] for pair in req.args.split(";"))
    try:
        definition = next((it.definition for it in wanted if it.definition.name == damaged.network), None) or (
            definitions_of(req, keys).by_name(args.get("K8S_POD_NAMESPACE", "") or "default", damaged.network))
    except CniError:            # the caller's error names the file
        return None
    return Network(definition, damaged.ifname) if definition.name == damaged.network else None


NO_RESULT = "the file has the result of the ADD, and DEL and ADD of the pod write it again"
NO_DEFINITION = ("no definition of this network is found; remove the file if the interface and its addresses no longer "
                 "exist")


def reject(damaged: Damaged, why: str) -> None:
    """Raise CniError 5 for a damaged file."""
    raise CniError(errors.IO_FAILURE, f"{damaged.path} is damaged", f"the pod has the interface {damaged.ifname} of "
                   f'network "{damaged.network}"; {why}')


def look_for_rest(req: Request, kept: State, all_known: bool, for_gc: bool) -> None:
    """Check, after the DELs of all known networks, whether the pod may have further networks. If the list is damaged,
    raise CniError 5 in two cases: the pod still has a link; or the pod has no namespace and its annotation is unknown.
    all_known: the annotation is known.

    A missing list is no error, because no list exists after a DEL or before an ADD; but warn if the pod still has links
    such as net1. GC does not know the annotation, so for GC only warn.
    """
    links = None if req.netns_gone() else [
        it.name for it in find.all_links(Pod(req).inside)
        if not it.flags & uapi.IFF_LOOPBACK and it.kind not in KERNELS_OWN]
    if not exists(kept.path):
        left = [name for name in links or () if name[:3] == "net" and name[3:].isdigit()]
        if left:
            req.warn(f"multus: {kept.path} is missing, and the pod still has {', '.join(left)} of unknown networks")
    elif links:
        raise CniError(errors.IO_FAILURE, f"{kept.path} is damaged", f"the pod still has {', '.join(links)} of "
                       "unknown networks; delete the interfaces and their addresses, then the file")
    elif for_gc:
        req.warn(f"multus: {kept.path} was damaged; networks of the container without a file in results may be left")
    elif links is None and not all_known:
        raise CniError(errors.IO_FAILURE, f"{kept.path} is damaged", "the pod's namespace and annotation are unknown, "
                       "so the pod may have had further networks; remove the file if they no longer exist")
