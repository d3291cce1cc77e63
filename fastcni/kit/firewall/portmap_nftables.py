"""Host ports by nftables: a fixed number of rules, and an element for each mapping, in the table of ipMasq.

    table inet fastcni {
        map hostports4 {                        (and hostports6)
            type inet_proto . inet_service : ipv4_addr . inet_service
            elements = { tcp . 8080 comment "8e48...-0b65..., net: a, if: eth0, id: c" : 10.22.0.5 . 80 }
        }
        map hostip-hostports4 { type ipv4_addr . inet_proto . inet_service : ipv4_addr . inet_service }         (and 6)
        set hostips4 { type ipv4_addr }         (and 6)
        set hairpins4 {                         (and 6)
            type ipv4_addr . inet_proto . inet_service
            elements = { 10.22.0.5 . tcp . 80 comment "..." }
        }
        map hairpin-pods4 {                     (and 6)
            type ipv4_addr : verdict
            elements = { 10.22.0.5 comment "..." : goto hostport-from-10.22.0.0/24 }
        }
        map hostport-pods {
            type ifname : inet_service
            elements = { "0b65a318f52e521" comment "..." : 3 }
        }
        chain hostport-prerouting {
            type nat hook prerouting priority dstnat + 1; policy accept;
            fib daddr type local jump hostports
        }
        chain hostport-output { type nat hook output priority -99; (the same) }
        chain hostports {
            ip6 daddr ::1 return
            dnat ip to ip daddr . meta l4proto . th dport map @hostip-hostports4
            dnat ip to meta l4proto . th dport map @hostports4
            dnat ip6 to (the same of IPv6, twice)
        }
        chain hostport-postrouting {
            type nat hook postrouting priority srcnat - 1; policy accept;
            ct status dnat ip daddr . meta l4proto . th dport @hairpins4 ip daddr vmap @hairpin-pods4
            ct status dnat ip6 daddr . meta l4proto . th dport @hairpins6 ip6 daddr vmap @hairpin-pods6
        }
        chain hostport-from-10.22.0.0/24 {
            ip saddr 10.22.0.0/24 masquerade
            ip saddr 127.0.0.0/8 masquerade
        }
        chain hostport-from-all { masquerade }
    }

The comments name the host's end of the pod's veth pair ("link: 12"): another pod may have the port of one whose link
is gone, deleted by a plugin that does not know this table.

Only what is sent to an address of the node is looked up (CVE-2025-67499), and behind the rules of others, which go
first (CVE-2019-9946). hostips has the addresses that mappings have named, so that a mapping of every address need not
look through all others. hostport-pods says of each attachment how many elements it has in all, so that DEL of one with
none ends with one look, and DEL knows whether the mappings that it is told are all. hairpin-pods has one element for
all ports of a pod: the kernel looks through all that lead to chains whenever it is given one.
"""

from fastcni._netlink import Batch
from fastcni.kernel import nft, nft_keys, uapi, wire
from fastcni.kit.call import names
from fastcni.kit.firewall import elements
from fastcni.kit.firewall.port_mappings import PROTOCOLS
from fastcni.kit.firewall.table import COMMENT, FAMILIES, FAMILY, TABLE
from fastcni.kit.links import find
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

HOSTPORTS, HOSTIP_HOSTPORTS, HOSTIPS, HAIRPINS, HAIRPIN_PODS = (
    {4: f"{name}4", 16: f"{name}6"}
    for name in ("hostports", "hostip-hostports", "hostips", "hairpins", "hairpin-pods"))
LINK = "link: "
PODS, POD_KEY = "hostport-pods", 16             # keys of IFNAMSIZ bytes, which nft prints as text
MOST_COUNTED = 0xFFFF                           # and values of nft's inet_service, which it prints as a number
LOOKUPS, POSTROUTING = "hostports", "hostport-postrouting"
HOOKS = {"hostport-prerouting": nft.NF_INET_PRE_ROUTING, "hostport-output": nft.NF_INET_LOCAL_OUT}
FROM, FROM_ALL, MOST_FROM_RULES = "hostport-from-", "hostport-from-all", 2
PORT_TYPES, PORT_SIZE = (nft.TYPE_INET_PROTOCOL, nft.TYPE_INET_SERVICE), 8
LOCALHOST = {4: (b"\x7f\0\0\0", 8), 16: (bytes(15) + b"\x01", 128)}
CHAINS = {LOOKUPS: 1 + 2 * len(FAMILIES) + len(HOOKS), POSTROUTING: len(FAMILIES)}
REFERENCE_TABLE, REFERENCE_CHAINS = "cni_hostport", ("hostports", "hostip_hostports", "masquerading")


