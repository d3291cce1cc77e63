"""Check the kernel: features, sysctls, tables that fill up, and both kinds of iptables."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable, Iterator

from fastcni._netlink import Batch
from fastcni.agent.policy.ruleset import BRIDGED
from fastcni.kernel import nft, uapi, wire
from fastcni.kit.firewall.table import COMMENT, FAMILY, TABLE
from fastcni.node.attachments import tables
from fastcni.node.attachments.attachment import RUNNING, NodeAttachment
from fastcni.node.attachments.drops import FIREWALL, ROUTED
from fastcni.node.checks.findings import ERROR, NEARLY, WARNING, Finding, Node, plural, some
from fastcni.runtime.parse import flattened

NETLINKS = {uapi.NETLINK_ROUTE: ("rtnetlink", "links, addresses and routes", "CONFIG_NET"),
            uapi.NETLINK_NETFILTER: ("nfnetlink", "nftables: masquerade, port mappings, firewall", "nfnetlink")}
# {CNI type: kernel modules that the plugin needs}
MODULES = {"bridge": ("bridge", "veth"), "ptp": ("veth",), "macvlan": ("macvlan",), "ipvlan": ("ipvlan",),
           "vlan": ("8021q",), "dummy": ("dummy",), "vrf": ("vrf",), "tap": ("tun",), "bandwidth": ("ifb", "sch_tbf"),
           "ovs": ("veth",), "portmap": ("nf_tables", "nft_nat"), "firewall": ("nf_tables",)}
FIREWALLD = "nftables inet firewalld"       # the names of firewalld's rules contain this text
BRIDGES = {"bridge", "flannel"}     # CNI types whose pods are connected to ports of a bridge
MAX_BRIDGE_PORTS = 1 << 10      # BR_MAX_PORTS, net/bridge/br_private.h
CACHES = {"IPv4": ("arp_cache", "ipv4"), "IPv6": ("ndisc_cache", "ipv6")}


def netlink(node: Node) -> Iterator[Finding]:
    """The kernel has the netlink families that plugins use."""
    for protocol, (name, what, module) in NETLINKS.items():
        try:
            wire.open_socket(protocol).close()
        except OSError as e:
            if e.errno in (errno.EPERM, errno.EACCES):
                node.unseen.append(f"{name}: {e}")
                continue
            yield Finding(ERROR, f"the kernel has no {name} ({e})", f"plugins use it for {what}", f"modprobe {module}")


def nf_tables(node: Node) -> Iterator[Finding]:
    """The kernel has nftables, with the family inet."""
    try:
        with wire.open_socket(uapi.NETLINK_NETFILTER) as sock:
            tables.tables(sock)
            # The transaction has no end message, so the kernel checks the transaction, but does not commit it.
            _, refused = wire.attempt(sock, nft.add_table(nft.start(Batch()), FAMILY, TABLE, COMMENT))
        if refused and refused[0].errno in nft.NO_FAMILY:
            yield Finding(WARNING, "the kernel has no nftables family inet (CONFIG_NF_TABLES_INET)",
                          "ipMasq, portmap and firewall by nftables need this family; firewall by iptables "
                          "or firewalld works without owner records, so GC removes no addresses",
                          'set "backend": "iptables" and "ipMasqBackend": "iptables" in the networks')
    except OSError as e:
        if e.errno in (errno.EPERM, errno.EACCES):
            return                          # the inventory reports the missing permission
        yield Finding(ERROR, f"nftables cannot be used: {e}",
                      'ipMasq, portmap and firewall use nftables unless the network has "backend": "iptables"',
                      "modprobe nf_tables")


def modules(node: Node) -> Iterator[Finding]:
    """The kernel has, or can load, what the configured plugins need."""
    for kind, network in node.types.items():
        for module in MODULES.get(kind, ()):
            if has_module(node, module) is False:
                yield Finding(ERROR, f"the kernel {node.release} has no module {module}",
                              f"plugin {kind} of network {network} needs this module", f"modprobe {module}")
    with_vlans = [net.name for net in node.networks if any(
        plugin.type == "bridge" and (plugin.values.get("vlan") or plugin.values.get("vlanTrunk"))
        for plugin in flattened(net.plugins))]
    if with_vlans and lacks_vlan_filtering(node):
        yield Finding(ERROR, f"the kernel {node.release} has no VLAN filtering of bridges",
                      f"the keys vlan and vlanTrunk of network {some(with_vlans)} need VLAN filtering: ADD fails",
                      "boot a kernel that was built with CONFIG_BRIDGE_VLAN_FILTERING")


def lacks_vlan_filtering(node: Node) -> bool:
    """Return whether bridges have no VLAN filtering. If the kernel has the feature, it reports the setting of each
    bridge. Without a bridge, the kernel's configuration in /boot shows whether it has the feature."""
    bridges = [link.vlan_filtering for link in node.links if link.kind == "bridge"]
    if bridges:
        return bridges[0] is None
    return "# CONFIG_BRIDGE_VLAN_FILTERING is not set" in node.text(f"boot/config-{node.release}")


