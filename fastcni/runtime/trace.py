"""Pass the caller's trace context to plugins as environment variables (W3C Trace Context and Baggage)."""

import re
from dataclasses import dataclass

TRACEPARENT = r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})"
VARIABLES = ("TRACEPARENT", "TRACESTATE", "BAGGAGE")       # environment variables
MAX_HEADER_BYTES = 8192    # the minimum that Baggage 3.3.2 requires; tracestate is shorter
SAMPLED = 1


@dataclass(frozen=True, slots=True)
class Trace:
    """The trace context of a caller's span.

    traceparent: "00-<32 hex>-<16 hex>-<2 hex>". tracestate, baggage: the text of these headers, "" without the header.
    A span whose ids are zero is valid, but is not passed to plugins. Raises ValueError for malformed text.
    """

    traceparent: str
    tracestate: str = ""
    baggage: str = ""

    def __post_init__(self) -> None:
        found = re.fullmatch(TRACEPARENT, self.traceparent)
        if not found or found[1] == "ff":
            raise ValueError(f"traceparent: expected 00-<32 hex>-<16 hex>-<2 hex>, "
                             f"got {self.traceparent!r:.80}")
        for name, text in (("tracestate", self.tracestate), ("baggage", self.baggage)):
            if len(text) > MAX_HEADER_BYTES or not re.fullmatch(r"[\t -~]*", text):
                raise ValueError(f"{name}: expected at most {MAX_HEADER_BYTES} printable ASCII characters, "
                                 f"got {text!r:.80}")

    def variables(self) -> dict[str, str]:
        """Return the environment variables for a plugin. Only the trace flag "sampled" is passed on."""
        _, trace_id, span_id, flags = self.traceparent.split("-")
        if not trace_id.strip("0") or not span_id.strip("0"):
            return {}
        texts = f"00-{trace_id}-{span_id}-{int(flags, 16) & SAMPLED:02x}", self.tracestate, self.baggage
        return {name: text for name, text in zip(VARIABLES, texts, strict=True) if text}
