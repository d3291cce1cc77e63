#!/usr/bin/python3 -I
"""The command of the package fastcni."""

from fastcni.cli import main

main()
