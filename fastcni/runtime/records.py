"""Define the records of the runtime library: configurations and attachments."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

LO_IFNAME = "lo"                # the interface that runtimes attach to each pod; lists show it only with an option


@dataclass(frozen=True, slots=True)
class PluginConf:
    """The configuration of one plugin.

    raw: the JSON bytes. values: the decoded JSON; do not change it.
    type, name, version: the keys `type`, `name` and `cniVersion`; name and version are "" if absent. capabilities: the
    key `capabilities`, such as {"portMappings": True}.
    index: the plugin's index in the list, None for a single plugin. file: the path of the file, "" if read from bytes.
    """

    raw: bytes
    values: Mapping[str, Any]
    type: str
    name: str = ""
    version: str = ""
    capabilities: Mapping[str, bool] = field(default_factory=dict)
    index: int | None = None
    file: str = ""


@dataclass(frozen=True, slots=True)
class NetworkList:
    """A network: a list of plugins that the runtime calls in order.

    version: selected from `cniVersion` and `cniVersions`, "" if both are absent.
    raw: the bytes of the list file, without the plugins of its directory.
    """

    name: str
    version: str
    plugins: tuple[PluginConf, ...]
    raw: bytes
    disable_check: bool = False
    disable_gc: bool = False
    only_inlined_plugins: bool = False


@dataclass(frozen=True, slots=True)
class RuntimeConf:
    """The container and the interface that a call of plugins concerns.

    netns: the path of the network namespace, "" if the namespace no longer exists (only for DEL).
    args: pairs for CNI_ARGS. capability_args: {"portMappings": [...]}, any JSON; a plugin gets the keys that its
    configuration declares. cache_dir: the directory of the result cache if the CNI object has no cache_dir.
    """

    container_id: str
    netns: str
    ifname: str
    args: Sequence[tuple[str, str]] = ()
    capability_args: Mapping[str, Any] = field(default_factory=dict)
    cache_dir: str = ""


def kubernetes_name(args: Iterable[tuple[str, str]]) -> str:
    """Return "NAMESPACE/NAME" of the pod that CNI_ARGS name, "" without a name."""
    found = dict(args)
    name = found.get("K8S_POD_NAME")
    return f"{found.get('K8S_POD_NAMESPACE', '')}/{name}" if name else ""


@dataclass(frozen=True, slots=True)
class Attachment:
    """An attachment in the result cache, with the arguments of its ADD.

    config: the bytes of the configuration that ADD used, b"" if the cache file has none. netns: the namespace's path in
    the cache file, otherwise in the result; "" if neither has a path. host_links: names of the result's links on the
    host. since: when the cache file was written, in unix seconds; 0.0 if unknown.
    """

    container_id: str
    network: str
    ifname: str
    config: bytes = b""
    netns: str = ""
    args: tuple[tuple[str, str], ...] = ()
    capability_args: Mapping[str, Any] = field(default_factory=dict)
    host_links: tuple[str, ...] = ()
    since: float = field(default=0.0, compare=False)

    def runtime_conf(self, netns: str | None = None) -> RuntimeConf:
        """Return the arguments of the ADD. netns: a path that replaces the path of the ADD; None: no other path."""
        return RuntimeConf(self.container_id, self.netns if netns is None else netns, self.ifname, self.args,
                           self.capability_args)
