"""A node for tests: make requests to handle() in the test's thread, and read the kernel's state independently of
fastcni.

Functions that read the state use `ip -j`, `nft -j` and pyroute2, and return plain lists and dicts.
"""

import contextlib
import json
import select
import socket
import sys
import time
from pathlib import Path

from pyroute2 import IPSet

from fastcni.testing.namespaces import Inside, run
from fastcni.testing.real_runtime import RealRuntime, cid_of
from fastcni.testing.witnesses import addresses, eventually, ip_json, links, routes, set_sysctl, sysctl

__all__ = ["Inside", "Node", "addresses", "arrives_by", "cid_of", "elements", "eventually", "ip_batch", "ip_json",
           "links", "members", "routes", "rules", "run", "set_sysctl", "source_seen", "sysctl"]
OUTSIDE = {4: "192.0.2.9", 6: "2001:db8::9"}                # only the default route of pods leads to OUTSIDE
# linux/in.h, in6.h: (level, option to set, type of the received message)
PKTINFO = {4: (socket.IPPROTO_IP, 8, 8), 6: (socket.IPPROTO_IPV6, 49, 50)}
AGAIN = 0.3                                                 # seconds until a datagram is repeated
# Files of host-local and of cluster-wide addresses that belong to no pod
COMMON_FILES = ("last_reserved_ip.", "lock", ".fastcni.index", "blocks.json", "released", "claim.lock")


def ip_batch(*commands):
    """Run commands of ip(8) in the calling thread's namespace, by one process."""
    run("ip", "-batch", "-", stdin="\n".join(commands))


def rules():
    """Return `nft -j list ruleset` without handles and header, as a list of dicts."""
    found = json.loads(run("nft", "-j", "list", "ruleset"))["nftables"]
    for item in found:
        for thing in item.values():
            thing.pop("handle", None)
    return [item for item in found if "metainfo" not in item]


def elements(name, family="inet", ruleset=None):
    """Return the elements of a set or map of table fastcni, as nft prints them, or [] if the set does not exist.
    ruleset: the return value of rules(), None: the current one."""
    for item in rules() if ruleset is None else ruleset:
        for kind in ("set", "map"):
            thing = item.get(kind, {})
            if (thing.get("family"), thing.get("table"), thing.get("name")) == (family, "fastcni", name):
                return [_element(each) for each in thing.get("elem", [])]
    return []


def members(name):
    """Return the sorted addresses of an ipset, or [] if the set does not exist."""
    return _members_of(name)[0]


def _members_of(*names):
    with IPSet() as ipset:
        sets = {it.get_attr("IPSET_ATTR_SETNAME"): it.get_attr("IPSET_ATTR_ADT") for it in ipset.list()}
    found = []
    for name in names:
        items = sets[name].get_attrs("IPSET_ATTR_DATA") if sets.get(name) else []
        each = [it.get_attr("IPSET_ATTR_IP_FROM") for it in items]
        found.append(sorted(it.get_attr("IPSET_ATTR_IPADDR_IPV4") or it.get_attr("IPSET_ATTR_IPADDR_IPV6")
                            for it in each))
    return found


def _element(each):
    """Return an element without its comment. nft prints {"elem": {"val", "comment"}}, and for a map a list of this
    object and the value."""
    key, value = each if isinstance(each, list) and isinstance(each[0], dict) and "elem" in each[0] else (each, None)
    if isinstance(key, dict) and "elem" in key:
        key = key["elem"]["val"]
    key, value = (tuple(it["concat"]) if isinstance(it, dict) and "concat" in it else it for it in (key, value))
    if isinstance(value, dict):
        value = value["goto"]["target"]
    return (key, value) if value else key


def source_seen(sender, receiver, address, wait=5.0):
    """Send datagrams from namespace `sender` to `address` in namespace `receiver` (None: the node) until one arrives.

    Return the source address that the receiver sees, None if nothing arrives within `wait` seconds. The first datagram
    may be lost: a link that has just come up drops packets until the kernel has seen its carrier.
    """
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with Inside(receiver):
        server = socket.socket(family, socket.SOCK_DGRAM)
        server.bind(("", 0))
    with Inside(sender):
        client = socket.socket(family, socket.SOCK_DGRAM)
    with server, client:
        deadline = time.monotonic() + wait
        while True:
            with contextlib.suppress(OSError):              # no route, or no route yet
                client.sendto(b"are you there?", (address, server.getsockname()[1]))
            if select.select([server], [], [], AGAIN)[0]:
                return server.recvfrom(100)[1][0]
            if time.monotonic() > deadline:
                return None


