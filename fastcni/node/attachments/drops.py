"""Find chains of the host's firewall that drop forwarded packets, and the pods whose packets these chains do not
accept.

A chain accepts a pod's packets if a rule of its table accepts the pod's address or link without another condition.
Rules with further conditions, for example marks, may accept some packets.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from fastcni._netlink import Batch
from fastcni.kernel import ipset, nft, wire
from fastcni.kit.firewall import rulesets
from fastcni.kit.firewall.forward import nftables_policies
from fastcni.kit.firewall.forward.iptables_chain import set_of
from fastcni.kit.firewall.iptables import behind
from fastcni.spec import address as addresses

ROUTED = ("bridge", "ptp", "ipvlan", "flannel")     # plugins whose pods need the host to forward their packets
FIREWALL = "firewall"


@dataclass(frozen=True, slots=True)
class Dropping:
    """A chain that drops the forwarded packets that no rule accepts.

    name: as in "chain FORWARD of iptables-nft". length: the length of the addresses that the chain filters, 4 or 16
    bytes. networks, links: the networks and links that its rules accept. payloads: the other rules as netlink payloads.
    of_iptables: whether the plugin firewall adds pods to this chain if the configuration has no key "backend".
    """

    name: str
    length: int
    networks: tuple[ipaddress.IPv4Network | ipaddress.IPv6Network, ...] = ()
    links: tuple[str, ...] = ()
    payloads: tuple[bytes, ...] = ()
    of_iptables: bool = True

    def lets_through(self, ip: str, links: Collection[str]) -> bool:
        """Return whether the chain accepts the packets that a pod sends. links: the pod's links on the host, and its
        bridge."""
        address = ipaddress.ip_address(ip)
        packed = address.packed
        return (len(packed) != self.length or any(address in network for network in self.networks)
                or any(matches(pattern, link) for pattern in self.links for link in links)
                or any(may_accept(payload, packed, links) for payload in self.payloads))


def matches(pattern: str, link: str) -> bool:
    """Return whether a link has the name in a rule of iptables, such as "cni0", or "cali+" for each name after cali."""
    return link.startswith(pattern[:-1]) if pattern.endswith("+") else link == pattern


def may_accept(payload: bytes, packed: bytes, links: Collection[str]) -> bool:
    """Return whether a rule of nftables names one of these links, or a network that contains this address."""
    length, number = len(packed), int.from_bytes(packed, "big")
    for prefix in range(8, 8 * length + 1):
        network = (number >> (8 * length - prefix) << (8 * length - prefix)).to_bytes(length, "big")
        sizes = {length, prefix // 8} if prefix % 8 == 0 else {length}          # for a /16, nft compares 2 bytes
        if any(attribute(network[:size]) in payload for size in sizes):
            return True
    return any(link.encode() + b"\0" in payload for link in links)


def attribute(value: bytes) -> bytes:
    """Encode NFTA_DATA_VALUE as struct nlattr, without padding."""
    return (4 + len(value)).to_bytes(2, nft.ORDER) + nft.NFTA_DATA_VALUE.to_bytes(2, nft.ORDER) + value


def of_iptables(saved: Mapping[str, list[str]], members: Collection[str]) -> Iterator[Dropping]:
    """Yield the chains FORWARD of iptables that drop. saved: see filter_tables(). members: the addresses in fastcni's
    ipsets."""
    for program, table in filter_tables(saved):
        length = 16 if program.startswith("ip6") else 4
        if not any(line.startswith(":FORWARD DROP") for line in table):
            continue
        accepted = [conditions for line in table if (conditions := accepts(line)) is not None]
        found = [it["-s"] for it in accepted if it.keys() == {"-s"}]
        if any(f"--match-set {set_of(length)} src -j ACCEPT" in line for line in table):
            found += [ip for ip in members if (":" in ip) == (length == 16)]
        yield Dropping(f"chain FORWARD of {program}", length,
                       tuple(ipaddress.ip_network(each, strict=False) for each in found),
                       tuple(it["-i"] for it in accepted if it.keys() == {"-i"}))


def filter_tables(saved: Mapping[str, list[str]]) -> Iterator[tuple[str, list[str]]]:
    """Yield the table filter of each iptables as (name, lines), such as ("iptables-nft", [":FORWARD DROP [0:0]"]).
    saved: {program: the lines that it printed}."""
    for program, lines in saved.items():
        if "*filter" in lines:
            table = lines[lines.index("*filter") + 1:]
            yield program.removesuffix("-save"), table[:table.index("COMMIT") if "COMMIT" in table else None]


def accepts(line: str) -> dict[str, str] | None:
    """Return {option: value} of a rule that accepts only by source (-s) or incoming link (-i). None for other rules."""
    if not line.startswith("-A ") or behind("-j", line) != "ACCEPT" or "!" in line:
        return None
    try:
        words = shlex.split(line)[2:-2]
    except ValueError:
        return None
    found = dict(zip(words[::2], words[1::2], strict=False))
    if found.get("-m") == "comment":
        del found["-m"]
    found.pop("--comment", None)
    return found if found.keys() <= {"-s", "-i"} and found else None


def of_nftables(sock: wire.Socket) -> Iterator[Dropping]:
    """Yield the chains of an administrator's nftables tables that drop forwarded packets. Raises NetlinkError."""
    for family, table, name in nftables_policies.dropping(sock):
        rules = tuple(rulesets.rules_of(sock, family, table))
        addresses_in = tuple(ipaddress.ip_network(addresses.ip_text(packed))
                             for _, packed, _ in nftables_policies.Chain(family, table, name).read_all(sock))
        for length in nftables_policies.LENGTHS[family]:
            yield Dropping(f"chain {name} of nftables {nft.FAMILIES[family]} {table}", length, addresses_in,
                           payloads=rules, of_iptables=False)


def members(sock: wire.Socket, ips: Iterable[str]) -> set[str]:
    """Return the addresses among `ips` that are in fastcni's ipsets."""
    found = set()
    for ip in ips:
        packed = ipaddress.ip_address(ip).packed
        _, refused = wire.attempt(sock, ipset.test(Batch(), set_of(len(packed)), packed))
        if not refused:
            found.add(ip)
    return found
