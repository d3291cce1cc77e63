"""The records of the runtime library: configurations and attachments."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PluginConf:
    """One plugin's configuration.

    raw: the JSON bytes that it was read from. values: the same, decoded; do not change them.
    type, name, version: its `type`, `name` and `cniVersion`, the last two "" if absent.
    capabilities: its `capabilities` object, {"portMappings": True}.
    index: its place in the list, from 0; None for a single plugin. file: the path of its file, "" if read from bytes.
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
    """A network: plugins that are called in order.

    version: selected from `cniVersion` and `cniVersions`, "" if both are absent.
    raw: the bytes of the list file, without the plugins of its folder.
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
    """One interface of one container, for a call.

    netns: path of the network namespace, "" if it does not exist any more (DEL only).
    args: pairs for CNI_ARGS. capability_args: {"portMappings": [...]}, any JSON; a plugin gets those
    that it declares. cache_dir: used if the CNI object has none.
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
    """An attachment in the cache: the arguments of its ADD.

    config: the bytes of the list at that time, b"" if the file has none. netns: its path in the file or else in the
    result, "" if neither has one. host_links: names of the result's links on the host. since: when the file was
    written, in unix seconds; 0.0 if that is not known.
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
