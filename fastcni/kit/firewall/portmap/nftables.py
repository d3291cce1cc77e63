"""Map ports by nftables. Each mapping is an element in the maps and sets of kit/firewall/portmap/nftables_rules.py.

The comments of elements name the host end of the pod's veth pair ("link: 12"). If the link of an element no longer
exists, another project's plugin has deleted the link without deleting the element, and another pod may get the port.
"""

from __future__ import annotations

from fastcni._netlink import Batch
from fastcni.kernel import nft, nft_elements, wire
from fastcni.kernel.nft_elements import concat
from fastcni.kit.call import names
from fastcni.kit.firewall import elements, rulesets
from fastcni.kit.firewall.port_mappings import PROTOCOLS
from fastcni.kit.firewall.portmap.nftables_rules import (
    CHAINS,
    FROM,
    FROM_ALL,
    HAIRPIN_PODS,
    HAIRPINS,
    HOSTIP_HOSTPORTS,
    HOSTIPS,
    HOSTPORTS,
    LOOKUPS,
    MAX_FROM_RULES,
    PODS,
    SETS,
    from_chain,
    set_up,
)
from fastcni.kit.firewall.table import FAMILY, TABLE
from fastcni.kit.links import find
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.firewall.elements import Found, Item, Store
    from fastcni.kit.firewall.port_mappings import Mapping
    from fastcni.kit.firewall.portmap.keys import Conf

    Place = tuple[str, bytes]           # (map, key)

LINK = "link: "
POD_KEY = 15                    # length in bytes of a key of hostport-pods
MAX_COUNTED = 0xFFFF            # the largest value in hostport-pods
REFERENCE_TABLE, REFERENCE_CHAINS = "cni_hostport", ("hostports", "hostip_hostports", "masquerading")


def stores() -> list[Store]:
    return [store()]


def store() -> Store:
    return elements.Store(FAMILY, TABLE, [*SETS, PODS], CHAINS, set_up, FROM)


# Adding -------------------------------------------------------------------------------------------

def add(req: Request, conf: Conf) -> None:
    """Map the ports. Raises CniError 11 if another attachment has one of the ports; the error names the attachment."""
    own, asked = req.hashes, claims(conf)

    def taken(present: list[Found]) -> None:
        for name, key, comment in present:
            if (name, key) in asked and not comment.startswith(own):
                if not is_dead(req, comment):
                    raise taken_by(asked[name, key], name, key, comment)
                req.warn(f"host port {asked[name, key]} is taken over from a pod whose link no longer exists "
                         f"({owner(comment)})")
                store().delete_attachment(req, elements.mark_of_comment(comment))
        if any(name == PODS for name, _, _ in present):
            store().delete(req, [])                     # an earlier ADD may have mapped other ports

    store().add(req, items(req, conf), taken, mark_with_link(req, conf))
    # Check for conflicts after adding this pod's elements: of two concurrent ADDs, the second to add its elements then
    # sees the first ADD's elements.
    add_host_ips(req, conf)
    asked = conflicts(req, conf)
    taken(store().present(req, [(*key, None) for key in asked]))


def restore(req: Request, conf: Conf) -> None:
    """Add the missing elements and rules."""
    if missing(req, conf):
        add(req, conf)


def mark_with_link(req: Request, conf: Conf) -> str:
    """Return the request's mark with the index of the host end of the pod's veth pair: "HASHES, link: 12, net: ..."

    The kernel deletes the host end with the pod's namespace, and gives its index to no other link. If prevResult names
    no host end, or several, the mark has no index.
    """
    mark, interfaces = names.mark(req), (conf.previous or {}).get("interfaces", ())
    index = find.host_end(req, [it["name"] for it in interfaces if it["name"] and not it.get("sandbox")])
    hashes, _, text = mark.partition(", ")
    return f"{hashes}, {LINK}{index}, {text}" if index else mark


def is_dead(req: Request, comment: str) -> bool:
    """Return whether an element's comment names a link that no longer exists."""
    _, _, text = comment.partition(", ")
    index = text.removeprefix(LINK).partition(",")[0] if text.startswith(LINK) else ""
    return index.isdecimal() and find.link(req.mode.route, index=int(index)) is None


def owner(comment: str) -> str:
    """Return the part of a comment that is for people."""
    _, _, text = comment.partition(", ")
    return text.partition(", ")[2] if text.startswith(LINK) else text


def taken_by(mapping: Mapping, name: str, key: bytes, comment: str) -> CniError:
    # The key's address may differ from the mapping's, see conflicts().
    host_ip = key.removesuffix(port_key(mapping.protocol, mapping.host_port))
    prefix = f"{addresses.ip_text(host_ip)} . " if host_ip else ""
    element = f"{{ {prefix}{mapping.protocol} . {mapping.host_port} }}"
    return CniError(errors.TRY_AGAIN_LATER, f"host port {mapping} is already mapped ({owner(comment)})",
                    "DEL of that pod frees the port, or GC if the pod no longer exists, or "
                    f"nft delete element inet {TABLE} {name} '{element}'")


# Elements -----------------------------------------------------------------------------------------

