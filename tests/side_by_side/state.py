"""Read the state that a plugin leaves in the kernel, by ip(8) and from /proc, and replace its random parts.

Roles replaces random names and MACs by placeholders ("host end", "MAC of eth0"). Paths and link indexes are left out.
So tests can compare two hosts key by key.
"""

import json
import os
import re
from contextlib import closing
from functools import cache
from ipaddress import IPv6Address
from socket import AF_INET, AF_INET6

from side_by_side.sides import Inside, new_netns, run

from fastcni.kernel import uapi, wire
from fastcni.testing.namespaces import delete_netns

IFA_F_TENTATIVE = 0x40                  # linux/if_addr.h
RANDOM_NAME = re.compile(r"veth[0-9a-f]{8}")
LINK_LOCAL = re.compile(r"fe80::[0-9a-f:]+:[0-9a-f:]+")
# Fields of `ip -d link` that are random, that are times, or that repeat other fields.
CHANCE = {"ifindex", "link_index", "link_netnsid", "hello_timer", "tcn_timer", "topology_change_timer", "gc_timer",
          "hold_timer", "message_age_timer", "forward_delay_timer", "valid_life_time", "preferred_life_time", "link",
          "bridge_id", "root_id", "designated_bridge", "designated_port", "designated_root", "id", "port_no", "no",
          "iflink", "iface_id", "ticks", "peer", "prefix_time"}
SWITCHES = ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "net/ipv4/conf/all/route_localnet",
            "net/ipv4/conf/all/arp_notify", "net/ipv6/conf/all/disable_ipv6", "net/ipv6/conf/all/accept_dad")


def state_of(side, *pods, borrowed=False):
    """Return {path: value} of a host and its pods, flat: "host/links/br0/mtu": 1500. borrowed: see Roles."""
    found = of_each(read_netns, side, pods)
    return flat(Roles(found, [side.host, *pods], borrowed).of(found))


def roles_of(side, *pods, borrowed=False):
    """Return the current Roles of a host and its pods."""
    return Roles(of_each(lambda: {"links": read_links()}, side, pods), [side.host, *pods], borrowed)


def has_tentative(side, *pods):
    """Return whether duplicate address detection (DAD) is still running for an address of the host or of its pods."""
    return any(of_each(tentative, side, pods).values())


def tentative():
    """Return the lines of /proc/net/if_inet6 with tentative addresses, in this thread's namespace."""
    with open("/proc/thread-self/net/if_inet6") as file:  # fields: address, index, prefix length, scope, flags, name
        return [line for line in file if int(line.split()[4], 16) & IFA_F_TENTATIVE]


def of_each(read, side, pods):
    """Return {"host": read(), "pod0": read(), ...}, each called in that namespace."""
    found = {}
    for role, netns in [("host", side.host), *((f"pod{i}", os.path.basename(p)) for i, p in enumerate(pods))]:
        with Inside(netns):
            found[role] = read()
    return found


def read_netns():
    """Return links with addresses, VLANs of bridge ports, routes, qdiscs and sysctls of this thread's namespace."""
    addresses, found_routes = ip_json("-d", commands=["addr", "route show table all"])
    links = by_name(addresses)
    bridged = [link for link in links.values() if "bridge" in link.get("linkinfo", {}).get("info_kind", "")
               or link.get("linkinfo", {}).get("info_slave_kind") == "bridge"]
    vlans = {item["ifname"]: {str(vlan["vlan"]): vlan.get("flags", []) for vlan in item["vlans"]}
             for item in json.loads((bridged and run("bridge", "-j", "vlan", "show")) or "[]")}
    routes = {}
    for item in found_routes:
        family = 6 if "pref" in item else 4
        key = " ".join(str(item.get(each, "")) for each in ("table", "type", "dst", "gateway", "dev", "metric"))
        routes[f"{family} {key}"] = item
    return {"links": links, "vlans": vlans, "routes": routes, "rules": {**rules(4), **rules(6)}, "queues": queues(),
            "sysctls": {**{name: sysctl(name) for name in SWITCHES},
                        **{k: v for name in links for k, v in sysctls(name)}}}


def read_links():
    """Return {name: `ip -j -d addr` of the link}, the oldest link first."""
    return by_name(*ip_json("-d", commands=["addr"]))


def by_name(found):
    """Return {name: link} of the output of `ip -j -d addr`, the oldest link first."""
    links = {item.pop("ifname"): item for item in sorted(found, key=lambda item: item["ifindex"])}
    for item in links.values():
        item["addr_info"] = {f"{each.pop('local')}/{each.pop('prefixlen')}": each for each in item["addr_info"]}
    return links


def rules(family):
    """Return the routing rules of this thread's namespace; {} if they are those of a new namespace, because starting
    ip(8) takes more time than all else that reads the state."""
    if raw_rules(family) == rules_of_a_new_namespace(family):
        return {}
    return {f"{family} {item['priority']}": item for item in ip_json(f"-{family}", "-d", commands=["rule"])[0]}


def raw_rules(family):
    return dumped(uapi.RTM_GETRULE, bytes((AF_INET if family == 4 else AF_INET6,)) + bytes(11))     # fib_rule_hdr


@cache
def rules_of_a_new_namespace(family):
    name = new_netns("rules")
    try:
        with Inside(name):
            return raw_rules(family)
    finally:
        delete_netns(name)


