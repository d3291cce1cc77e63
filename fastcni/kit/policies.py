"""Ask fastcni's agent to enforce a pod's network policies. Each request has its own connection."""

from __future__ import annotations

from errno import ETIMEDOUT

from fastcni.kernel import waiting
from fastcni.kernel.sockets import streams
from fastcni.spec import errors, json
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SOCKET = "/run/fastcni/agent/policy.sock"
TIMEOUT_S = 30.0                # limit for the agent's answer; a running agent answers sooner
HINT = "the agent is `fastcni agent --policies`; its log says what it waits for"


class NoAgent(CniError):
    """CniError 11: no agent listens at the socket, or the agent ended before it answered. why: the reason."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(errors.TRY_AGAIN_LATER, f"the policy agent at {path}: {why}", HINT)
        self.why = why


def admit() -> None:
    """Check, before the first step of an ADD, that the request may wait for the agent. Raises Crowded if too many
    requests are waiting."""
    waiting.admit(waiting.AGENT)


def ask(path: str, request: dict[str, Any]) -> dict[str, Any]:
    """Send `request` to the agent's socket at `path`, and return the answer. Raises NoAgent, CallerGone, and CniError
    11 or 999 with the agent's reason."""
    try:
        stream = streams.Stream(path, waiting.limit(TIMEOUT_S), waiting.AGENT)
        try:
            stream.send_all(json.write(request) + b"\n")
            data = b""
            while not data.endswith(b"\n"):
                some = stream.receive()
                if not some:
                    raise NoAgent(path, "the agent has closed the connection")
                data += some
        finally:
            stream.close()
    except OSError as e:
        if e.errno == ETIMEDOUT:
            raise CniError(errors.TRY_AGAIN_LATER, f"the policy agent at {path} does not answer", HINT) from None
        raise NoAgent(path, (e.strerror or str(e)).lower()) from None
    answer: dict[str, Any] = json.read(data)
    if "error" in answer:
        raise CniError(errors.TRY_AGAIN_LATER if answer.get("again") else errors.INTERNAL,
                       f"the policy agent: {answer['error']}", HINT)
    return answer