def stores():
    return [store()]


def store():
    sets = [name for kind in (HOSTPORTS, HOSTIP_HOSTPORTS, HAIRPINS, HAIRPIN_PODS, HOSTIPS)
            for name in kind.values()]
    return elements.Store(FAMILY, TABLE, [*sets, PODS], CHAINS, set_up, FROM)


def add(req, conf):
    """Map the ports. Raises CniError 11, which names the owner, where another attachment has one of them."""
    own, asked = names.hashes(req.name, req.container_id, req.ifname), claims(conf)

    def taken(present):
        for name, key, comment in present:
            if (name, key) in asked and not comment.startswith(own):
                if not is_dead(req, comment):
                    raise taken_by(asked[name, key], name, key, comment)
                req.warn(f"host port {asked[name, key]} is taken over from a pod whose link is gone ({owner(comment)})")
                store().remove_all_of(req, elements.mark_of_comment(comment))
        if any(name == PODS for name, _, _ in present):
            store().delete(req, [])                     # an ADD before, perhaps of other ports

    store().add(req, items(req, conf), taken, mark_with_link(req, conf))
    # Now that ours are there: of two that come at once at least one sees the other's.
    add_host_ips(req, conf)
    asked = shadows(req, conf)
    taken(store().present(req, [(*key, None) for key in asked]))


def mark_with_link(req, conf):
    """The request's mark, with the index of the host's end of the pod's veth pair: "HASHES, link: 12, net: ..."

    The end is gone when the pod or its namespace is, and the kernel gives its index to no other link. Where the result
    names no such end, or more than one, the mark has none.
    """
    mark, interfaces = names.mark(req), conf.previous.get("interfaces", ())
    index = find.host_end(req, [it["name"] for it in interfaces if it["name"] and not it.get("sandbox")])
    hashes, _, words = mark.partition(", ")
    return f"{hashes}, {LINK}{index}, {words}" if index else mark


def is_dead(req, comment):
    """Is the link gone that the comment of an element names? If it names none, the pod counts as alive."""
    _, _, words = comment.partition(", ")
    index = words.removeprefix(LINK).partition(",")[0] if words.startswith(LINK) else ""
    return index.isdecimal() and find.link(req.mode.route, index=int(index)) is None


def owner(comment):
    """The readable part of the comment."""
    _, _, words = comment.partition(", ")
    return words.partition(", ")[2] if words.startswith(LINK) else words


def restore(req, conf):
    """As add(), where something is missing."""
    if missing(req, conf):
        add(req, conf)


def taken_by(mapping, name, key, comment):
    host_ip = f"{addresses.ip_text(key[:-PORT_SIZE])} . " if len(key) > PORT_SIZE else ""
    element = f"{{ {host_ip}{mapping.protocol} . {mapping.host_port} }}"
    return CniError(errors.TRY_AGAIN_LATER, f"host port {mapping} is already mapped ({owner(comment)})",
                    "DEL of that pod frees it, or GC where the pod is no more, or "
                    f"nft delete element inet {TABLE} {name} '{element}'")


def items(req, conf):
    """The elements of a request, that of hostport-pods first."""
    found = {(PODS, pod_key(req)): b""}
    for length, (packed, prefix) in conf.pod.items():
        for mapping in conf.mappings_for(length):
            found[where(mapping, length)] = nft_keys.concat_key(packed, nft_keys.be16(mapping.container_port))
            if conf.snat:
                found[HAIRPINS[length], packed + port_key(mapping.protocol, mapping.container_port)] = None
                found[HAIRPIN_PODS[length], packed] = FROM_ALL if conf.masq_all else from_chain(packed, prefix)
    found[PODS, pod_key(req)] = nft_keys.be16(min(len(found), MOST_COUNTED))
    return [(*key, value) for key, value in found.items()]


def where(mapping, length, host_ip=None):
    """(map, key) of a mapping, in one family; of the same port of another address with `host_ip`."""
    host_ip = mapping.host_ip if host_ip is None else host_ip
    return (HOSTIP_HOSTPORTS if host_ip else HOSTPORTS)[length], host_ip + port_key(mapping.protocol, mapping.host_port)