def dumped(kind, header):
    """Return the payloads of a dump in this thread's namespace."""
    with closing(wire.open_socket()) as sock:
        return [payload for _, payload in wire.dump(sock, kind, header, "dump the state")]


def queues():
    """Return the qdiscs of this thread's namespace, without the kernel's defaults, and the ingress filters."""
    found = {}
    if all(b"noqueue\0" in each for each in dumped(uapi.RTM_GETQDISC, bytes(20))):       # tcmsg
        return found
    for item in json.loads(run("tc", "-j", "qdisc")):
        if item["kind"] != "noqueue":
            found[f"{item['dev']} {item.get('parent', 'root')}"] = item
        if item["kind"] == "ingress":
            filters = re.sub(r"index \d+", "", run("tc", "filter", "show", "dev", item["dev"], "ingress"))
            for i, text in enumerate(filters.split("action order")):
                found[f"{item['dev']} action {i}" if i else f"{item['dev']} filters"] = " ".join(text.split())
    return found


def ip_json(*options, commands):
    """Return the output of some commands of ip(8), run by one process."""
    out = run("ip", "-j", *options, "-batch", "-", stdin="\n".join(commands))
    return [json.loads(line) for line in out.splitlines()]


def sysctl(name):
    """Read a sysctl without a file object: a test reads thousands."""
    try:
        fd = os.open(f"/proc/sys/{name}", os.O_RDONLY)
        try:
            return os.read(fd, 4096).decode().strip()
        finally:
            os.close(fd)
    except OSError as e:                        # reading stable_secret fails while no secret is set
        return e.strerror


def sysctls(link):
    """Yield (name below /proc/sys, value) of each IPv4 and IPv6 sysctl of a link."""
    for family in ("ipv4", "ipv6"):
        directory = f"net/{family}/conf/{link}"
        for name in os.listdir(f"/proc/sys/{directory}") if os.path.isdir(f"/proc/sys/{directory}") else ():
            yield f"{directory}/{name}", sysctl(f"{directory}/{name}")


class Roles:
    """Placeholders for random names and MACs, such as {"veth1a2b3c4d": "<host end 0>", "0a:..": "<MAC of host br0>"}.

    borrowed: whether one implementation's bridge uses a port's MAC, and the other implementation's bridge has a fixed
    MAC. Then all MACs of the host have the same placeholder.
    """

    def __init__(self, found, namespaces, borrowed=False):
        owners, self.earlier = {}, f"<link-local of {'host link' if borrowed else 'a MAC it had before'}>"
        for netns, things in found.items():
            ends = [name for name in things["links"] if RANDOM_NAME.fullmatch(name)]        # the oldest first
            for name, link in things["links"].items():
                role = f"<host end {ends.index(name)}>" if name in ends else name
                role = "link" if borrowed and netns == "host" else role
                owners.setdefault(link.get("address"), []).append(f"{netns} {role}")
        self.placeholders = {}
        for mac, names in owners.items():
            if mac and re.fullmatch("[0-9a-f]{2}(:[0-9a-f]{2}){5}", mac) and mac not in (6 * ":00")[1:]:
                self.placeholders[mac] = f"<MAC of {', '.join(sorted(set(names)))}>"
                self.placeholders[link_local(mac)] = f"<link-local of {', '.join(sorted(set(names)))}>"
        if borrowed:
            self.placeholders[(6 * ":00")[1:]] = "<MAC of host link>"  # a bridge whose port was removed has the MAC 0
        for things in found.values():
            ends = [name for name in things["links"] if RANDOM_NAME.fullmatch(name)]
            self.placeholders.update({name: f"<host end {i}>" for i, name in enumerate(ends)})
        self.placeholders.update({name: f"<namespace {i}>" for i, name in enumerate(namespaces)})
        self.pattern = re.compile("|".join(map(re.escape, sorted(self.placeholders, key=len, reverse=True))))

    def of(self, value):
        """Return `value` with placeholders in place of names, also in keys."""
        if isinstance(value, dict):
            return {self.of(key): self.of(item) for key, item in value.items() if key not in CHANCE}
        if isinstance(value, list):
            return [self.of(item) for item in value]
        if not isinstance(value, str):
            return value
        return LINK_LOCAL.sub(self.earlier, self.pattern.sub(lambda found: self.placeholders[found[0]], value))


def link_local(mac):
    """Return the EUI-64 address of a MAC, as ip(8) prints it."""
    raw = bytes.fromhex(mac.replace(":", ""))
    host = bytes([raw[0] ^ 2, *raw[1:3], 0xFF, 0xFE, *raw[3:]])
    return str(IPv6Address(b"\xfe\x80" + bytes(6) + host))


def flat(value, path=""):
    """Return nested dicts as one dict, {"a/b/c": value}."""
    if not isinstance(value, dict):
        return {path: value}
    found = {path: "{}"} if path and not value else {}
    for key, item in value.items():
        found.update(flat(item, f"{path}/{key}" if path else str(key)))
    return found


def difference(*states):
    """Return {path: [each state's value]} for the paths at which flat dicts differ."""
    values = {path: tuple(it.get(path) for it in states) for path in sorted({path for it in states for path in it})}
    return {path: found for path, found in values.items() if any(it != found[0] for it in found)}
