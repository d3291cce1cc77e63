"""Define Call, which has the command and makes the environment of one plugin call."""

from dataclasses import dataclass
from typing import Protocol

from fastcni.runtime.records import RuntimeConf
from fastcni.runtime.trace import Trace

NO_CONTAINER = RuntimeConf("", "", "")      # for GC and STATUS, which concern no container


class Interface(Protocol):
    """Any record that has a container id and an interface name, such as RuntimeConf and Attachment."""

    @property
    def container_id(self) -> str: ...
    @property
    def ifname(self) -> str: ...


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a plugin. command: the CNI command, such as "ADD". rt: the container and interface of the call. path:
    the plugin directories joined with ":"."""

    command: str
    rt: RuntimeConf
    trace: Trace | None
    path: str

    def env(self) -> dict[str, str]:
        """Return the CNI variables and the trace variables of the call. CNI variables without a value are "", so that
        the plugin does not inherit the caller's value."""
        cni = {
            "CNI_COMMAND": self.command,
            "CNI_CONTAINERID": self.rt.container_id,
            "CNI_NETNS": self.rt.netns,
            "CNI_ARGS": ";".join(f"{key}={value}" for key, value in self.rt.args),
            "CNI_IFNAME": self.rt.ifname,
            "CNI_PATH": self.path,
        }
        return {**cni, **(self.trace.variables() if self.trace else {})}


def to_pair(attachment: tuple[str, str] | Interface) -> tuple[str, str]:
    """Return (container id, interface name) of `attachment`, which is such a pair or a record with both."""
    if isinstance(attachment, tuple):
        container_id, ifname = attachment
        return container_id, ifname
    return attachment.container_id, attachment.ifname
