"""Choose a pod's networks: those of the plugin's configuration, and those that the pod's annotation names."""

from __future__ import annotations

from fastcni.kit.networks.definitions import Definitions
from fastcni.kit.networks.network import OWN_ARG, Network, ifname_at, select, with_device
from fastcni.kit.networks.selection import DEFAULT_NETWORK, NETWORKS, read_networks
from fastcni.spec import errors
from fastcni.spec.config import Section, shown
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.networks.api_objects import ApiObjects, Pod
    from fastcni.kit.networks.keys import Keys
    from fastcni.kit.networks.network import Definition
    from fastcni.kit.networks.selection import Selection

SHIM = "multus-shim"            # type of Multus' shim, which needs no kubeconfig: Multus' daemon reads the API
ANNOTATIONS = "io.kubernetes.cri.pod-annotations"       # capability by which runtimes pass annotations
SOURCE = "kubernetes.io/config.source"          # annotation: "api", or another value for a static pod


class Asked:
    """The pod of a request, and the networks that the pod asks for.

    namespace, name     the pod's; "default" and "" if the runtime does not give them
    uid                 the pod's uid in the API, "" if it is unknown
    kubelet_uid         the uid that the kubelet uses: for a static pod it differs from `uid`
    networks, default   the texts of the annotations NETWORKS and DEFAULT_NETWORK, "" if absent
    by_args             whether `networks` comes from CNI_ARGS, not from an annotation
    known               whether the runtime, the API or CNI_ARGS has given the pod's annotations
    """

    __slots__ = ("namespace", "name", "uid", "kubelet_uid", "networks", "default", "by_args", "known")

    def __init__(self, req: Request, objects: ApiObjects | None) -> None:
        args = dict(pair.partition("=")[::2] for pair in req.args.split(";"))
        self.namespace, self.name = args.get("K8S_POD_NAMESPACE", "") or "default", args.get("K8S_POD_NAME", "")
        self.uid = self.kubelet_uid = args.get("K8S_POD_UID", "")
        annotations = Section(self._annotations(req, objects), "annotations")
        self.networks = annotations.text(NETWORKS) or args.get(OWN_ARG, "")
        self.by_args = not annotations.text(NETWORKS)
        self.known = (req.conf.section("runtimeConfig").has(ANNOTATIONS) or OWN_ARG in args
                      or bool(self.name and objects))
        self.default = annotations.text(DEFAULT_NETWORK)

    def _annotations(self, req: Request, objects: ApiObjects | None) -> dict[str, Any]:
        """Return the pod's annotations, from the request or otherwise from the Kubernetes API."""
        runtime = req.conf.section("runtimeConfig")
        if runtime.has(ANNOTATIONS):
            given = runtime.raw(ANNOTATIONS)
            if not isinstance(given, dict):
                raise req.conf.wrong(f"runtimeConfig.{ANNOTATIONS}", f"expected an object, got {shown(given)}")
            if given.get(SOURCE, "api") != "api":
                self.uid = ""
            return given
        if not self.name:
            return {}
        if objects:
            pod = pod_of(objects, self.namespace, self.name, self.uid, req.conf.text("kubeconfig"))
            self.uid = pod.uid
            return pod.annotations
        if req.plugin == SHIM:          # without an error, the pod would silently get only its first network
            raise errors.bad_config("the runtime has not passed the pod's annotations", HOW)
        return {}


HOW = f'write "capabilities": {{"{ANNOTATIONS}": true}} or "kubeconfig" into the configuration'


def pod_of(objects: ApiObjects, namespace: str, name: str, uid: str, kubeconfig: str) -> Pod:
    """Return a pod from the API. Raises CniError 11 if the pod does not exist, or has another uid."""
    from fastcni.clients.errors import Away

    try:
        pod = objects.pod(namespace, name, uid)
    except Away as e:
        raise CniError(errors.TRY_AGAIN_LATER, f"pod {namespace}/{name}: {e}",
                       f"which networks the pod has is unknown; kubeconfig {kubeconfig}") from None
    if pod is None:
        raise CniError(errors.TRY_AGAIN_LATER, f"the Kubernetes API has no pod {namespace}/{name}",
                       f"kubeconfig {kubeconfig}")
    if not pod.is_of(uid):
        raise CniError(errors.TRY_AGAIN_LATER, f'pod {namespace}/{name} has the uid "{pod.uid}" in the Kubernetes API, '
                       f'and "{uid}" in the request', "the pod was deleted, and another pod has its name")
    return pod


def objects_of(req: Request, keys: Keys) -> ApiObjects | None:
    """Return the Kubernetes API of the configuration's kubeconfig, None without a kubeconfig."""
    return req.mode.network_objects(*source_of(keys)) if keys.kubeconfig else None