def arrives_by(pod, source, family=4, device=""):
    """Return the node's link at which a datagram from the pod's address to OUTSIDE arrives ("": the kernel chooses the
    address), or None if no datagram arrives. With `device` the sending socket is bound to that link."""
    kind, (level, asked, received) = {4: socket.AF_INET, 6: socket.AF_INET6}[family], PKTINFO[family]
    server = socket.socket(kind, socket.SOCK_DGRAM)
    server.setsockopt(level, asked, 1)
    server.bind(("", 0))
    with Inside(pod):
        client = socket.socket(kind, socket.SOCK_DGRAM)
    with server, client:
        if device:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_BINDTODEVICE, device.encode())
        if source:
            client.bind((source, 0))
        for _ in range(3):                      # the first datagram may be lost during neighbour discovery
            client.sendto(b"which way?", (OUTSIDE[family], server.getsockname()[1]))
            if select.select([server], [], [], 1)[0]:
                break
        else:
            return None
        _, parts, _, _ = server.recvmsg(100, 200)
    info = next(data for where, what, data in parts if (where, what) == (level, received))
    return socket.if_indextoname(int.from_bytes(info[:4] if family == 4 else info[16:20], sys.byteorder))


class Node(RealRuntime):
    """A runtime on one host, which calls plugins and lists the state that the plugins leave."""

    def __init__(self, directory, name):
        super().__init__()
        self.data_dir, self.name = str(directory / "networks"), name
        self.ports = list                   # lists the ports of the node's virtual switch; by default none

    def behind(self, conf, *pods, **more):
        """Add pods by the first plugin of a chain. Later calls pass the result of this plugin as prevResult."""
        for pod in pods:
            self.results[pod] = self.add(conf, pod, **more)

    def uplink(self, neighbor, name="up0", mtu=1500):
        """Add a veth of the host, and set it up. The peer ext0 in the namespace `neighbor` has 10.22.0.254/24 and
        fd00:22::fe/64."""
        run("ip", "link", "add", name, "mtu", mtu, "type", "veth", "peer", "ext0", "mtu", mtu, "netns", neighbor)
        with Inside(neighbor):
            set_sysctl("net/ipv6/conf/ext0/accept_dad", "0")
            ip_batch("addr add 10.22.0.254/24 dev ext0", "addr add fd00:22::fe/64 dev ext0", "link set ext0 up")
        run("ip", "link", "set", name, "up")

    def second_network(self, **keys):
        """Return a configuration of another network, on bridge br1."""
        return self.conf("10.23.0.0/24", "fd00:23::/64", name="net-b", bridge="br1", isGateway=True, **keys)

    def two_links(self, pod, second):
        """Give the pod eth0 with the default routes, and net1 of the network `second`, to which tests chain plugins.
        Give the node the addresses OUTSIDE."""
        set_sysctl("net/ipv6/conf/default/accept_dad", "0")
        ip_batch(f"addr add {OUTSIDE[4]}/32 dev lo", f"addr add {OUTSIDE[6]}/128 dev lo")
        self.add(self.conf("10.22.0.0/24", "fd00:22::/64", isDefaultGateway=True), pod)
        self.behind(second, pod, ifname="net1")

    def host_local(self, *subnets, **more):
        ranges = [[{"subnet": subnet}] for subnet in subnets or ("10.22.0.0/24",)]
        return {"type": "host-local", "dataDir": self.data_dir, "ranges": ranges, **more}

    def subnet_file(self, *subnets, **lines):
        """Write the subnet.env that flanneld writes for a node with these subnets. Return its path. lines: {variable:
        its value, or None to leave the line out}."""
        path = Path(self.data_dir).with_name("subnet.env")
        found = {}
        for subnet in subnets:
            family = "IPV6_" if ":" in subnet else ""
            found |= {f"{family}NETWORK": subnet.replace("10.22.0.0/24", "10.22.0.0/16").replace("/64", "/48"),
                      f"{family}SUBNET": subnet.replace(".0/", ".1/").replace("::/", "::1/")}
        found |= {"MTU": 1450, "IPMASQ": "false", **lines}
        path.write_text("".join(f"FLANNEL_{key}={value}\n" for key, value in found.items() if value is not None))
        return str(path)

    def conf(self, *subnets, routes=(), **keys):
        """Return a network configuration with host-local. keys: keys to set or replace; None removes a key."""
        ipam = self.host_local(*subnets, **({"routes": [{"dst": dst} for dst in routes]} if routes else {}))
        conf = {"cniVersion": "1.1.0", "name": "net-a", "type": "bridge", "bridge": "br0", "ipam": ipam, **keys}
        return {key: value for key, value in conf.items() if value is not None}

    def held(self, network="net-a"):
        """Return {address: content} of a network's address files."""
        return {path.name: path.read_text() for path in Path(self.data_dir, network).glob("*")
                if not path.name.startswith(COMMON_FILES)}

    def left(self, *pods):
        """Return state that pods could leave: links, addresses, nftables elements, iptables rules, ipset members,
        address files, ports of a switch, and changes of chained plugins to a pod and to the qdiscs of its link."""
        return {"links": [_links_of(name) for name in (None, *pods)], "rules": lasting(rules()),
                "members": _members_of("fastcni-forward4", "fastcni-forward6"),
                "files": self._files(), "inside": [_inside(name) for name in pods if name in self.results],
                "qdiscs": _qdiscs() if self.results else [], "ports": self.ports()}

    def _files(self):
        return {str(path): path.read_text() for path in Path(self.data_dir).rglob("*")
                if path.is_file() and not path.name.startswith(COMMON_FILES)}


