"""Encode a request to the server, and define the header of the messages between a caller and the server.

server/requests/protocol.py describes the messages.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping

HEAD = "=4sIII"                 # format of struct: magic, version, number of descriptors or status, length
MAGIC, VERSION = b"fcni", 2
NETNS = 1
DECLINED = 2


def request(plugin: str, env: Mapping[str, str], *, has_netns: bool = False) -> bytes:
    """Return the bytes of a request without its stdin. has_netns: the request carries the descriptor of CNI_NETNS."""
    texts = (plugin, *(f"{key}={value}" for key, value in env.items()))
    block = b"".join([text.encode("utf-8", "surrogateescape") + b"\0" for text in texts])
    numbers = VERSION, NETNS if has_netns else 0, len(block)
    return MAGIC + b"".join([number.to_bytes(4, sys.byteorder) for number in numbers]) + block
