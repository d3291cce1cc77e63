"""Where a thread waits for others: for an announcement of the kernel, for a program, for its turn.

A door that bounds how many of its threads work hears of it, and has another one work meanwhile.
"""

pause = resume = None           # functions of the door, without arguments; both or neither


class waiting:
    """`with waiting():` around what may take long and needs no processor."""

    __slots__ = ()

    def __enter__(self):
        if pause:
            pause()

    def __exit__(self, kind, error, trace):
        if resume:
            resume()
