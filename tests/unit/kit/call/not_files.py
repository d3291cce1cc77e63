"""Functions that put an object of another type (a FIFO, a socket, ...) in place of a regular file."""

import os
import socket
import stat

import pytest


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as sock:
        here = os.getcwd()
        os.chdir(os.path.dirname(path))         # a socket's path has at most 107 bytes
        try:
            sock.bind(os.path.basename(path))
        finally:
            os.chdir(here)


def make_device(path):
    if os.geteuid() != 0:
        pytest.skip("needs root: makes a device")
    try:
        os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3))
    except PermissionError:
        pytest.skip("needs CAP_MKNOD: makes a device")


KINDS = {"pipe": os.mkfifo, "directory": os.mkdir, "socket": make_socket, "device": make_device,
         "link": lambda path: os.symlink("/etc/hostname", path)}