def _links_of(netns):
    """Return [(name, kind, flags, mtu, queue, MAC, master, global addresses)] of a namespace, by one `ip -j -d
    addr`."""
    found = []
    for item in ip_json("-d", "addr", netns=netns):
        # lo keeps 127.0.0.1 when it is set down.
        mine = sorted(f"{a['local']}/{a['prefixlen']}" for a in item["addr_info"] if a["scope"] == "global")
        flags = {"UP", "PROMISC", "ALLMULTI"} & {*item["flags"]}
        found.append((item["ifname"], item.get("linkinfo", {}).get("info_kind"), sorted(flags), item["mtu"],
                      item.get("txqlen"), item.get("address"), item.get("master"), mine))
    return found


def _qdiscs():
    """Return the qdiscs of the node's links, without counters."""
    found = json.loads(run("tc", "-j", "qdisc"))
    for item in found:
        item["options"].pop("direct_packets_stat", None)
    return found


def _inside(netns):
    """Return the routing rules, the routes of all tables, and two sysctls of a pod."""
    found = [sysctl("net/ipv4/ip_forward", netns), sysctl("net/ipv4/conf/all/rp_filter", netns)]
    for family in ("-4", "-6"):
        both = run("ip", "-j", family, "-batch", "-", stdin="rule\nroute show table all\n", netns=netns)
        rules, routes = map(json.loads, both.splitlines())
        # With the first VRF, the kernel adds one rule for all VRFs and never removes it.
        found += [str(rule) for rule in rules if "l3mdev" not in rule]
        found += sorted(str(route) for route in routes
                        if route.get("table") != "local" and not route["dst"].startswith(("fe80:", "ff00:")))
    return found


def lasting(ruleset):
    """Return the parts of the ruleset that must not stay after DEL, without counters. Left out are tables, chains,
    sets, fixed rules, host addresses of port mappings, and policies of bridges."""
    found = []
    for item in ruleset:
        (kind, thing), = item.items()
        if kind in ("set", "map") and not thing["name"].startswith(("hostips", "ingress-")):
            found += [(thing["name"], str(each)) for each in thing.get("elem", [])]
        elif kind == "rule" and thing["table"] != "fastcni":
            found.append(str({**thing, "expr": [each for each in thing["expr"] if "counter" not in each]}))
        elif kind == "chain" and thing["name"].startswith("CNI-") and thing["table"] != "fastcni":
            found.append(thing["name"])
    return found
