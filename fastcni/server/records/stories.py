"""Record the steps of a request: its input, each message to the kernel and the kernel's answers, the programs that it
ran, its rollback, and its answer.

    {"environment": {"CNI_ARGS": "..."}, "configuration": {...}, "error": {"code": 11, "msg": "..."}, "dropped": 0,
     "steps": [{"ms": 0.112, "kind": "sent", "data": "5c00000010000506..."},
               {"ms": 0.12, "kind": "received", "data": "4c00000002000000..."},
               {"ms": 1.9, "kind": "step", "text": "rollback"}]}

data: a netlink datagram in hexadecimal digits. ms: milliseconds since the request left the queue. dropped: number of
bytes beyond MAX_BYTES, which the story lacks.
"""

from __future__ import annotations

from typing import Any

from fastcni.daemon.log import to_utf8
from fastcni.server.records import secrets
from fastcni.spec import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni._steps import Step
    from fastcni.server.records.ended import Ended

MAX_BYTES = 32 << 10            # limit of the stored steps of one request, in bytes
MAX_INPUT = 16 << 10            # limit of a stored configuration or error document, in bytes
MAX_VALUE = 1024                # limit of a stored environment variable, in characters
KINDS = {">": "sent", "<": "received", "!": "step"}


class Story:
    """The input, the steps and the error of an ended request."""

    __slots__ = ("dropped", "env", "error", "stdin", "steps")

    def __init__(self, ended: Ended) -> None:
        message, steps = ended.call.message, ended.phases.steps
        self.env = {name: value[:MAX_VALUE] for name, value in message.env.items()}
        self.stdin, self.error = message.stdin[:MAX_INPUT + 1], ended.error[:MAX_INPUT]
        self.steps: list[Step] = steps.entries if steps else []
        self.dropped = steps.dropped if steps else 0

    def document(self, started: float) -> dict[str, Any]:
        """Return this story as JSON values. started: when the request left the queue, in monotonic seconds."""
        return {"environment": {name: to_utf8(shown(name, value)) for name, value in self.env.items()},
                "configuration": configuration(self.stdin), "error": read(self.error), "dropped": self.dropped,
                "steps": [step(at / 1e9 - started, way, data) for at, way, data in self.steps]}


def step(seconds: float, way: str, data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {"ms": round(seconds * 1e3, 3), "kind": KINDS[way]}
    return found | ({"text": data.decode("utf-8", "replace")} if way == "!" else {"data": data.hex()})


def configuration(stdin: bytes) -> Any:
    """Return the configuration without its secrets. If the configuration is too long or no JSON, return a text with
    its size, as "17 bytes that are no JSON"."""
    if len(stdin) > MAX_INPUT:
        return f"more than {MAX_INPUT} bytes"
    try:
        return secrets.hide(json.read(stdin))
    except json.JsonError:
        return f"{len(stdin)} bytes that are no JSON"


def shown(name: str, value: str) -> str:
    return secrets.hide_arguments(value) if name == "CNI_ARGS" else value


def read(error: str) -> Any:
    """Return an error document without secrets. If `error` is no JSON, return its text; if `error` is empty, return
    None."""
    try:
        return secrets.hide(json.read(error.encode("utf-8", "replace"))) if error else None
    except json.JsonError:
        return secrets.hide(error)