def port_key(protocol, port):
    """meta l4proto . th dport, each padded to a word"""
    return nft_keys.concat_key(bytes((PROTOCOLS[protocol],)), nft_keys.be16(port))


def pod_key(req):
    return names.digest(names.hashes(req.name, req.container_id, req.ifname), POD_KEY - 1).encode() + b"\0"


def from_chain(packed, prefix):
    # nft reads names of letters, digits and / \ _ . - only.
    return FROM + addresses.cidr_text(addresses.network(packed, prefix), prefix).replace(":", "_")


def claims(conf):
    """{(map, key): Mapping} of what the request wants for itself alone."""
    return {where(mapping, length): mapping for length in conf.pod for mapping in conf.mappings_for(length)}


def shadows(req, conf):
    """{(map, key): Mapping} of what would be in each other's way, as for bind(2): a port of every address, and the
    same of one address."""
    found = {}
    for length in conf.pod:
        mappings = conf.mappings_for(length)
        named = host_ips(req, length) if not all(mapping.host_ip for mapping in mappings) else ()
        for mapping in mappings:
            for host_ip in (b"",) if mapping.host_ip else named:
                found[where(mapping, length, host_ip)] = mapping
    return found


def host_ips(req, length):
    """The packed addresses that mappings have named."""
    told = store().told(req.mode.firewall, HOSTIPS[length]) or ()       # None: somebody flushes it just now
    return [key for payload in told for key, _ in nft.read_elements(payload)]


def add_host_ips(req, conf):
    """They belong to nobody, and stay: there are no more of them than addresses of the node."""
    named = dict.fromkeys((HOSTIPS[length], mapping.host_ip, None)
                          for length in conf.pod for mapping in conf.mappings_for(length) if mapping.host_ip)
    if named:
        store().keep(req, [*named])


def delete(req, conf):
    """Delete our elements: those of the known mappings, or all that have our mark; says whether there were any. Gone
    is fine."""
    delete_reference_rules(req)
    found = look_up_pod(req)
    if found is None:
        return False
    known = items(req, conf) if conf.pod and conf.mappings else []
    store().delete(req, known, nft.read_number(found[0][1]))
    return True


def present(req):
    """Has the attachment any mappings?"""
    return look_up_pod(req) is not None


def look_up_pod(req):
    """The attachment's element of hostport-pods, replies; None where there is none."""
    return wire.look_up(req.mode.firewall, nft.get_element(Batch(), FAMILY, TABLE, PODS, pod_key(req)))


def delete_reference_rules(req):
    """What the reference's nftables backend made for this container."""
    for family in (nft.NFPROTO_IPV4, nft.NFPROTO_IPV6):
        if elements.has_table(req.mode, family, REFERENCE_TABLE):
            for chain in REFERENCE_CHAINS:
                elements.delete_rules(req.mode, family, REFERENCE_TABLE, chain,
                                      lambda comment: comment == req.container_id)


def missing(req, conf):
    """For CHECK: what is not there, in words, or "" where all is."""
    asked = claims(conf)
    for name, key, _ in store().missing(req, items(req, conf)):
        return f"host port {asked[name, key]} is not mapped" if (name, key) in asked else f"{name} lacks the pod"
    return "" if store().whole(req) else f"{LOOKUPS} has no rules"


def gc(req):
    store().gc(req)
    store().delete_unused_chains(req, MOST_FROM_RULES)


def status(req):
    """Raises CniError 50 where the kernel would refuse what an ADD needs."""
    if refused := store().refusal(req, [elements.chain_item(FROM_ALL)]):
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"port mappings by nftables are not possible: {refused}",
                       "the kernel lacks a part of nf_tables (nft_nat, nft_fib_inet, nft_masq, nft_ct), or this is not "
                       "root; backend iptables is the other way")


