"""What a backend makes once and keeps in the agent's folder, so that a restarted node has the same."""

from __future__ import annotations

import os
import re
import secrets
from contextlib import closing
from pathlib import Path

from fastcni.kernel import wire
from fastcni.kit.links import find

MAC = re.compile(r"([0-9a-f]{2}:){5}[0-9a-f]{2}")


def kept_mac(folder: str, name: str) -> str:
    """Return the MAC of the link `name`: the kept one, else that of the link if it is there, as flanneld has made it,
    else a random one. It is kept from now on. Raises OSError."""
    path = Path(folder, f"{name}.mac")
    try:
        text = path.read_text(encoding="ascii").strip()
    except (FileNotFoundError, ValueError):
        text = ""
    if not MAC.fullmatch(text):
        text = present_mac(name) or random_mac()
        write(path, f"{text}\n")
    return text


def present_mac(name: str) -> str:
    with closing(wire.open_socket()) as sock:
        link = find.link(sock, name)
    return link.mac if link else ""


def random_mac() -> str:
    """A random unicast MAC of the local kind (IEEE 802: bit 1 of the first byte set, bit 0 clear)."""
    first, *rest = secrets.token_bytes(6)
    return ":".join(f"{byte:02x}" for byte in (first & 0xFC | 2, *rest))


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file in one step: others see the former file or this one. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    with open(fd, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(fd)
    os.replace(new, path)
