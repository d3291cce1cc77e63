"""What would be sent to each plugin of a network, worked out without calling any."""

from dataclasses import dataclass
from typing import Any

from fastcni.runtime import CNI, CniError, NetworkList, RuntimeConf, inject
from fastcni.runtime.call import NOBODY, Call
from fastcni.spec import json


@dataclass(frozen=True, slots=True)
class Step:
    """One call: the plugin's type, where it was found ("" if nowhere), its CNI variables and its stdin."""

    type: str
    path: str
    env: dict[str, str]
    stdin: bytes

    def as_document(self) -> dict[str, Any]:
        return {"type": self.type, "path": self.path or None, "env": self.env, "stdin": json.read(self.stdin)}


def make_plan(cni: CNI, net: NetworkList, rt: RuntimeConf, command: str) -> list[Step]:
    """The calls of a command, in order.

    The prevResult of CHECK and DEL is the remembered one. In an ADD that of the second and later
    plugins is what the one before will answer, so it cannot be shown.
    """
    attached = command in ("ADD", "CHECK", "DEL")
    result = cni.cached_result(net, rt) if command in ("CHECK", "DEL") and rt.netns else None
    if command == "DEL" and net.version in ("", "0.1.0", "0.2.0", "0.3.0", "0.3.1"):
        result = None
    env = Call(command, rt if attached else NOBODY, None, ":".join(cni.plugin_dirs)).env()
    steps = []
    for plugin in reversed(net.plugins) if command == "DEL" else net.plugins:
        if attached:
            stdin = inject.for_attachment(net.name, net.version, plugin, rt, result)
        elif command == "GC":
            stdin = inject.for_gc(net.name, net.version, plugin, None)
        else:
            stdin = inject.for_status(net.name, net.version, plugin)
        try:
            path = cni.runner.find(plugin.type, cni.plugin_dirs)
        except CniError:
            path = ""
        steps.append(Step(plugin.type, path, env, stdin))
    return steps