def source_of(keys: Keys) -> tuple[Hashable, Callable[[], ApiObjects]]:
    """Return the arguments of Mode.network_objects()."""
    def open_objects() -> ApiObjects:
        from fastcni.kit.networks.api_objects import ApiObjects
        from fastcni.kit.networks.copies import Copies

        return ApiObjects(keys.kubeconfig, Copies(keys.cni_dir))

    return ("networks", keys.kubeconfig, keys.cni_dir), open_objects


def definitions_of(req: Request, keys: Keys) -> Definitions:
    return Definitions(keys, objects_of(req, keys), req.version, req.warn)


def networks_of(req: Request, keys: Keys, asked: Asked, known: Definitions) -> list[Network]:
    """Return the networks of a pod, in the order of ADD. Raises CniError 7 and 11."""
    found = first_networks(req, keys, asked, known)
    for selection in read_networks(asked.networks, asked.namespace):
        found.append(selected(keys, asked, known, selection, ifname_at(len(found), "")))
        found[-1].standing = asked.by_args
    give_devices(req, asked, found)
    if auxiliary := known.auxiliary():
        found.append(Network(auxiliary, ifname_at(len(found), "")))
        found[-1].standing = True
        found[-1].given = {"prevResult": {"cniVersion": auxiliary.conf.values["cniVersion"]}}
    return found


def selected(keys: Keys, asked: Asked, known: Definitions, selection: Selection, ifname: str) -> Network:
    """Return the network of a selection. ifname: the interface name, unless the selection names an interface. Raises
    CniError 7 and 11."""
    check_isolation(keys, selection, asked.namespace)
    return select(known.by_name(selection.namespace, selection.name), selection, ifname)


def give_devices(req: Request, asked: Asked, networks: list[Network], used: Iterable[str] = ()) -> None:
    """Assign one of the pod's devices to each network that needs a device, and write the device into the network's
    definition. used: devices that other networks of the pod have."""
    if not any(network.definition.resource for network in networks):
        return
    from fastcni.kit.networks import device_info
    from fastcni.kit.networks.devices import Devices

    devices = Devices(asked.namespace, asked.name, asked.kubelet_uid, req.warn, used)
    for network in networks:
        if network.definition.resource and (device := devices.take(network.definition.resource)):
            network.definition = with_device(network.definition, device)
            network.capabilities = {**network.capabilities, "deviceID": device,
                                    device_info.FILE: device_info.path_of(network, req.container_id)}


def first_networks(req: Request, keys: Keys, asked: Asked, known: Definitions) -> list[Network]:
    """Return the networks that the pod gets from the configuration. The annotation DEFAULT_NETWORK replaces the first
    network."""
    found = standing_definitions(keys, known, asked.namespace not in keys.system_namespaces)
    if asked.default:
        selected = read_networks(asked.default, keys.namespace)
        if len(selected) != 1:
            raise errors.bad_config(f"pod annotation {DEFAULT_NETWORK}: expected one network, got {len(selected)}")
        found[:1] = [known.by_name(selected[0].namespace, selected[0].name)]
    networks = [Network(definition, ifname_at(place, req.ifname), {} if place else of_runtime(req))
                for place, definition in enumerate(found)]
    for network in networks:
        network.standing = True
    return networks


def standing_definitions(keys: Keys, known: Definitions, with_defaults: bool = True) -> list[Definition]:
    """Return the definitions of the networks that each pod gets. with_defaults: include the networks of
    `defaultNetworks`. Raises CniError 7 and 11."""
    if not keys.cluster_network:
        return list(keys.delegates)
    return [known.of_cluster(name) for name in (keys.cluster_network, *(keys.defaults if with_defaults else ()))]


def standing(req: Request, keys: Keys, warn: Callable[[str], object] | None = None) -> list[Network]:
    """For GC and STATUS: return the networks that each pod gets. For a network that cannot be found, call warn(error).
    If `warn` is None, raise CniError 50."""
    try:
        return [Network(it, "") for it in standing_definitions(keys, definitions_of(req, keys))]
    except CniError as e:
        if warn is None:
            raise CniError(errors.PLUGIN_NOT_AVAILABLE, e.msg, e.details) from None
        warn(e.msg)
        return []


def of_runtime(req: Request) -> dict[str, Any]:
    """Return the runtimeConfig of the request, which is for the pod's first network only."""
    given = req.conf.section("runtimeConfig").values
    return {key: value for key, value in given.items() if key != ANNOTATIONS}


def check_isolation(keys: Keys, selection: Selection, namespace: str) -> None:
    """Raise CniError 7 if the pod may not use networks of that namespace."""
    if keys.isolation and selection.namespace != namespace and selection.namespace not in keys.shared:
        raise errors.bad_config(f'network "{selection.namespace}/{selection.name}" is not of the pod\'s namespace '
                                f'"{namespace}"', "namespaceIsolation is true; globalNamespaces lists the "
                                "namespaces whose networks all pods may use")
