"""The errors of a remote service that does not answer."""


class Away(Exception):
    """The service cannot be reached, or did not answer in time. The text says which and why. What was asked may have
    been done: asking again is safe."""


class Busy(Away):
    """The service has too much to do: it said so, or did not answer in time. Asking again soon may succeed."""
