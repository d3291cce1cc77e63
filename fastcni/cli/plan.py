"""Plan a command on a network: make what the command would send to each plugin, but call no plugin."""

from dataclasses import dataclass
from typing import Any

from fastcni.runtime import CNI, CniError, NetworkList, PluginConf, RuntimeConf, collect, inject
from fastcni.runtime.call import NO_CONTAINER, Call, to_pair
from fastcni.spec import json


@dataclass(frozen=True, slots=True)
class Step:
    """One planned call of a plugin: the plugin's type, its file ("" if not found), the CNI variables and the stdin.

    skipped: why the command would not call the plugin; "" if the command would call it.
    """

    type: str
    path: str
    env: dict[str, str]
    stdin: bytes
    skipped: str = ""

    def as_document(self) -> dict[str, Any]:
        return {"type": self.type, "path": self.path or None, "env": self.env, "stdin": json.read(self.stdin),
                "skipped": self.skipped}


def make_plan(cni: CNI, net: NetworkList, rt: RuntimeConf, command: str) -> list[Step]:
    """Return the plugin calls that a command would make, in order.

    The stdin of CHECK and DEL has the cached result as prevResult. The stdin of ADD has no prevResult, because the
    previous plugin's result is unknown. The stdin of GC has the attachments that `fastcni gc` would keep.
    """
    attached = command in ("ADD", "CHECK", "DEL")
    kept = [to_pair(it.attachment) for it in collect.make_plan(cni.attachments(), net.name).kept]
    result = cni.cached_result(net, rt) if command in ("CHECK", "DEL") and rt.netns else None
    if command == "DEL" and net.version in ("", "0.1.0", "0.2.0", "0.3.0", "0.3.1"):
        result = None
    env = Call(command, rt if attached else NO_CONTAINER, None, ":".join(cni.plugin_dirs)).env()
    steps = []
    for plugin in reversed(net.plugins) if command == "DEL" else net.plugins:
        if attached:
            stdin = inject.for_attachment(net.name, net.version, plugin, rt, result)
        elif command == "GC":
            stdin = inject.for_gc(net.name, net.version, plugin, kept, collect.report_key(cni, plugin))
        else:
            stdin = inject.for_status(net.name, net.version, plugin)
        try:
            path = cni.runner.find(plugin.type, cni.plugin_dirs)
        except CniError:
            path = ""
        steps.append(Step(plugin.type, path, env, stdin, why_skipped(cni, net, plugin, command)))
    return steps


def why_skipped(cni: CNI, net: NetworkList, plugin: PluginConf, command: str) -> str:
    """Return why a command would not call a plugin; "" if the command would call it."""

    if command == "CHECK" and net.disable_check:
        return "disableCheck is true"
    if command == "GC":
        return "disableGC is true" if net.disable_gc else collect.why_skipped(cni, net, plugin)
    if command == "STATUS" and not collect.at_least(net.version, "1.1.0"):
        return collect.below(net, command, "1.1.0")
    return ""
