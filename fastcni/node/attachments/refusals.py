"""Find rules of the host's firewall that drop or reject a pod's forwarded packets.

This module follows the first packet of a TCP connection from the pod to an outside address through the chains at the
hook forward, but not the answers. A rule with other conditions (ports, marks, the outgoing link) may or may not match.
If such a rule may accept the packet earlier, or if such a rule drops packets of the pod's address or link, the name of
the dropping rule begins with "possibly".

drops.py finds the chains that drop by policy.
"""

from __future__ import annotations

import ipaddress
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from fastcni.agent.policy.evaluate import Connection
from fastcni.agent.policy.in_kernel import nft_read, nft_walk
from fastcni.agent.policy.in_kernel.decisions import NEW, network_header
from fastcni.agent.policy.rules import IPPROTO_TCP
from fastcni.kernel import nft, nft_rules, wire
from fastcni.kernel.uapi import IFNAMSIZ
from fastcni.kit.firewall.forward.iptables_chain import set_of
from fastcni.node.attachments.drops import filter_tables, matches

OUTSIDE = {4: ipaddress.ip_address("203.0.113.1").packed, 16: ipaddress.ip_address("2001:db8:ffff::1").packed}
ETHER_TYPES = {4: b"\x08\x00", 16: b"\x86\xdd"}
FAMILIES = {nft.NFPROTO_INET: (4, 16), nft.NFPROTO_IPV4: (4,), nft.NFPROTO_IPV6: (16,)}
REFUSING = ("DROP", "REJECT")
OWN = "fastcni"                 # the names of fastcni's own tables begin with this text


@dataclass(frozen=True, slots=True)
class Refusal:
    """A rule that drops or rejects packets that a pod sends.

    rule: for example "rule 7 of chain forward of nftables inet admin". show: the command that prints the rule. certain:
    whether no earlier rule may accept the pod's packets.
    """

    rule: str
    show: str
    certain: bool

    @property
    def name(self) -> str:
        return self.rule if self.certain else f"possibly {self.rule}"


# nftables -----------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class NftChain:
    """A base chain of nftables at the hook forward."""

    table: nft_read.Table
    name: str

    def refusal(self, ip: str, link: str) -> Refusal | None:
        """Return the rule that drops the packets that a pod with address `ip` sends by the host's link `link`; None if
        no rule does."""
        packed = ipaddress.ip_address(ip).packed
        if len(packed) not in FAMILIES[self.table.family]:
            return None
        found = nft_walk.refuses(self.table, self.name, packet(packed, link))
        if found is None:
            return None
        certain, chain, handle = found
        return Refusal(f"rule {handle} of chain {chain} of nftables {self.table}",
                       f"nft -a list chain {self.table} {chain}", certain)


def packet(packed: bytes, link: str) -> nft_walk.Packet:
    """Return the known fields of the first packet of a TCP connection. packed: its source address. link: the host's
    link on which it arrives."""
    length = len(packed)
    meta = {nft_rules.NFT_META_NFPROTO: bytes((nft_rules.NFPROTOS[length],)),
            nft_rules.NFT_META_L4PROTO: bytes((IPPROTO_TCP,)), nft_rules.NFT_META_PROTOCOL: ETHER_TYPES[length],
            nft_rules.NFT_META_IIFNAME: link.encode().ljust(IFNAMSIZ, b"\0")}
    header = network_header(Connection(packed, OUTSIDE[length], IPPROTO_TCP, 0))
    return nft_walk.Packet(meta, {nft_rules.NFT_PAYLOAD_NETWORK_HEADER: header},
                           {nft_rules.NFT_CT_STATE: NEW, nft_rules.NFT_CT_STATUS: bytes(4)})


def of_nftables(sock: wire.Socket) -> list[NftChain]:
    """Return the chains of other programs at the hook forward, except those of iptables. Raises NetlinkError."""
    bases = filter(None, (nft.read_base_chain(payload) for _, payload in wire.dump(
        sock, nft.NFT_MSG_GETCHAIN, nft.nfgenmsg(0), "list nftables chains")))
    found = [(family, table, name) for family, table, name, kind, hook, _ in bases
             if (kind, hook) == ("filter", nft.NF_INET_FORWARD) and family in FAMILIES and not table.startswith(OWN)
             and (family == nft.NFPROTO_INET or name != "FORWARD")]
    wanted = {(family, table) for family, table, _ in found}
    read = {(it.family, it.name): it for it in nft_read.read_tables(sock, lambda *key: key in wanted)} if wanted else {}
    return [NftChain(read[family, table], name) for family, table, name in found if (family, table) in read]


