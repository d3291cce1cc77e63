"""`python -m fastcni` is the fastcni command."""

from fastcni.cli import main

if __name__ == "__main__":
    main()
