"""Run the command `fastcni`, for `python -m fastcni`."""

from fastcni.cli import main

if __name__ == "__main__":
    main()