# iptables -----------------------------------------------------------------------------------------

@dataclass(frozen=True, slots=True)
class IptablesRule:
    """A rule that iptables-save prints. words: the rule's words without -A, chain, jump and target. jump: "-j" or
    "-g"."""

    line: str
    words: list[str]
    jump: str
    target: str

    def fits(self, ip: str, link: str, members: Collection[str]) -> tuple[bool | None, bool]:
        """Return (whether the rule matches the pod's packets, whether the rule has a condition on the pod's address or
        link). The first value is None if the rule may match."""
        at, certain, of_pod = 0, True, False
        while at < len(self.words):
            inverted = self.words[at] == "!"
            at += inverted
            option, value = self.words[at], self.words[at + 1] if at + 1 < len(self.words) else ""
            at += 2
            if option in ("-m", "--comment"):
                continue
            if option == "--match-set":         # for example fastcni-forward4 src
                ways, at = self.words[at] if at < len(self.words) else "", at + 1
                fit = ip in members if (value, ways) == (set_of(16 if ":" in ip else 4), "src") else None
            elif option == "-s":
                fit, of_pod = ipaddress.ip_address(ip) in ipaddress.ip_network(value, strict=False), True
            elif option == "-i":
                fit, of_pod = matches(value, link), True
            elif option == "--ctstate":
                fit = "NEW" in value.split(",")
            elif option == "-p":
                fit = value in ("tcp", "all")
            else:
                certain = False
                continue
            if fit is None:
                certain = False
            elif fit == inverted:
                return False, of_pod
        return (True if certain else None), of_pod


class IptablesForward:
    """The chain FORWARD in table filter of one kind of iptables, with the chains that FORWARD leads to. program: the
    kind's name, such as "iptables-nft"."""

    def __init__(self, program: str, table: list[str], members: Collection[str]) -> None:
        self.program, self.length, self.members = program, 16 if program.startswith("ip6") else 4, members
        self.chains: dict[str, list[IptablesRule]] = {line[1:].split()[0]: [] for line in table if line[:1] == ":"}
        for line in table:
            if line.startswith("-A "):
                self._read(line)

    def _read(self, line: str) -> None:
        try:
            words = shlex.split(line)
        except ValueError:
            return
        jump = next((each for each in ("-j", "-g") if each in words), "")
        at = words.index(jump) if jump else len(words)
        self.chains.setdefault(words[1], []).append(
            IptablesRule(line, words[2:at], jump, words[at + 1] if jump else ""))

    def refusal(self, ip: str, link: str) -> Refusal | None:
        """Return the rule that drops the packets that a pod with address `ip` sends by the host's link `link`; None if
        no rule does."""
        if (16 if ":" in ip else 4) != self.length:
            return None
        walk = IptablesWalk(self, ip, link)
        verdict = walk.run("FORWARD")
        rule = walk.last if verdict in REFUSING else next(iter(walk.possibly), None)
        if rule is None:
            return None
        return Refusal(f"rule `{rule.line}` of {self.program}", f"{self.program} -S {rule.line.split()[1]}",
                       verdict in REFUSING and not walk.unsure)


@dataclass
class IptablesWalk:
    """The path of one packet through the chains. last: the rule that decides. unsure: whether an earlier rule may have
    accepted the packet. possibly: rules with a condition on the pod that may drop the packet."""

    table: IptablesForward
    ip: str
    link: str
    last: IptablesRule | None = None
    unsure: bool = False
    possibly: list[IptablesRule] = field(default_factory=list)

    def run(self, chain: str) -> str:
        """Return the verdict of a chain: the target of the rule that ends the packet's path; "" at the chain's end."""
        for rule in self.table.chains.get(chain, ()):
            fits, of_pod = rule.fits(self.ip, self.link, self.table.members)
            ends, leads = rule.target in (*REFUSING, "ACCEPT", "RETURN"), rule.target in self.table.chains
            if fits is False or not (ends or leads):
                continue
            if fits is None:
                if rule.target not in REFUSING:
                    self.unsure = True
                elif of_pod:
                    self.possibly.append(rule)
            elif ends:
                self.last = rule
                return "" if rule.target == "RETURN" else rule.target
            elif (verdict := self.run(rule.target)) or rule.jump == "-g":
                return verdict
        return ""


def of_iptables(saved: Mapping[str, list[str]], members: Collection[str]) -> Iterator[IptablesForward]:
    """Yield the chain FORWARD of each table that filter_tables(saved) yields."""
    for program, table in filter_tables(saved):
        yield IptablesForward(program, table, members)
