"""Define Network, a pod's attachment to a network, and Definition, the network's configuration, which all its pods
share."""

from __future__ import annotations

from fastcni.spec import config, errors, json
from fastcni.spec.config import Section, shown
from fastcni.spec.errors import CniError, NestedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.networks.selection import Selection

RUNS_NETWORKS = ("multus", "multus-shim")       # plugins that attach a pod to several networks; they cannot be nested
PASSTHRU = "passthru"           # Multus' plugin that does nothing; it begins the chain auxiliaryCNIChainName
# The key of CNI_ARGS that lists networks in the short form, and the keys that only concern the pod's first interface
OWN_ARG, FIRST_ONLY = "FASTCNI_NETWORKS", ("IP", "MAC", "GATEWAY")


class Definition:
    """A network's configuration.

    title     "mynet"; "namespace/name" for a network of the Kubernetes API or a network that a pod has selected
    document  the configuration of a plugin or a list of plugins, with name and cniVersion
    conf      the document as a configuration of the plugin chain
    stale     why fastcni uses a copy of the definition; "": the definition is no copy
    resource  the resource of the device that the network needs, see devices.py; "" for none
    """

    __slots__ = ("title", "document", "conf", "stale", "resource")

    def __init__(self, title: str, document: dict[str, Any], conf: Section) -> None:
        self.title, self.document, self.conf = title, document, conf
        self.stale = self.resource = ""

    @property
    def name(self) -> str:
        name: str = self.conf.values["name"]
        return name

    @property
    def raw(self) -> bytes:
        return json.write(self.document)


def define(document: Any, name: str, version: str, where: str, title: str = "") -> Definition:
    """Make a Definition of a decoded configuration. name, version: the name and cniVersion for a configuration without
    these keys. Raises CniError 7."""
    if not isinstance(document, dict):
        raise wrong(where, f"expected an object, got {shown(document)}")
    keys = Section(document, where)
    name, version = keys.text("name") or name, keys.text("cniVersion") or version
    config.check_network_name(name)
    document = {**document, "name": name, "cniVersion": version}
    is_list = not keys.has("type")
    plugins = [it for it in keys.items("plugins") if not (isinstance(it, dict) and it.get("type") == PASSTHRU)
               ] if is_list else [document]
    if not plugins:
        raise wrong(where, "neither `type` nor `plugins`")
    for index, plugin in enumerate(plugins):
        kind = Section(plugin).text("type") if isinstance(plugin, dict) else ""
        place = f"{where}.plugins[{index}]" if is_list else where
        if not kind:
            raise wrong(place, "missing 'type'")
        if kind in RUNS_NETWORKS:
            raise wrong(place, f"type {kind} inside itself")
    return Definition(title or name, document,
                      Section({"name": name, "cniVersion": version, "type": "chain", "plugins": plugins}))


def wrong(where: str, why: str) -> CniError:
    return errors.bad_config(f"failed to load netconf: {where}: {why}")


class Network:
    """A pod's attachment to a network. The attributes after `ifname` are as in Selection.

    given     keys that this request adds to the plugins' configuration: prevResult, cni.dev/valid-attachments
    cni_args  for DEL: CNI_ARGS of the ADD; None: use CNI_ARGS of the request
    container_id, netns
              the ADD's container id and namespace, from its cached result; "" without cached result
    standing  False if the pod's annotation names the network: a change of the annotation can then detach it
    """

    __slots__ = ("definition", "ifname", "capabilities", "gateways", "given", "cni_args", "container_id", "netns",
                 "standing")

    def __init__(self, definition: Definition, ifname: str, capabilities: dict[str, Any] | None = None,
                 gateways: list[bytes] | None = None) -> None:
        self.definition, self.ifname, self.gateways = definition, ifname, gateways
        self.capabilities = capabilities or {}
        self.given: dict[str, Any] = {}
        self.cni_args: str | None = None
        self.container_id = self.netns = ""
        self.standing = False

    @property
    def conf(self) -> Section:
        """Return the configuration of the plugin chain for this pod. Pods without capabilities share one configuration,
        and with it the cached keys that plugins have read."""
        shared = self.definition.conf
        if self.capabilities:
            return Section({**shared.values, "runtimeConfig": self.capabilities, **self.given})
        return Section({**shared.values, **self.given}, common=shared) if self.given else shared

    def request(self, req: Request, bin_dir: str, default_bin_dir: str) -> Request:
        """Return the request for the plugins of this network. bin_dir, default_bin_dir: Keys.bin_dir and BIN_DIR."""
        directories = [bin_dir, req.path] if bin_dir else [req.path, default_bin_dir]
        args = self.cni_args if self.cni_args is not None else own_args(req.args, self.ifname == req.ifname)
        return req.for_network("chain", self.conf, self.definition.name, self.ifname, args,
                               ":".join(filter(None, directories)))


