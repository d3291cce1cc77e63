"""The records of the runtime library: what is configured, who is attached, how."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class PluginConf:
    """One plugin's configuration.

    raw: the JSON bytes it was read from. values: the same, decoded; not to be changed.
    type, name, version: its `type`, `name` and `cniVersion`, the last two "" where absent.
    capabilities: what its `capabilities` object says, {"portMappings": True}.
    index: its place in the list, from 0; None for one that stands alone. file: where it was read, "" where from bytes.
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
    """A network: plugins to be called one after the other.

    version: the one that was selected from `cniVersion` and `cniVersions`, "" where neither is there.
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
    """Who is attached: one interface of one container.

    netns: path of the network namespace, "" where it is gone (DEL only).
    args: pairs for CNI_ARGS. capability_args: {"portMappings": [...]}, any JSON; a plugin gets those
    that it declares. cache_dir: used where the CNI object has none.
    """

    container_id: str
    netns: str
    ifname: str
    args: Sequence[tuple[str, str]] = ()
    capability_args: Mapping[str, Any] = field(default_factory=dict)
    cache_dir: str = ""


@dataclass(frozen=True, slots=True)
class Attachment:
    """An attachment that the cache remembers: what ADD was called with.

    config: the bytes of the list at that time, b"" where the file has none. netns: its path, as the file or else the
    result says, "" where neither does. host_links: names of the links that the result has on the host.
    """

    container_id: str
    network: str
    ifname: str
    config: bytes = b""
    netns: str = ""
    args: tuple[tuple[str, str], ...] = ()
    capability_args: Mapping[str, Any] = field(default_factory=dict)
    host_links: tuple[str, ...] = ()
