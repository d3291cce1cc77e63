"""Record the steps of a request: see _steps.pyx."""

Step = tuple[int, str, bytes]       # time by perf_counter_ns(), ">" sent or "<" received or "!" text, the bytes

class Steps:
    entries: list[Step]
    left: int
    dropped: int
    def __init__(self, left: int) -> None: ...
    def __call__(self, way: str, data: bytes) -> None: ...
