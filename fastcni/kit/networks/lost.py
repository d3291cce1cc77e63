"""Find the networks of a pod whose list of networks is lost or damaged.

Libcni's files name the networks that an ADD has added completely, a damaged file by its own name. For a DEL, the pod's
annotation and the configuration name further networks: a file can be lost, too.
"""

from __future__ import annotations

from fastcni.kit.networks.chosen import Asked, definitions_of, standing
from fastcni.kit.networks.chosen import networks_of as networks_of_add
from fastcni.kit.networks.network import Network, ifname_at
from fastcni.kit.networks.ready import exists
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kit.call.request import Request
    from fastcni.kit.networks.keys import Keys
    from fastcni.kit.networks.state import Damaged, State


def networks_of(req: Request, keys: Keys, kept: State) -> tuple[list[Network], list[Damaged]]:
    """Return (the pod's networks, the damaged files whose networks nothing else describes). Raises CniError 3, and
    CniError 5 if nothing names the networks."""
    found, damaged = kept.kept_results()
    if req.command != "DEL":
        if not found and not damaged:
            raise CniError(errors.UNKNOWN_CONTAINER, f"{kept.path} has no networks of the container",
                           "was the pod added with another cniDir?")
        return found, damaged
    wanted, unknown = asked_for(req, keys, kept, bool(found or damaged)), []
    for it in damaged:
        network = described(req, keys, wanted, it)
        if network:
            found.append(network)
        else:
            unknown.append(it)
    known = {it.ifname for it in found} | {it.ifname for it in unknown}
    return [*found, *(it for it in wanted if it.ifname not in known)], unknown


def asked_for(req: Request, keys: Keys, kept: State, known: bool) -> list[Network]:
    """Return the networks that an ADD would add. If these cannot be found: the networks that the configuration has.
    known: libcni's files name some networks. Raises CniError 5."""
    try:
        definitions = definitions_of(req, keys)
        return networks_of_add(req, keys, Asked(req, definitions.objects), definitions)
    except CniError as e:
        if exists(kept.path) and not known:
            raise CniError(errors.IO_FAILURE, f"{kept.path} is damaged, and {e.msg}",
                           "nothing says which networks the pod has; remove the file if they no longer exist") from None
        of_files = " and those with a file in results" if known else ""
        req.warn(f"multus: {kept.cni_dir} does not list the container's networks, and {e.msg}; only the networks "
                 f"that the configuration has{of_files} are deleted")
        networks = standing(req, keys, req.warn)
        for place, network in enumerate(networks):
            network.ifname = ifname_at(place, req.ifname)
        return networks


def described(req: Request, keys: Keys, wanted: list[Network], damaged: Damaged) -> Network | None:
    """Return the network of a damaged file, as the networks `wanted` or a definition of its name describe the network;
    None if there is no such definition."""
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


def reject(damaged: Damaged) -> None:
    """Raise CniError 5 for a damaged file whose network is unknown."""
    raise CniError(errors.IO_FAILURE, f"{damaged.path} is damaged",
                   f'the pod has the interface {damaged.ifname} of network "{damaged.network}", and no definition of '
                   "this network is found; remove the file if the interface and its addresses no longer exist")
