"""Define main(), the entry point of the program `fastcni`."""


def main() -> None:
    """Run the command line and end the process with exit status 0 or 1."""

    import sys

    try:
        from fastcni.cli.entry_point import run  # takes 0.1 s, in which Ctrl-C must print no traceback

        sys.exit(run(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit("Error: aborted")
