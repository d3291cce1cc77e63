"""Read attachments from nftables: the marked elements of fastcni's own tables, and the rules of the reference
plugins."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from errno import ENOENT

from fastcni._netlink import Batch, attributes
from fastcni.agent.policy import flowtable
from fastcni.kernel import nft, nft_elements, nft_rules, wire
from fastcni.kernel.nft_elements import NFTA_SET_ELEM_DATA, read_ifname, read_service, split
from fastcni.kernel.uapi import IFNAMSIZ
from fastcni.kit.call import names
from fastcni.kit.call.conf import ETH_ALEN
from fastcni.kit.firewall import backends, rulesets, solicitations
from fastcni.kit.firewall.elements import Store
from fastcni.kit.firewall.forward.nftables_policies import LENGTHS as POLICY_LENGTHS
from fastcni.kit.firewall.forward.nftables_policies import SETS as POLICY_SETS
from fastcni.kit.firewall.masquerade import nftables as masquerade_nftables
from fastcni.kit.firewall.owners import Addresses
from fastcni.kit.firewall.portmap import nftables as portmap_nftables
from fastcni.kit.firewall.spoofcheck import mac
from fastcni.node.attachments.attachment import ELEMENT, FASTCNI, FLOWTABLE, GO, RULE, HostPort, Sighting
from fastcni.spec import address

PROTOCOLS = {6: "tcp", 17: "udp", 132: "sctp"}
MARK = re.compile(r"(?P<hashes>[0-9a-f]{16}-[0-9a-f]{16}), (?:link: (?P<link>\d+), )?"
                  r"net: (?P<network>.*?), if: (?P<ifname>[^ ,]*)(?:, id: (?P<id>.*))?$", re.DOTALL)
SPOOFCHECK = re.compile(r"macspoofchk-(?P<id>.+)-(?P<ifname>[^-]+)$")

Read = Callable[[bytes, bytes], "tuple[str, tuple[str, ...], tuple[HostPort, ...], tuple[str, ...]]"]


def own_stores(sock: wire.Socket) -> list[Store]:
    """Return the sets in fastcni's own tables, and fastcni's sets in other programs' tables whose chains drop by
    policy.
    """
    stores: dict[tuple[int, str, str], Store] = {}
    for store in backends.stores():
        stores.update({(store.family, store.table, name): store for name in store.sets})
    found = list(dict.fromkeys(stores.values()))
    found += [Addresses(family, table, POLICY_SETS, POLICY_LENGTHS[family]) for family, table in tables(sock)
              if family in POLICY_LENGTHS and has_set(sock, family, table, POLICY_SETS)]
    return found


def tables(sock: wire.Socket) -> list[tuple[int, str]]:
    """Return (family, name) of each nftables table. Raises NetlinkError."""
    replies = wire.dump(sock, nft.NFT_MSG_GETTABLE, nft.nfgenmsg(0), "list nftables tables")
    return [nft.read_table_name(payload) for _, payload in replies]


def chains_and_sets(sock: wire.Socket) -> set[str]:
    """Return the names of all chains and sets of nftables. Raises NetlinkError."""
    chains = wire.dump(sock, nft.NFT_MSG_GETCHAIN, nft.nfgenmsg(0), "list nftables chains")
    sets = wire.dump(sock, nft.NFT_MSG_GETSET, nft.nfgenmsg(0), "list nftables sets")
    return {nft.as_text(attributes(payload, 4).get(kind, b"")) for found, kind in (
        (chains, nft.NFTA_CHAIN_NAME), (sets, nft_elements.NFTA_SET_NAME)) for _, payload in found}


def has_set(sock: wire.Socket, family: int, table: str, begins: str) -> bool:
    return any(wire.look_up(sock, nft_elements.get_set(Batch(), family, table, begins + end)) is not None
               for end in ("4", "6"))


def read_elements(sock: wire.Socket, link_name: Callable[[int], str]) -> Iterator[Sighting]:
    """Yield a Sighting for each marked element of fastcni. link_name(index): returns the name of a link of the host; ""
    if the link no longer exists.

    Raises NetlinkError.
    """
    for store in own_stores(sock):
        for name in store.sets:
            place = f"nftables {nft.FAMILIES[store.family]} {store.table} {name}"
            for payload in store.dump(sock, name) or ():
                for key, raw in nft_elements.read_raw_elements(payload).items():
                    comment = nft_elements.raw_comment(raw)
                    if comment:
                        yield read_element(place, name, key, value_of(raw), comment, link_name)


def value_of(raw: bytes) -> bytes:
    """Return the value of a raw element; b"" if the element has no value, or if its value leads to a chain."""
    return attributes(attributes(raw).get(NFTA_SET_ELEM_DATA, b"")).get(nft.NFTA_DATA_VALUE, b"")


def read_element(place: str, name: str, key: bytes, value: bytes, comment: str,
                 link_name: Callable[[int], str]) -> Sighting:
    """Return the Sighting of one element, by its set, key, value and comment."""
    text, ips, ports, links = read_key(name, key, value)
    known = read_mark(comment)
    link = link_name(int(known["link"])) if known["link"] else ""
    more = tuple(each for each in (link,) if each and each not in links)
    return Sighting(ELEMENT, place, text, known["network"], known["id"], known["ifname"], bool(known["cut"]),
                    known["hashes"], ips, ports, links + more, author=FASTCNI, alive=bool(link))


def read_key(name: str, key: bytes, value: bytes) -> tuple[str, tuple[str, ...], tuple[HostPort, ...],
                                                          tuple[str, ...]]:
    """Return (text, addresses, host ports, links) of an element of the set `name`."""
    kind = name.rstrip("46")
    length = 16 if name.endswith("6") else 4
    if kind in ("hostports", "hostip-hostports"):
        packed, proto, service = split(key, length if kind == "hostip-hostports" else 0, 1, 2)
        host_ip = address.ip_text(packed) if packed else ""
        pod, pod_port = split(value, length, 2)
        to = address.ip_text(pod) if pod_port else ""
        port = HostPort(read_service(service), protocol(proto), host_ip, to, read_service(pod_port))
        return str(port), (to,) if to else (), (port,), ()
    if kind == "hairpins":
        pod, proto, service = split(key, length, 1, 2)
        to = address.ip_text(pod)
        return f"{to} {read_service(service)}/{protocol(proto)}", (to,), (), ()
    if kind in ("guarded", "allowed", "bound", "isolated"):
        link = read_ifname(key)
        if name in ("bound4", "bound6"):
            ip = address.ip_text(split(key, IFNAMSIZ, length)[1])
            return f"{link} {ip}", () if ip.startswith("fe80:") else (ip,), (), (link,)
        return f"{link} {split(key, IFNAMSIZ, ETH_ALEN)[1].hex(':')}".strip(), (), (), (link,)
    if name == solicitations.SOLICITED:
        ip = address.ip_text(split(key, IFNAMSIZ, 16)[1])
        return f"{ip} -> {value.hex(':')} on {read_ifname(key)}", () if ip.startswith("fe80:") else (ip,), (), ()
    if name == portmap_nftables.PODS:
        return f"{nft_elements.read_service(value)} elements", (), (), ()
    if len(key) == length:
        ip = address.ip_text(key)
        return ip, (ip,), (), ()
    return key.hex(), (), (), ()


def protocol(part: bytes) -> str:
    number = part[0]
    return PROTOCOLS.get(number, str(number))


def read_mark(comment: str) -> dict[str, str]:
    """Return the parts of a mark: hashes, link (a number), network, ifname, id; cut is "yes" if the id is incomplete.

    A mark consists of hashes and text for people. nftables keeps about 90 bytes of a mark, so a long id is cut off; the
    hashes are those of the complete id. All parts are "" if the comment is no mark.
    """
    found = MARK.match(comment)
    parts = {key: text or "" for key, text in found.groupdict().items()} if found else dict.fromkeys(
        ("hashes", "link", "network", "ifname", "id"), "")
    whole = names.hashes(parts["network"], parts["id"], parts["ifname"]) == parts["hashes"]
    return {**parts, "cut": "" if whole or not found else "yes"}


def read_rules(sock: wire.Socket) -> Iterator[Sighting]:
    """Yield a Sighting for each rule that nftables backends of the reference plugins have added. Raises
    NetlinkError."""
    inet, bridge = nft.NFPROTO_INET, nft.NFPROTO_BRIDGE
    for comment in comments(sock, inet, masquerade_nftables.REFERENCE_TABLE, masquerade_nftables.REFERENCE_CHAIN):
        known = read_mark(comment)
        yield Sighting(RULE, f"nftables inet {masquerade_nftables.REFERENCE_TABLE}", "masquerade", known["network"],
                       known["id"], known["ifname"], bool(known["cut"]), known["hashes"], author=GO)
    for family in (nft.NFPROTO_IPV4, nft.NFPROTO_IPV6):
        table = portmap_nftables.REFERENCE_TABLE
        for chain in portmap_nftables.REFERENCE_CHAINS:
            for comment in comments(sock, family, table, chain):
                yield Sighting(RULE, f"nftables {nft.FAMILIES[family]} {table} {chain}", "port mapping",
                               container_id=comment, author=GO)
    for comment in comments(sock, bridge, mac.REFERENCE_TABLE, mac.REFERENCE_CHAIN):
        if found := SPOOFCHECK.match(comment):
            yield Sighting(RULE, f"nftables bridge {mac.REFERENCE_TABLE} {mac.REFERENCE_CHAIN}",
                           "macspoofchk", container_id=found["id"], ifname=found["ifname"], author=GO)


def read_flowtable(sock: wire.Socket, existing: Collection[str]) -> Iterator[Sighting]:
    """Yield a Sighting for each link in the agent's flowtable that exists. existing: names of the host's links. The
    agent removes other links from the flowtable. Raises NetlinkError."""
    place = f"nftables inet {flowtable.FLOWTABLE} {flowtable.LINKS}"
    for name in sorted(flowtable.links_in_kernel(sock) or ()):
        if name in existing:
            yield Sighting(FLOWTABLE, place, name, links=(name,), author=FASTCNI)


def comments(sock: wire.Socket, family: int, table: str, chain: str) -> list[str]:
    """Return the comments of the rules in a chain, without empty comments; [] if the chain does not exist. Raises
    NetlinkError."""
    try:
        found = rulesets.rules_of(sock, family, table, chain)
    except wire.NetlinkError as e:
        if e.errno != ENOENT:
            raise
        return []
    return [comment for _, comment in map(nft_rules.read_rule, found) if comment]