def set_up(batch, items):
    """Everything but the elements. What is there already is written anew in the same transaction, unnoticed."""
    nft.add_table(batch, FAMILY, TABLE, COMMENT)
    sets = add_sets(batch)
    for chain in (LOOKUPS, *HOOKS, POSTROUTING):
        if chain in HOOKS:
            nft.add_base_chain(batch, FAMILY, TABLE, chain, kind="nat", hook=HOOKS[chain],
                               priority=nft.NF_IP_PRI_NAT_DST + 1)
        elif chain == POSTROUTING:
            nft.add_base_chain(batch, FAMILY, TABLE, chain, kind="nat", hook=nft.NF_INET_POST_ROUTING,
                               priority=nft.NF_IP_PRI_NAT_SRC - 1)
        else:
            nft.add_chain(batch, FAMILY, TABLE, chain)
        nft.flush_chain(batch, FAMILY, TABLE, chain)
    for chain, *rule in rules(sets):
        nft.add_rule(batch, FAMILY, TABLE, chain, *rule)
    for chain in dict.fromkeys(value for _, _, value in items if isinstance(value, str)):
        fill(batch, chain)
    return batch


def add_sets(batch):
    """Their numbers in this transaction."""
    sets = {}
    for length, family in FAMILIES.items():
        value = (nft_keys.concat_type(family.key_type, nft.TYPE_INET_SERVICE), length + 4)
        both = {"key_type": nft_keys.concat_type(family.key_type, *PORT_TYPES), "key_size": length + PORT_SIZE}
        for name, more in ((HOSTPORTS[length], {"key_type": nft_keys.concat_type(*PORT_TYPES), "key_size": PORT_SIZE,
                                                "values": value}),
                           (HOSTIP_HOSTPORTS[length], {**both, "values": value}),
                           (HAIRPINS[length], both),
                           (HAIRPIN_PODS[length], {"key_type": family.key_type, "key_size": length, "verdicts": True}),
                           (HOSTIPS[length], {"key_type": family.key_type, "key_size": length})):
            sets[name] = len(sets) + 1
            nft.add_set(batch, FAMILY, TABLE, name, set_id=sets[name], **more)
    nft.add_set(batch, FAMILY, TABLE, PODS, set_id=len(sets) + 1, key_type=nft.TYPE_IFNAME, key_size=POD_KEY,
                values=(nft.TYPE_INET_SERVICE, 2), host_order=True)
    return sets


def rules(sets):
    """The rules as printed above: (chain, expression, ...)."""
    for chain in HOOKS:
        yield (chain, nft.fib_daddr_type(), nft.compare(nft_keys.host32(uapi.RTN_LOCAL)),
               nft.verdict(nft.NFT_JUMP, LOOKUPS))
    # The kernel lets nothing out from ::1, and nothing in to it. Refused at once, a client goes on to 127.0.0.1.
    ipv6 = FAMILIES[16]
    yield LOOKUPS, *ipv6.within(ipv6.destination, *LOCALHOST[16]), nft.verdict(nft.NFT_RETURN)
    for length, family in FAMILIES.items():
        address, to_port = family.load(family.destination), load_port(length)
        hairpins, pods = HAIRPINS[length], HAIRPIN_PODS[length]
        for name, key in ((HOSTIP_HOSTPORTS[length], (*address, *to_port)), (HOSTPORTS[length], load_port(0))):
            yield LOOKUPS, *key, nft.value_of(name, sets[name]), nft.dnat(family.protocol, length)
        yield (POSTROUTING, nft.ct(nft.NFT_CT_STATUS), nft.mask(nft_keys.host32(nft.IPS_DST_NAT)),
               nft.compare(bytes(4), nft.NFT_CMP_NEQ), *address, *to_port, nft.in_set(hairpins, sets[hairpins]),
               *address[-1:], nft.verdict_of(pods, sets[pods]))


def load_port(length):
    """meta l4proto . th dport, in the registers behind an address of this length"""
    word = nft.NFT_REG32_00 + length // 4
    return (nft.meta(nft.NFT_META_L4PROTO, word),
            nft.payload(nft.NFT_PAYLOAD_TRANSPORT_HEADER, 2, 2, word + 1))


def fill(batch, chain):
    """A chain that masquerades what comes from the node's localhost and from a subnet, which its name tells."""
    nft.add_chain(batch, FAMILY, TABLE, chain)
    nft.flush_chain(batch, FAMILY, TABLE, chain)
    if chain == FROM_ALL:
        return nft.add_rule(batch, FAMILY, TABLE, chain, nft.masquerade())
    network, prefix = addresses.read_cidr(chain.removeprefix(FROM).replace("_", ":"))
    family, sources = FAMILIES[len(network)], [(network, prefix)]
    if len(network) == 4:
        sources.append(LOCALHOST[4])
    for source in sources:
        nft.add_rule(batch, FAMILY, TABLE, chain, *family.within(family.source, *source), nft.masquerade())
    return batch
