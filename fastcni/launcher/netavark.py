"""Run a one-shot request of netavark's plugin protocol, which spec/netavark.py converts to CNI."""

from __future__ import annotations

from fastcni import handle as cni
from fastcni.kit.call.request import Reply
from fastcni.spec import netavark
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from fastcni.kit.call.mode import Mode

    Write = Callable[[int, bytes], None]
    Handle = Callable[[str, Mapping[str, str], bytes, Mode], Reply]


def begin(env: dict[str, str], stdin: bytes, write: Write) -> tuple[dict[str, str], bytes, Handle, Write]:
    """Convert a request of netavark. Return (the variables of the CNI request, its stdin, the function to call instead
    of fastcni.handle.handle(), the function that writes the result of an ADD)."""
    def write_result(fd: int, data: bytes) -> None:
        write(fd, netavark.answer(0, data))

    try:
        if env["CNI_COMMAND"] == "CREATE":
            from fastcni.kit.podman import create

            document, warnings = create.complete(stdin)
            return env, stdin, lambda *_: cni.reply(0, document, warnings), write
        if env["CNI_COMMAND"] != "VERSION":
            env, stdin = netavark.as_cni(env, stdin)
    except CniError as e:
        refused = shown(cni.reply(1, cni.error_document(e), ()))
        return env, stdin, lambda *_: refused, write
    return env, stdin, handle, write_result


def handle(plugin: str, env: Mapping[str, str], stdin: bytes, mode: Mode) -> Reply:
    return shown(cni.handle(plugin, env, stdin, mode))


def shown(reply: Reply) -> Reply:
    return Reply(reply.status, netavark.answer(reply.status, reply.stdout), reply.stderr)
