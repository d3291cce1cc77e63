"""Define main(), the entry point of the program `fastcni`."""


def main() -> None:
    """Run the command line and end the process with exit status 0 or 1."""

    import sys

    open_closed_streams()
    try:
        from fastcni.cli.entry_point import run  # takes 0.1 s, in which Ctrl-C must print no traceback

        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("Error: aborted")


def open_closed_streams() -> None:
    """Open /dev/null in place of closed standard streams. Otherwise descriptor 2 would be the server's socket or lock
    file, and Python has no sys.stderr."""

    import os
    import sys

    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:      # open(2) returns the lowest free descriptor
        os.set_inheritable(fd, True)
    os.close(fd)
    for fd, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(fd, "w" if fd else "r", closefd=False))   # noqa: SIM115
