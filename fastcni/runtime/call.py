"""Define Call, one call of a plugin: its command and environment."""

from dataclasses import dataclass
from typing import Protocol

from fastcni.runtime.records import RuntimeConf
from fastcni.runtime.trace import Trace

NO_CONTAINER = RuntimeConf("", "", "")      # used for GC and STATUS


class Interface(Protocol):
    """An object that names an attachment: a RuntimeConf, an Attachment."""

    @property
    def container_id(self) -> str: ...
    @property
    def ifname(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a plugin. command: "ADD" and so on. rt: the attachment. path: the plugin directories joined with
    ":"."""

    command: str
    rt: RuntimeConf
    trace: Trace | None
    path: str

    def env(self) -> dict[str, str]:
        """Return all CNI variables, also empty variables, so that the plugin inherits no CNI variable from the
        caller."""
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
    """Return (container id, interface name) of an object that names an attachment."""
    if isinstance(it, tuple):
        container_id, ifname = it
        return container_id, ifname
    return it.container_id, it.ifname
