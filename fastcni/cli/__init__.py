"""The fastcni command line."""


def main() -> None:
    """Run the command line and end the process with exit status 0 or 1."""

    import sys

    from fastcni.cli.entry_point import run

    sys.exit(run(sys.argv[1:]))
