"""One command to a plugin, as its environment says it."""

from dataclasses import dataclass
from typing import Protocol

from fastcni.runtime.records import RuntimeConf
from fastcni.runtime.trace import Trace

NOBODY = RuntimeConf("", "", "")        # GC and STATUS are about no container


class Interface(Protocol):
    """Anything that names an attachment: a RuntimeConf, an Attachment."""

    @property
    def container_id(self) -> str: ...
    @property
    def ifname(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Call:
    """command: "ADD" and so on. rt: for whom. path: the plugin directories joined with ":"."""

    command: str
    rt: RuntimeConf
    trace: Trace | None
    path: str

    def env(self) -> dict[str, str]:
        """All the CNI variables, also the empty ones, so that none of the caller's own leaks in."""
        cni = {
            "CNI_COMMAND": self.command,
            "CNI_CONTAINERID": self.rt.container_id,
            "CNI_NETNS": self.rt.netns,
            "CNI_ARGS": ";".join(f"{key}={value}" for key, value in self.rt.args),
            "CNI_IFNAME": self.rt.ifname,
            "CNI_PATH": self.path,
        }
        return {**cni, **(self.trace.variables() if self.trace else {})}


def to_pair(it: tuple[str, str] | Interface) -> tuple[str, str]:
    """(container id, interface name) of whatever names an attachment."""
    if isinstance(it, tuple):
        container_id, ifname = it
        return container_id, ifname
    return it.container_id, it.ifname