def items(req: Request, conf: Conf) -> list[Item]:
    """Return the elements of a request. The element of hostport-pods is the first."""
    own = PODS, pod_key(req)
    found: dict[Place, Any] = {own: b""}
    for length, (packed, prefix) in conf.pod.items():
        for mapping in conf.mappings_for(length):
            found[where(mapping, length)] = concat(packed, nft_elements.service(mapping.container_port))
            if conf.snat:
                found[HAIRPINS[length], packed + port_key(mapping.protocol, mapping.container_port)] = None
                found[HAIRPIN_PODS[length], packed] = FROM_ALL if conf.masq_all else from_chain(packed, prefix)
    found[own] = nft_elements.service(min(len(found), MAX_COUNTED))
    return [(*key, value) for key, value in found.items()]


def where(mapping: Mapping, length: int, host_ip: bytes | None = None) -> Place:
    """Return the (map, key) of a mapping in the family of this address length. host_ip: use this address instead of the
    mapping's; None: use the mapping's."""
    host_ip = mapping.host_ip if host_ip is None else host_ip
    return (HOSTIP_HOSTPORTS if host_ip else HOSTPORTS)[length], host_ip + port_key(mapping.protocol, mapping.host_port)


def port_key(protocol: str, port: int) -> bytes:
    """Return the key `meta l4proto . th dport`."""
    return concat(nft_elements.protocol(PROTOCOLS[protocol]), nft_elements.service(port))


def pod_key(req: Request) -> bytes:
    return nft_elements.ifname(names.digest(req.hashes, POD_KEY))


def claims(conf: Conf) -> dict[Place, Mapping]:
    """Return the Places, (map, key), that the mappings use."""
    return {where(mapping, length): mapping for length in conf.pod for mapping in conf.mappings_for(length)}


def conflicts(req: Request, conf: Conf) -> dict[Place, Mapping]:
    """Return the Places that conflict with the mappings: no other attachment may have these Places. As with bind(2), a
    mapping on all addresses conflicts with the same port on one address."""
    found = {}
    for length in conf.pod:
        mappings = conf.mappings_for(length)
        named = host_ips(req, length) if not all(mapping.host_ip for mapping in mappings) else ()
        for mapping in mappings:
            for host_ip in (b"",) if mapping.host_ip else named:
                found[where(mapping, length, host_ip)] = mapping
    return found


def host_ips(req: Request, length: int) -> list[bytes]:
    """Return the packed addresses in the set hostips: each was the hostIP of a mapping."""
    messages = store().dump(req.mode.firewall, HOSTIPS[length]) or ()   # None: another program has deleted the set
    return [key for payload in messages for key, _ in nft_elements.read_elements(payload)]


def add_host_ips(req: Request, conf: Conf) -> None:
    """Add the addresses that mappings name to the set hostips. DEL does not delete these elements, because their number
    is limited by the node's addresses."""
    named = dict.fromkeys((HOSTIPS[length], mapping.host_ip, None)
                          for length in conf.pod for mapping in conf.mappings_for(length) if mapping.host_ip)
    if named:
        store().add_shared(req, [*named])


# Reading and deleting -----------------------------------------------------------------------------

def delete(req: Request, conf: Conf) -> bool:
    """Delete the elements with the request's mark. Return whether any element existed."""
    delete_reference_rules(req)
    found = look_up_pod(req)
    if found is None:
        return False
    known = items(req, conf) if conf.maps_ports else []
    store().delete(req, known, nft_elements.read_service(nft_elements.read_value(found[0][1])))
    return True


def present(req: Request) -> bool:
    """Return whether the attachment has any mappings."""
    return look_up_pod(req) is not None


def look_up_pod(req: Request) -> list[tuple[int, bytes]] | None:
    """Read the attachment's element of hostport-pods. Return the kernel's messages, None if the element does not
    exist."""
    return wire.look_up(req.mode.firewall, nft_elements.get_element(Batch(), FAMILY, TABLE, PODS, pod_key(req)))


def delete_reference_rules(req: Request) -> None:
    """Delete the rules that the reference plugin's nftables backend added for this container."""
    for family in (nft.NFPROTO_IPV4, nft.NFPROTO_IPV6):
        if rulesets.has_table(req.mode, family, REFERENCE_TABLE):
            for chain in REFERENCE_CHAINS:
                rulesets.delete_rules(req.mode, family, REFERENCE_TABLE, chain,
                                      lambda comment: comment == req.container_id)


def missing(req: Request, conf: Conf) -> str:
    """For CHECK: return the first missing rule or element as text, or ""."""
    asked = claims(conf)
    for name, key, _ in store().missing(req, items(req, conf)):
        return f"host port {asked[name, key]} is not mapped" if (name, key) in asked else f"{name} lacks the pod"
    return "" if store().complete(req) else f"{LOOKUPS} has no rules, or its table is dormant"


def gc(req: Request) -> None:
    """Delete the elements of invalid attachments of this network, and unused chains."""
    store().gc(req)
    store().delete_unused_chains(req, MAX_FROM_RULES)


def status(req: Request) -> None:
    """For STATUS: raise CniError 50 if the kernel would reject the table that an ADD needs."""
    if refused := store().refusal(req.mode.firewall, [elements.chain_item(FROM_ALL)]):
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"port mappings by nftables are not possible: {refused}",
                       "the kernel lacks a part of nf_tables (nft_nat, nft_fib_inet, nft_masq, nft_ct), or this "
                       "process is not root; or use the backend iptables")
