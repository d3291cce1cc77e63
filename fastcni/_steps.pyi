"""Record the steps and phases of a request: see _steps.pyx."""

Step = tuple[int, str, bytes]       # time by perf_counter_ns(), ">" sent or "<" received or "!" text, the bytes
Phase = tuple[int | str, int, int]  # kind, begin (perf_counter_ns()), duration in nanoseconds

MAX_PHASES: int

class Steps:
    entries: list[Step]
    left: int
    dropped: int
    def __init__(self, left: int) -> None: ...
    def __call__(self, way: str, data: bytes) -> None: ...

class PhaseTimes:
    entries: list[Phase]
    sums: dict[int | str, int]
    merged: dict[int | str, int]
    def note(self, what: int | str, started: int) -> None: ...