def ifname_at(place: int, first: str) -> str:
    """Return the interface name of the network at index `place` of the pod's list: `first`, net1, net2 and so on."""
    return f"net{place}" if place else first


def select(definition: Definition, selection: Selection, ifname: str) -> Network:
    """Return the Network for a pod's selection. ifname: the interface name, unless the selection names an interface."""
    if selection.cni_args:
        definition = with_args(definition, selection.cni_args)
    return Network(definition, selection.ifname or ifname, selection.capabilities, selection.gateways)


def with_args(definition: Definition, cni_args: dict[str, Any]) -> Definition:
    """Return a copy of the definition, with `cni_args` added to `args.cni` of each plugin."""
    def merged(plugin: dict[str, Any]) -> dict[str, Any]:
        args = Section(plugin).section("args")
        return without(plugin, "args") | {"args": {**args.values, "cni": {**args.section("cni").values, **cni_args}}}

    return with_plugins(definition, merged)


def with_device(definition: Definition, device: str) -> Definition:
    """Return a copy of the definition, with the device's id in each plugin, under both keys that plugins read."""
    return with_plugins(definition, lambda plugin: without(plugin, "deviceid", "pcibusid") | {
        "deviceID": device, "pciBusID": device})


def with_plugins(definition: Definition, change: Callable[[dict[str, Any]], dict[str, Any]]) -> Definition:
    """Return a copy of the definition in which change(plugin) replaces each plugin."""
    document = definition.document
    if Section(document).has("type"):
        document = change(document)
    else:
        document = without(document, "plugins") | {
            "plugins": [change(plugin) for plugin in Section(document).items("plugins")]}
    found = define(document, definition.name, "", definition.title, definition.title)
    found.stale, found.resource = definition.stale, definition.resource
    return found


def without(document: dict[str, Any], *keys: str) -> dict[str, Any]:
    """Return the document without `keys`. As in Go, the case of the document's keys does not matter; `keys` are in
    lower case."""
    return {key: value for key, value in document.items() if key.lower() not in keys}


def own_args(args: str, first: bool) -> str:
    """Return CNI_ARGS for the plugins of a network. As in Multus, they contain IgnoreUnknown, so that plugins accept
    unknown names. first: whether this is the pod's first network."""
    pairs = [pair for pair in args.split(";") if pair]
    kept = [pair for pair in pairs if pair.partition("=")[0] not in ((OWN_ARG,) if first else (OWN_ARG, *FIRST_ONLY))]
    if any(pair.startswith("IgnoreUnknown=") for pair in kept):
        return ";".join(kept)
    return ";".join(["IgnoreUnknown=true", *kept])


class Failing:
    """A context manager, `with Failing(network, "add"):`. It replaces a plugin's error by a NetworkError, which has the
    same code and text and also names the network."""

    __slots__ = ("network", "doing")

    def __init__(self, network: Network, doing: str) -> None:
        self.network, self.doing = network, doing

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception | SystemExit):
            raise NetworkError(self.network, self.doing) from error


class NetworkError(NestedError):
    """The error of a request for one of the pod's networks. `__cause__` is the plugin's error."""

    def __init__(self, network: Network, doing: str) -> None:
        super().__init__("chain", 0, doing, False)
        self.definition, self.ifname = network.definition, network.ifname

    @property
    def prefix(self) -> str:
        stale = f"; its definition is the last seen one: {self.definition.stale}" if self.definition.stale else ""
        return f'network "{self.definition.title}" ({self.ifname}) failed ({self.doing}{stale}): '
