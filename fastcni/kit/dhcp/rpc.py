"""Encode and decode calls to the dhcp daemon, which use Go's net/rpc over a unix stream, like the reference's plugin
and daemon.

The client sends HELLO, the daemon WELCOME. After this greeting, a call is a header and the arguments, and an answer is
a header and the result, all as gob. fastcni's plugin can call the reference's daemon, and the reference's plugin
fastcni's daemon. STATUS and COLLECT are fastcni's own methods: the reference's daemon answers that it has no such
method. This module handles only bytes, no sockets.
"""

from __future__ import annotations

from fastcni.kit.dhcp import gob
from fastcni.spec import address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

SOCKET_PATH = "/run/cni/dhcp.sock"
HELLO = b"CONNECT /_goRPC_ HTTP/1.0\n\n"
WELCOME = b"HTTP/1.0 200 Connected to Go RPC\n\n"
ALLOCATE, RELEASE, STATUS, COLLECT = "DHCP.Allocate", "DHCP.Release", "DHCP.Status", "DHCP.Collect"
NO_METHOD = "rpc: can't find "          # prefix of the error for an unknown method
NO_MORE_TRIES = "no more tries"         # the reference's error text if no DHCP server has answered


def struct(**fields: Any) -> tuple[str, tuple[tuple[str, Any], ...]]:
    return "struct", tuple(fields.items())


CALL_HEADER = struct(ServiceMethod=gob.STRING, Seq=gob.UINT)
ANSWER_HEADER = struct(ServiceMethod=gob.STRING, Seq=gob.UINT, Error=gob.STRING)
CMD_ARGS = struct(ContainerID=gob.STRING, Netns=gob.STRING, IfName=gob.STRING, Args=gob.STRING, Path=gob.STRING,
                  NetnsOverride=gob.STRING, StdinData=gob.BYTES)
NETWORK = struct(IP=gob.BYTES, Mask=gob.BYTES)
IP_CONFIG = struct(Interface=gob.INT, Address=NETWORK, Gateway=gob.BYTES)
ROUTE = struct(Dst=NETWORK, GW=gob.BYTES, MTU=gob.INT, AdvMSS=gob.INT, Priority=gob.INT, Table=gob.INT, Scope=gob.INT)
TEXTS = ("list", gob.STRING)
DNS = struct(Nameservers=TEXTS, Domain=gob.STRING, Search=TEXTS, Options=TEXTS)
RESULT = struct(CNIVersion=gob.STRING, IPs=("list", IP_CONFIG), Routes=("list", ROUTE), DNS=DNS)
EMPTY = struct()
COLLECTED = struct(Released=("list", struct(What=gob.STRING, Of=gob.STRING)))
ANSWERS = {ALLOCATE: RESULT, RELEASE: EMPTY, STATUS: EMPTY, COLLECT: COLLECTED}

# (member of a result, field of a message)
ROUTE_NUMBERS = (("mtu", "MTU"), ("advmss", "AdvMSS"), ("priority", "Priority"), ("table", "Table"),
                 ("scope", "Scope"))
DNS_MEMBERS = (("nameservers", "Nameservers"), ("domain", "Domain"), ("search", "Search"), ("options", "Options"))


def call(method: str, args: dict[str, Any]) -> bytes:
    """Return the bytes of a call, to be sent after the greeting."""
    encoder = gob.Encoder()
    return encoder.value(CALL_HEADER, {"ServiceMethod": method}) + encoder.value(CMD_ARGS, args)


def answer(encoder: gob.Encoder, header: dict[str, Any], result: dict[str, Any] | None, error: str = "") -> bytes:
    """Return the bytes of the answer to the call with this header. result: None for an error."""
    method = header.get("ServiceMethod", "")
    kind = EMPTY if result is None else ANSWERS.get(method, EMPTY)
    head = {"ServiceMethod": method, "Seq": header.get("Seq", 0), "Error": error}
    return encoder.value(ANSWER_HEADER, head) + encoder.value(kind, result or {})


def to_result(document: dict[str, Any]) -> dict[str, Any]:
    """Convert a result in the 1.1.0 shape to the fields of a message."""
    return {
        "IPs": [{"Address": to_network(ip["address"]),
                 "Gateway": address.read_ip(ip["gateway"]) if ip.get("gateway") else b""} for ip in document["ips"]],
        "Routes": [{"Dst": to_network(route["dst"]), "GW": address.read_ip(route["gw"]) if route.get("gw") else b"",
                    **{there: route[here] for here, there in ROUTE_NUMBERS if route.get(here)}}
                   for route in document.get("routes", ())],
        "DNS": {there: document["dns"][here] for here, there in DNS_MEMBERS if document.get("dns", {}).get(here)},
    }


def from_result(found: dict[str, Any]) -> dict[str, Any]:
    """Convert the fields of a message to a result in the 1.1.0 shape. Raises ValueError for invalid addresses."""
    document: dict[str, Any] = {"ips": []}
    for ip in found.get("IPs", ()):
        entry = {"address": from_network(ip.get("Address", {}))}
        if ip.get("Gateway"):
            entry["gateway"] = address.ip_text(short(ip["Gateway"]))
        document["ips"].append(entry)
    routes = [from_route(route) for route in found.get("Routes", ())]
    dns = {here: found["DNS"][there] for here, there in DNS_MEMBERS if found.get("DNS", {}).get(there)}
    return document | ({"routes": routes} if routes else {}) | ({"dns": dns} if dns else {})


def from_route(route: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {"dst": from_network(route.get("Dst", {}))}
    if route.get("GW"):
        found["gw"] = address.ip_text(short(route["GW"]))
    return found | {here: route[there] for here, there in ROUTE_NUMBERS if route.get(there)}


def to_network(text: str) -> dict[str, bytes]:
    packed, prefix = address.read_cidr(text)
    bits = 8 * len(packed)
    return {"IP": packed, "Mask": ((1 << bits) - (1 << bits - prefix)).to_bytes(len(packed), "big")}


def from_network(network: dict[str, bytes]) -> str:
    packed = short(network.get("IP", b""))
    mask = network.get("Mask", b"")
    if len(mask) != len(packed):
        raise ValueError(f"an address of {len(packed)} bytes with a mask of {len(mask)}")
    return address.cidr_text(packed, prefix_of(mask))


def prefix_of(mask: bytes) -> int:
    """Return the prefix length of a netmask. Raises ValueError if the ones are not contiguous."""
    bits = int.from_bytes(mask, "big")
    prefix = bits.bit_count()
    if bits != (1 << 8 * len(mask)) - (1 << 8 * len(mask) - prefix):
        raise ValueError(f"the netmask {address.ip_text(mask)} has holes")
    return prefix


def short(packed: bytes) -> bytes:
    """Return an address; convert an IPv4 address that Go has sent as 16 bytes to 4 bytes."""
    packed = packed[12:] if packed.startswith(address.MAPPED) else packed
    if len(packed) not in (4, 16):
        raise ValueError(f"an address of {len(packed)} bytes")
    return packed