def has_module(node: Node, name: str) -> bool | None:
    """Return whether a module is loaded, built in, or can be loaded. None: the kernel's list of modules is missing."""
    if os.path.exists(os.path.join(node.root, "sys/module", name)):
        return True
    directory = f"lib/modules/{node.release}"
    lists = [node.text(f"{directory}/{file}") for file in ("modules.builtin", "modules.dep")]
    if not any(lists):
        return None
    paths = {line.partition(":")[0].rpartition("/")[2].partition(".")[0].replace("-", "_")
             for text in lists for line in text.splitlines()}
    return name.replace("-", "_") in paths


def forwarding(node: Node) -> Iterator[Finding]:
    """The node forwards packets of its pods. ADD switches forwarding on; another program may switch it off."""
    ips = [ip for it in node.inventory.attachments if it.state == RUNNING and set(ROUTED).intersection(it.plugins)
           for ip in it.addresses]
    for name, family, there in (("net.ipv4.ip_forward", "IPv4", any(":" not in ip for ip in ips)),
                                ("net.ipv6.conf.all.forwarding", "IPv6", any(":" in ip for ip in ips))):
        if there and node.number(name) == 0:
            yield Finding(ERROR, f"{name} is 0", f"pods with {family} reach nothing outside of this node; another "
                          "program has switched forwarding off", f"sysctl -w {name}=1")


def bridge_nf_call(node: Node) -> Iterator[Finding]:
    """kube-proxy and network policies see packets from port to port of a bridge."""
    held = [net.name for net in node.networks if (kinds := {plugin.type for plugin in flattened(net.plugins)}) & BRIDGES
            and "policy" in kinds]
    lines = [line for saved in node.seen.facts.saved.values() for line in saved]
    if held:
        yield from off(node, BRIDGED, ERROR, "packets from port to port of a bridge bypass the network policies of "
                       f"{some(held)}; another program has switched the sysctl off")
    elif BRIDGES & node.types.keys() and any(line.startswith(":KUBE-SERVICES ") for line in lines):
        yield from off(node, BRIDGED[:1], WARNING, "kube-proxy uses iptables: a pod does not reach a Service whose pod "
                       "is on the same bridge")


def off(node: Node, paths: Iterable[str], severity: str, why: str) -> Iterator[Finding]:
    """Yield a finding for each of these sysctls of br_netfilter that is not 1. paths: below /proc/sys."""
    for name in (path.replace("/", ".") for path in paths):
        value = node.number(name)
        if value != 1:
            yield Finding(severity, f"{name} is {'missing' if value is None else value}", why,
                          f"modprobe br_netfilter && sysctl -w {name}=1")


