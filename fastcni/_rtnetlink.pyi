"""Encode the headers of rtnetlink, and decode links: see _rtnetlink.pyx."""

class Link:
    name: str
    kind: str
    alias: str
    address: bytes
    data: bytes
    index: int
    flags: int
    mtu: int
    txqlen: int
    master: int
    peer: int
    operstate: int
    promiscuity: int
    default_pvid: int
    peer_elsewhere: bool
    hairpin: bool | None
    isolated: bool | None
    vlan_filtering: bool | None
    @property
    def up(self) -> bool: ...
    @property
    def mac(self) -> str: ...

def ifinfomsg(index: int = 0, flags: int = 0, change: int = 0, family: int = 0) -> bytes: ...
def ifaddrmsg(family: int, prefix: int, index: int, scope: int = 0, flags: int = 0) -> bytes: ...
def rtmsg(
    family: int, prefix: int = 0, *, table: int = 0, protocol: int = 0, scope: int = 0, kind: int = 0
) -> bytes: ...
def read_link(payload: bytes) -> Link: ...
def index_of(sock: int, name: str) -> int: ...
