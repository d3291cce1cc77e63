"""Announce routes by BIRD 2 (bird.network.cz): write a configuration file, and make BIRD read it.

The operator's configuration of BIRD includes this file, so BIRD reads the file also after its own restart.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING

from fastcni.agent.bgp.settings import BgpError
from fastcni.agent.files import write
from fastcni.kernel import waiting
from fastcni.kernel.sockets import streams

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastcni.agent.bgp.settings import Settings
    from fastcni.agent.contract import Prefix

ANSWER_S = 10.0
CHECK_S = float("inf")          # never check, because BIRD keeps its configuration
RECONFIGURED = ("0003", "0004", "0018")         # BIRD has read its file: done, in progress, undone (doc/reply_codes)
GREETINGS = ("0001", "0002")    # replies after which more lines follow: welcome, reading the configuration
CHANNELS = {4: "ipv4", 6: "ipv6"}


def text(settings: Settings, router_id: str, prefixes: Collection[Prefix]) -> str:
    """Return BIRD's configuration: `prefixes` as static routes, which BIRD announces to the peers of the same family.

    The routes are in separate tables of BIRD, which no protocol exports to the kernel. In the kernel, these blackhole
    routes would hide the routes of pods.
    """
    lines = ["# written by fastcni agent; changes are overwritten"]
    for family, channel in CHANNELS.items():
        routes = "".join(f"    route {it} blackhole;\n" for it in sorted(it for it in prefixes if it.version == family))
        lines += [f"{channel} table fastcni{family};", f"protocol static fastcni_static{family} {{\n"
                  f"    {channel} {{ table fastcni{family}; }};\n{routes}}}"]
    for number, peer in enumerate(settings.peers, 1):
        family = peer.address.version
        options = [f"router id {router_id};", f"local as {settings.asn};", f"neighbor {peer.address} as {peer.asn};"]
        options += [f'password "{peer.password}";'] if peer.password else []
        options += [f"multihop {peer.multihop};"] if peer.multihop else []
        options += [f"{CHANNELS[family]} {{ table fastcni{family}; import none; export all; next hop self; }};"]
        lines.append("\n    ".join([f"protocol bgp fastcni_peer{number} {{", *options]) + "\n}")
    return "\n".join(lines) + "\n"


def apply(settings: Settings, configuration: str) -> None:
    """Write the configuration file, and make BIRD read it. Raises BgpError, OSError."""
    write(Path(settings.config), configuration, 0o640)
    with contextlib.suppress(FileNotFoundError):        # BIRD without root reads the file by its group
        os.chown(settings.config, -1, os.stat(settings.socket).st_gid)
    configure(settings.socket)


def is_applied(settings: Settings) -> bool:
    """Return True: BIRD keeps the configuration, because it reads the file itself."""
    return True


def configure(path: str) -> None:
    """Make BIRD read its configuration again. path: BIRD's control socket. Raises BgpError."""
    try:
        with contextlib.closing(streams.Stream(path, ANSWER_S, waiting.PROGRAM)) as sock:
            sock.send_all(b"configure\n")
            text = b""
            while not (answer := last_line(text)) or answer[:4] in GREETINGS:
                if not (data := sock.receive()):
                    raise BgpError(f"{path}: BIRD has closed the connection")
                text += data
    except OSError as e:
        raise BgpError(f"{path}: {e.strerror or e}; does BIRD run, and does it include the agent's file?") from None
    if answer[:4] not in RECONFIGURED:
        raise BgpError(f"BIRD refuses its configuration: {answer[5:]}")


def last_line(text: bytes) -> str:
    """Return the last complete line of `text` that begins with a reply code and a blank. This line ends an answer of
    BIRD. Return "" without such a line."""
    lines = text.decode("utf-8", "replace").split("\n")[:-1]
    return next((line for line in reversed(lines) if line[:4].isdigit() and line[4:5] == " "), "")
