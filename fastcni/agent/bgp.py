"""Announce this node's subnets, and its blocks of cluster-wide addresses, by BGP: BIRD 2 does it (bird.network.cz).

`fastcni agent --bgp FILE`, with

    {"as": 64512, "peers": [{"address": "192.0.2.254", "as": 64513}], "spaces": ["/var/lib/cni/networks/default"]}

as          this node's AS
peers       each with "address" and "as"; "password" for TCP-MD5, "multihop": hops to a router that is not a neighbour.
            IPv4 is announced to peers with an IPv4 address, IPv6 to those with an IPv6 one
spaces      folders of spaces of the IPAM type `cluster`, <dataDir>/<space>: their blocks are announced, too
router_id   an IPv4 address, by default the node's public one
config      the file that the agent writes; BIRD's own configuration, which needs a `protocol device`, includes it
            [/etc/bird/fastcni.conf]
socket      BIRD's control socket [/run/bird/bird.ctl]

The agent writes the file when what is announced changes, and tells BIRD to read its configuration again. BIRD goes on
announcing while the agent is restarted. A node that leaves (`--leave`) announces nothing any more.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from fastcni.agent.contract import ConfigurationError
from fastcni.agent.files import write
from fastcni.kernel import streams, waiting
from fastcni.kit.ipam.cluster.node_state import BLOCKS, State

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from fastcni.agent.contract import Address, Prefix
    from fastcni.server.log import Logger

CONFIG, SOCKET = "/etc/bird/fastcni.conf", "/run/bird/bird.ctl"
MAX_AS = (1 << 32) - 1
LOOK_S = 1.0                    # between two looks at the blocks of spaces
RETRY_S = 5.0                   # while BIRD is away
ANSWER_S = 10.0
RECONFIGURED = ("0003", "0004", "0018")         # done, in progress, undone: BIRD has read it (its doc/reply_codes)
GREETINGS = ("0001", "0002")    # welcome, reading the configuration: more lines follow
CHANNELS = {4: "ipv4", 6: "ipv6"}


class BirdError(Exception):
    """BIRD does not answer, or refuses the configuration. The text is BIRD's."""


@dataclass(frozen=True, slots=True)
class Peer:
    """A router. multihop: 0 for a neighbour."""

    address: Address
    asn: int
    password: str
    multihop: int


@dataclass(frozen=True, slots=True)
class Settings:
    """What the file of --bgp says."""

    asn: int
    peers: tuple[Peer, ...]
    spaces: tuple[str, ...]
    router_id: str
    config: str
    socket: str


def read_settings(path: str) -> Settings:
    """Raises ConfigurationError, which names the file and the key."""
    try:
        document = json.loads(Path(path).read_text(encoding="utf-8"))
        peers = tuple(Peer(ip_address(it["address"]), read_as(it["as"]), quotable(it.get("password", "")),
                           int(it.get("multihop", 0))) for it in document["peers"])
        return Settings(read_as(document["as"]), peers, tuple(document.get("spaces", ())),
                        str(ip_address(document["router_id"])) if "router_id" in document else "",
                        document.get("config", CONFIG), document.get("socket", SOCKET))
    except OSError as e:
        raise ConfigurationError(f"{path}: {e.strerror}") from None
    except KeyError as e:
        raise ConfigurationError(f"{path}: the key {e} is missing") from None
    except (ValueError, TypeError, AttributeError) as e:
        raise ConfigurationError(f"{path}: {e}") from None


def read_as(value: Any) -> int:
    if type(value) is not int or not 0 < value <= MAX_AS:
        raise ValueError(f"as: expected a number from 1 to {MAX_AS}, got {value!r}")
    return value


def quotable(text: str) -> str:
    """A text that BIRD can have in quotes. Raises ValueError."""
    if '"' in text or not text.isprintable():
        raise ValueError("password: BIRD takes no quotes and no control characters in it")
    return text


def config_text(settings: Settings, router_id: str, prefixes: Collection[Prefix]) -> str:
    """BIRD's configuration: the prefixes as static routes, which are announced to the peers of their family.

    They are in tables of their own, which no protocol exports to the kernel: there these routes would hide pods' own.
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


def blocks_of(folders: Sequence[str]) -> list[Prefix]:
    """The blocks of this node in spaces. A folder that is not there has none. Raises ValueError."""
    found = []
    for folder in folders:
        with contextlib.suppress(FileNotFoundError):
            document = json.loads(Path(folder, BLOCKS).read_text(encoding="utf-8"))
            found += [ip_network(cidr) for cidr in State(document).blocks]
    return found


def configure(path: str) -> None:
    """Have BIRD read its configuration again. Raises BirdError."""
    try:
        with contextlib.closing(streams.Stream(path, ANSWER_S, waiting.PROGRAM)) as sock:
            sock.send_all(b"configure\n")
            text = b""
            while not (answer := last_line(text)) or answer[:4] in GREETINGS:
                if not (data := sock.receive()):
                    raise BirdError(f"{path}: BIRD has closed the connection")
                text += data
    except OSError as e:
        raise BirdError(f"{path}: {e.strerror or e}; does BIRD run, and does it include the agent's file?") from None
    if answer[:4] not in RECONFIGURED:
        raise BirdError(f"BIRD refuses its configuration: {answer[5:]}")


def last_line(text: bytes) -> str:
    """The last complete line with a reply code and a blank, which ends an answer; "" without one."""
    lines = text.decode("utf-8", "replace").split("\n")[:-1]
    return next((line for line in reversed(lines) if line[:4].isdigit() and line[4:5] == " "), "")


class Bgp:
    """Keeps BIRD's configuration as it should be. due: when to call attend(), in monotonic seconds."""

    def __init__(self, settings: Settings, log: Logger) -> None:
        self.settings, self.log = settings, log
        self.router_id = settings.router_id
        self.subnets: list[Prefix] = []
        self.due = float("inf")
        self.told = ""                  # the text that BIRD has read
        self.problem = ""

    def set(self, subnets: Collection[Prefix], public: Address | None) -> None:
        """Announce these subnets from now on. Raises ConfigurationError without a router id, OSError."""
        if not self.router_id:
            if public is None:
                raise ConfigurationError("--bgp: the node has no public IPv4 address, so router_id is needed")
            self.router_id = str(public)
        self.subnets, self.due = list(subnets), 0.0
        self.attend()

    def attend(self) -> None:
        """Write the file if something has changed, and tell BIRD. Raises OSError."""
        now = monotonic()
        if now < self.due:
            return
        self.due = now + LOOK_S if self.settings.spaces else float("inf")
        try:
            prefixes = [*self.subnets, *blocks_of(self.settings.spaces)]
        except ValueError as e:         # cut by a power failure; the plugin repairs it
            self._tell_problem(f"blocks of a space: {e}")
            return
        text = config_text(self.settings, self.router_id, prefixes)
        if text == self.told:
            return
        write(Path(self.settings.config), text, 0o640)
        try:
            with contextlib.suppress(FileNotFoundError):        # BIRD has to read it, and may be no root
                os.chown(self.settings.config, -1, os.stat(self.settings.socket).st_gid)
            configure(self.settings.socket)
        except BirdError as e:
            self._tell_problem(str(e))
            self.due = now + RETRY_S
            return
        self.told, self.problem = text, ""
        self.log.info("announced", prefixes=" ".join(map(str, prefixes)))

    def _tell_problem(self, text):
        if text != self.problem:
            self.log.error("bgp_failed", error=text)
        self.problem = text