def forward_policy(node: Node) -> Iterator[Finding]:
    """Each chain that drops forwarded packets accepts the pods' packets."""
    yield from (it for _, it in dropped_by_chains(node))
    for name in dict.fromkeys(it.name for it in node.seen.facts.chains_that_drop()):
        yield from without_pods(node, name)


def dropped_by_chains(node: Node) -> Iterator[tuple[str, Finding]]:
    """Yield (chain, finding) for each chain that drops packets of existing pods by policy."""
    for chain in {it.name: it for it in node.seen.facts.chains_that_drop()}.values():
        cut = [it for it in node.inventory.attachments if chain.name in it.dropped_by]
        given = [it for it in cut if FIREWALL in it.plugins]
        if given:
            do = ("fastcni restore" if chain.of_iptables else 'add "backend": "nftables" to plugin firewall and add '
                  "the pods again, or accept their packets in that chain")
            what = f"{chain.name} drops packets that {pods(given)} forward{'s' * (len(given) == 1)}"
            yield chain.name, Finding(ERROR, what, "the chain began to filter after ADD, or its rules were flushed", do)
        for network in dict.fromkeys(it.network for it in cut if it not in given):
            bare = [it for it in cut if it.network == network and it not in given]
            yield chain.name, Finding(
                WARNING, f"{chain.name} drops packets that {pods(bare)} forward{'s' * (len(bare) == 1)}, and "
                f"network {network} has no plugin firewall", "these pods reach nothing outside of their network",
                'add {"type": "firewall"} to the plugins of the network, and add the pods again')


def forward_rules(node: Node) -> Iterator[Finding]:
    """No rule of the host's firewall drops pods' forwarded packets."""
    yield from (it for _, it in dropped_by_rules(node))


def dropped_by_rules(node: Node) -> Iterator[tuple[str, Finding]]:
    """Yield (rule, finding) for each rule that drops packets of existing pods."""
    for name, rule in node.seen.facts.refusals.items():
        cut = [it for it in node.inventory.attachments if name in it.dropped_by]
        do = f"`{rule.show}` prints the chain; change the rule, or accept the pods' packets before it"
        if FIREWALLD in rule.rule and all(FIREWALL in it.plugins for it in cut):
            do = "fastcni restore"
        what = f"packets that {pods(cut)} forward{'s' * (len(cut) == 1)}"
        if rule.certain:
            yield name, Finding(ERROR, f"{rule.rule} drops {what}",
                                "these pods reach nothing outside of their network", do)
        else:
            yield name, Finding(WARNING, f"{rule.rule} may drop {what}",
                                "the rule has further conditions, or follows a rule that has some", do)


def pods_dropped(node: Node) -> list[tuple[str, str, str]]:
    """Return (name, sentence with the pods, what to do) for each chain or rule that drops pods' forwarded packets."""
    return [(name, it.what, it.do) for name, it in (*dropped_by_chains(node), *dropped_by_rules(node))]


def without_pods(node: Node, chain: str) -> Iterator[Finding]:
    """Yield a finding for networks that have neither the plugin firewall nor a pod: the chain will drop their
    packets."""
    used = {it.network for it in node.inventory.attachments}
    kinds = {net.name: {it.type for it in flattened(net.plugins)} for net in node.networks}
    bare = [name for name, types in kinds.items()
            if FIREWALL not in types and types.intersection(ROUTED) and name not in used]
    if bare:
        yield Finding(WARNING,
                      f"{chain} drops forwarded packets by policy, and network {some(bare)} has no plugin firewall",
                      "pods of this network reach nothing outside of it, unless other rules accept their packets",
                      'add {"type": "firewall"} to the plugins of the network')


def pods(attachments: list[NodeAttachment]) -> str:
    """Return a text such as "pods c1/eth0 (10.1.0.5), c2/eth0 (10.1.0.6) and 2 more"."""
    named = [f"{it.container_id[:12]}/{it.ifname or '?'} ({' '.join(it.addresses)})" for it in attachments]
    return f"pod{'s' if len(named) > 1 else ''} {some(named, 6)}"


