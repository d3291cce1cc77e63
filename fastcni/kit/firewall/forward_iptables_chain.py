"""What iptables has in the chain CNI-FORWARD of table filter, seen without running a program where that can be.

iptables over nf_tables shows its rules over netlink, and the kernel announces each change of them. The legacy iptables
does not: there iptables-save is run, and what it printed holds as long as the kernel gives the same figures of the
table (kernel/xtables.py).
"""

from fastcni.kernel import ipset, nft, wire, xtables
from fastcni.kit.firewall import iptables
from fastcni.spec import address as addresses

TABLE, FORWARD = "filter", "CNI-FORWARD"
FAMILIES = {4: nft.NFPROTO_IPV4, 16: nft.NFPROTO_IPV6}          # by length of an address
TO, FROM = 0, ipset.IPSET_DIM_ONE_SRC                           # flags of a match set: its direction


def set_of(length):
    """The name of the ipset that has the pods of this family."""
    return f"fastcni-forward{'4' if length == 4 else '6'}"


def rules(packed):
    """The rules of an address, as iptables-save prints them."""
    text = addresses.cidr_text(packed, 8 * len(packed))
    return pair(f"-d {text}", f"-s {text}")


def set_rules(length):
    """The same of all addresses in the ipset."""
    return pair(*(f"-m set --match-set {set_of(length)} {way}" for way in ("dst", "src")))


def pair(to_pods, from_pods):
    return (f"-A {FORWARD} {to_pods} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            f"-A {FORWARD} {from_pods} -j ACCEPT")


def leads(lines, chain, target):
    return any(line.startswith(f"-A {chain} ") and iptables.target(line) == target for line in lines)


def jumps(admin_chain):
    """[(chain, the words of its comment, target)] that all pods share."""
    return (FORWARD, "admin overrides", admin_chain), ("FORWARD", "rules", FORWARD)


class Lines:
    """As iptables-save prints it."""

    __slots__ = ("lines",)

    def __init__(self, lines):
        self.lines = lines

    def leads(self, chain, target):
        return leads(self.lines, chain, target)

    def looks_into_set(self, length):
        return all(rule in self.lines for rule in set_rules(length))

    def may_have_rules_of(self, packed):
        return any(rule in self.lines for rule in rules(packed))


class Rules:
    """As the kernel tells it, payloads of NFT_MSG_NEWRULE. A rule is taken apart only where it has the bytes that are
    looked for: of the Go plugin's rules there may be thousands."""

    __slots__ = ("family", "req")

    def __init__(self, req, family):
        self.req, self.family = req, family

    def of(self, chain):
        """The rules of a chain; none without such a table."""
        return self.req.mode.recall(("nftables", TABLE, self.family, chain, "rules"), lambda: [
            payload for _, payload in wire.dump(self.req.mode.firewall, nft.NFT_MSG_GETRULE, nft.nfgenmsg(self.family),
                                                f"list rules of {TABLE} {chain}", nft.rules_of(TABLE, chain))])

    def leads(self, chain, target):
        name = target.encode() + b"\0"
        return any(name in payload and nft.read_jump(payload)[2] == target for payload in self.of(chain))

    def looks_into_set(self, length):
        # A set that a rule looks into keeps its name.
        ways = {ipset.read_match_flags(nft.read_match(payload, "set")) for payload in self.of(FORWARD)
                if b"set\0" in payload}
        return ways >= {TO, FROM}

    def may_have_rules_of(self, packed):
        return any(packed in payload for payload in self.of(FORWARD))


def look(req, length):
    """A Lines or Rules. Raises CniError, NetlinkError."""
    if not iptables.legacy(req, TABLE, length):
        return Rules(req, FAMILIES[length])
    # Both kinds may have such a table, and only the program knows which one it changes.
    known = req.mode.recall(("nftables", TABLE, FAMILIES[length], FORWARD, "lines"), dict)
    figures = xtables.get_info(length, TABLE)
    if known.get("figures") != figures:
        lines = iptables.read_if_there(req, iptables.PROGRAMS[length], TABLE)
        known.update(figures=figures, lines=Lines(lines))
    return known["lines"]


def ready(req, length, admin_chain):
    """Does iptables lead what is forwarded to the administrator's chain, and then to rules that look into the ipset?"""
    def ask():
        there = look(req, length)
        return (there.looks_into_set(length)
                and all(there.leads(chain, target) for chain, _, target in jumps(admin_chain))) or None

    if iptables.legacy(req, TABLE, length):
        return ask()
    return req.mode.recall(("nftables", TABLE, FAMILIES[length], FORWARD, "ready", admin_chain), ask)
