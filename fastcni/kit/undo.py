"""The way back of ADD and the going-on of DEL."""


class Undo:
    """`undo(fn, *args)` stands beside the step that it takes back; on an exception the steps run in reverse.

    The first error stays the error; what goes wrong on the way back is added to it as notes.
    """

    __slots__ = ("steps",)

    def __init__(self):
        self.steps = []

    def __call__(self, fn, *args):
        self.steps.append((fn, args))

    def __enter__(self):
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            return
        for fn, args in reversed(self.steps):
            try:
                fn(*args)
            except Exception as e:
                error.add_note(f"while undoing: {e}")


def every(*steps):
    """Run each (fn, *args), also after one has failed, then raise the first error with the others as notes."""
    first = None
    for fn, *args in steps:
        try:
            fn(*args)
        except Exception as e:
            if first is None:
                first = e
            else:
                first.add_note(f"and: {e}")
    if first is not None:
        raise first
