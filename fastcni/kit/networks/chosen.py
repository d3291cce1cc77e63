"""Choose a pod's networks: the configuration's own, and those that the pod's annotation names."""

from __future__ import annotations

from fastcni.kit.networks import definitions
from fastcni.kit.networks.network import OWN_ARG, Network, select
from fastcni.kit.networks.selection import DEFAULT_NETWORK, NETWORKS, read_networks
from fastcni.spec import errors
from fastcni.spec.config import Section, shown
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.networks.keys import Keys
    from fastcni.kit.networks.network import Definition
    from fastcni.kit.networks.selection import Selection

SHIM = "multus-shim"            # its daemon asks the Kubernetes API, without a kubeconfig
ANNOTATIONS = "io.kubernetes.cri.pod-annotations"       # the capability of containerd, CRI-O and fastcni's runtime


class Asked:
    """What a request says of its pod: namespace, and the texts of the two annotations, "" for none."""

    __slots__ = ("namespace", "networks", "default")

    def __init__(self, req: Request) -> None:
        args = dict(pair.partition("=")[::2] for pair in req.args.split(";"))
        self.namespace = args.get("K8S_POD_NAMESPACE", "") or "default"
        given = req.conf.section("runtimeConfig").raw(ANNOTATIONS, {})
        if not isinstance(given, dict):
            raise req.conf.wrong(f"runtimeConfig.{ANNOTATIONS}", f"expected an object, got {shown(given)}")
        if ANNOTATIONS not in req.conf.section("runtimeConfig").values and args.get("K8S_POD_NAME"):
            check_source(req)
        annotations = Section(given, "annotations")
        self.networks = annotations.text(NETWORKS) or args.get(OWN_ARG, "")
        self.default = annotations.text(DEFAULT_NETWORK)


def check_source(req: Request) -> None:
    """Raise CniError 7 for a configuration whose pods' annotations Multus would read from the Kubernetes API: without
    the annotations a pod would get only its first network."""
    if req.conf.text("kubeconfig") or req.plugin == SHIM:
        raise CniError(errors.INVALID_CONFIG, "the runtime has not passed the pod's annotations",
                       f'write "capabilities": {{"{ANNOTATIONS}": true}} into the configuration; fastcni does not read '
                       "pods from the Kubernetes API")


def networks_of(req: Request, keys: Keys) -> list[Network]:
    """The networks of a pod, the first one first. Raises CniError 7, before anything is added."""
    asked = Asked(req)
    found = first_networks(req, keys, asked)
    for selection in read_networks(asked.networks, asked.namespace):
        check_isolation(keys, selection, asked.namespace)
        definition = definitions.by_name(keys, selection.namespace, selection.name, req.version)
        found.append(select(definition, selection, len(found)))
    return found


def first_networks(req: Request, keys: Keys, asked: Asked) -> list[Network]:
    """The networks that the configuration gives to the pod."""
    found = standing_definitions(keys, req.version, asked.namespace not in keys.system_namespaces)
    if asked.default:
        selected = read_networks(asked.default, keys.namespace)
        if len(selected) != 1:
            raise CniError(errors.INVALID_CONFIG, f"pod annotation {DEFAULT_NETWORK}: expected one network, got "
                           f"{len(selected)}")
        found[:1] = [definitions.by_name(keys, selected[0].namespace, selected[0].name, req.version)]
    return [Network(definition, f"net{place}") if place else Network(definition, req.ifname, of_runtime(req))
            for place, definition in enumerate(found)]


def standing_definitions(keys: Keys, version: str, with_defaults: bool = True) -> list[Definition]:
    """The networks of each pod. with_defaults: also those of `defaultNetworks`. Raises CniError 7."""
    if not keys.cluster_network:
        return list(keys.delegates)
    names = [keys.cluster_network, *(keys.defaults if with_defaults else ())]
    return [definitions.of_cluster(keys, name, version) for name in names]


def standing(keys: Keys, version: str, warn: Callable[[str], object] | None = None) -> list[Network]:
    """The networks of each pod, for GC and STATUS. warn: called instead of raising. Raises CniError 50."""
    try:
        return [Network(it, "") for it in standing_definitions(keys, version)]
    except CniError as e:
        if warn is None:
            raise CniError(errors.PLUGIN_NOT_AVAILABLE, e.msg, e.details) from None
        warn(e.msg)
        return []


def of_runtime(req: Request) -> dict[str, Any]:
    """The capabilities that the runtime gives: they are about the pod's first network."""
    given = req.conf.section("runtimeConfig").values
    return {key: value for key, value in given.items() if key != ANNOTATIONS}


def check_isolation(keys: Keys, selection: Selection, namespace: str) -> None:
    """Raise CniError 7 if the pod may not use networks of that namespace."""
    if keys.isolation and selection.namespace != namespace and selection.namespace not in keys.shared:
        raise CniError(errors.INVALID_CONFIG, f'network "{selection.namespace}/{selection.name}" is not of the pod\'s '
                       f'namespace "{namespace}"', "namespaceIsolation is true; globalNamespaces lists the namespaces "
                       "whose networks all pods may use")