def rp_filter(node: Node) -> Iterator[Finding]:
    """Strict reverse path filtering does not drop answers of pods with several networks."""
    if node.number("net.ipv4.conf.all.rp_filter") != 1:
        return
    containers = [it.container_id for it in node.inventory.attachments if it.state == RUNNING]
    several = {container for container in containers if containers.count(container) > 1}
    special = [kind for kind in ("sbr", "vrf") if kind in node.types]
    if several or special:
        what = f"plugin {some(special)}" if special else plural(len(several), "pod") + " with several networks"
        yield Finding(WARNING, "net.ipv4.conf.all.rp_filter is 1 (strict)", f"the node has {what}: packets that come "
                      "by another link than the route back are dropped", "sysctl -w net.ipv4.conf.all.rp_filter=2")


def neighbours(node: Node) -> Iterator[Finding]:
    """The neighbour tables, which all namespaces share, are not full."""
    for family, (cache, directory) in CACHES.items():
        limit = node.number(f"net.{directory}.neigh.default.gc_thresh3")
        rows = [line.split() for line in node.text(f"proc/net/stat/{cache}").splitlines()]
        if limit is None or len(rows) < 2:
            continue
        held = int(rows[1][0], 16)
        at = rows[0].index("table_fulls") if "table_fulls" in rows[0] else -1
        refused = sum(int(row[at], 16) for row in rows[1:]) if at >= 0 else 0
        names = [f"net.{directory}.neigh.default.gc_thresh{number}" for number in (1, 2, 3)]
        do = "sysctl -w " + " ".join(f"{name}={limit * 4 // part}" for name, part in zip(names, (8, 2, 1), strict=True))
        if held >= limit * NEARLY:
            yield Finding(ERROR, f"the {family} neighbour table is nearly full: {held} of {limit} entries",
                          "packets to further neighbours are dropped, on the node and in every pod", do)
        elif refused:
            yield Finding(WARNING, f"the {family} neighbour table was full {refused} times since boot (limit {limit})",
                          "while the table was full, the kernel dropped packets, on the node or in pods", do)


def conntrack(node: Node) -> Iterator[Finding]:
    """The table of connections is not full."""
    held, limit = (node.number(f"net.netfilter.nf_conntrack_{name}") for name in ("count", "max"))
    if held is not None and limit and held >= limit * NEARLY:
        yield Finding(ERROR, f"the table of connections is nearly full: {held} of {limit}",
                      "new connections through masquerade and host ports are dropped",
                      f"sysctl -w net.netfilter.nf_conntrack_max={limit * 2}")


def bridge_ports(node: Node) -> Iterator[Finding]:
    """The bridges have free ports for pods."""
    for bridge in node.links:
        if bridge.kind == "bridge":
            ports = sum(link.master == bridge.index for link in node.links)
            if ports >= MAX_BRIDGE_PORTS * NEARLY:
                yield Finding(ERROR if ports >= MAX_BRIDGE_PORTS - 1 else WARNING,
                              f"bridge {bridge.name} has {ports} of {MAX_BRIDGE_PORTS} ports",
                              "the kernel refuses more ports: ADD fails (exchange full)",
                              "use a second network with another bridge, or plugin ptp, which has no such limit")


def iptables_kinds(node: Node) -> Iterator[Finding]:
    """Only one kind of iptables has rules."""
    saved = node.seen.facts.saved
    for family in ("iptables", "ip6tables"):
        legacy, nft = (any(line.startswith("-A ") for line in saved.get(f"{family}-{kind}-save", ()))
                       for kind in ("legacy", "nft"))
        if legacy and nft:
            yield Finding(WARNING, f"both kinds of {family}, legacy and nft, have rules", "a packet has to pass the "
                          "rules of both kinds; a program that uses one kind does not see the other rules", "see "
                          f"`{family}-legacy-save` and `{family}-nft-save`; choose with `update-alternatives --config "
                          f"{family}`, then reboot")
