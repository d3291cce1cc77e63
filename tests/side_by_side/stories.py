"""Configurations that both implementations run, and the calls that the runtime makes with each."""

V4, V6 = "10.22.0.0/24", "fd00:22::/64"
DEFAULT4, DEFAULT6 = {"dst": "0.0.0.0/0"}, {"dst": "::/0"}
MAC = "02:11:22:33:44:55"


def host_local(*subnets, **more):
    return {"type": "host-local", "dataDir": "@here", "ranges": [[{"subnet": one}] for one in subnets or (V4,)], **more}


def bridge(*subnets, routes=None, **keys):
    ipam = host_local(*subnets, **({"routes": routes} if routes else {}))
    return {"cniVersion": "1.0.0", "name": "net-a", "type": "bridge", "bridge": "br0", "ipam": ipam, **keys}


def ptp(*subnets, routes=None, **keys):
    found = {**bridge(*subnets, routes=routes), "type": "ptp", **keys}
    del found["bridge"]
    return found


def l2(**keys):
    return {"cniVersion": "1.0.0", "name": "net-a", "type": "bridge", "bridge": "br0", **keys}


def loopback(**keys):
    return {"cniVersion": "1.0.0", "name": "lo", "type": "loopback", **keys}


def static(*addresses, **more):
    return {"type": "static", "addresses": [{"address": a, **({"gateway": g} if g else {})} for a, g in addresses],
            **more}


class Story:
    """A configuration, with which the runtime does ADD of `pods` pods, CHECK and DEL. before: commands that run on the
    host first. variables: more CNI_* variables. behind: the configuration of the plugin before this one in the chain.

    quick_dad: whether to switch off the pods' duplicate address detection, which this story does not test. check: False
    if Go's CHECK is known to fail for the reason `why`, so that only fastcni's CHECK must succeed. needs: required
    kernel features.
    """

    def __init__(self, conf, *, pods=1, before=(), quick_dad=False, check=True, why="", needs=(), behind=None,
                 **variables):
        self.conf, self.pods, self.before, self.quick_dad = conf, pods, before, quick_dad
        self.check, self.why, self.needs, self.behind, self.variables = check, why, needs, behind, variables

    @property
    def borrowed(self):
        """Return whether Go's bridge has the MAC of a port. Go fixes a bridge's MAC only if the bridge gets a gateway
        address."""
        gateway = any(self.conf.get(key) for key in ("isGateway", "isDefaultGateway", "isgateway"))
        return (self.conf.get("type") == "bridge" and "br0" not in str(self.before)
                and (not gateway or bool(self.conf.get("vlan"))))


OLD_BRIDGE = ("ip link add br0 type bridge", "ip addr add 10.99.0.1/16 dev br0", "ip addr add 10.98.0.1/16 dev br0")
VLANS = ("bridge-vlan-filtering",)
STORIES = {
    "loopback": Story(loopback()),
    "loopback, called by its name": Story(loopback(), ifname="lo"),
    "bridge without addresses": Story(
        l2(), check=False, why="the reference calls IPAM in CHECK, although the network has none"),
    "bridge without addresses, with dns": Story(
        l2(dns={"nameservers": ["10.0.0.53"]}), check=False, why="CHECK calls IPAM"),
    "bridge without addresses, mtu": Story(l2(mtu=1400), check=False, why="CHECK calls IPAM"),
    "bridge with an empty ipam": Story(l2(ipam={}), check=False, why="CHECK calls IPAM"),
    "bridge, no gateway": Story(bridge()),
    "bridge, the name of the default": Story({k: v for k, v in bridge().items() if k != "bridge"}),
    "bridge isGateway": Story(bridge(isGateway=True)),
    "bridge isGateway, default route": Story(bridge(isGateway=True, routes=[DEFAULT4])),
    "bridge isGateway, three pods": Story(bridge(isGateway=True, routes=[DEFAULT4]), pods=3),
    "bridge isDefaultGateway": Story(bridge(isDefaultGateway=True)),
    "bridge isDefaultGateway, IPv6": Story(bridge(V6, isDefaultGateway=True)),
    "bridge dual stack": Story(bridge(V4, V6, isDefaultGateway=True), pods=2),
    "bridge dual stack, default routes of IPAM": Story(bridge(V4, V6, isGateway=True, routes=[DEFAULT4, DEFAULT6])),
    "bridge dual stack, default routes with gw": Story(bridge(V4, V6, isDefaultGateway=True, routes=[
        {**DEFAULT4, "gw": "10.22.0.9"}, {**DEFAULT6, "gw": "fd00:22::9"}])),
    "bridge dual stack, mtu": Story(bridge(V4, V6, isGateway=True, mtu=1400)),
    "bridge, mtu of 9000": Story(bridge(isGateway=True, mtu=9000)),
    "bridge, negative mtu": Story(bridge(isGateway=True, mtu=-1)),
    "bridge hairpinMode": Story(bridge(isGateway=True, hairpinMode=True)),
    "bridge promiscMode": Story(bridge(isGateway=True, promiscMode=True), pods=2),
    "bridge enabledad": Story(bridge(V4, V6, isGateway=True, enabledad=True)),
    "bridge forceAddress": Story(bridge(isGateway=True, forceAddress=True), before=OLD_BRIDGE),
    "bridge forceAddress, nothing to replace": Story(bridge(isGateway=True, forceAddress=True)),
    "bridge forceAddress, overlapping IPv6": Story(
        bridge(V6, isGateway=True, forceAddress=True),
        before=["ip link add br0 type bridge", "ip addr add fd00:22::7/60 dev br0 nodad",
                "ip addr add fd00:9::7/64 dev br0 nodad"]),
    "bridge, two IPv6 gateways": Story(bridge(V6, "fd00:23::/64", isDefaultGateway=True)),
    "bridge macspoofchk": Story(bridge(V4, V6, isGateway=True, macspoofchk=True), pods=2),
    # Go 1.1.1 always keeps a port's default VLAN, and does not support vlanTrunk.
    "bridge vlan": Story(bridge(vlan=100, preserveDefaultVlan=True), needs=VLANS),
    "bridge vlan, isGateway": Story(bridge(V4, V6, vlan=100, preserveDefaultVlan=True, isGateway=True), needs=VLANS),
    "bridge vlan, without addresses": Story(l2(vlan=4094, preserveDefaultVlan=True), needs=VLANS, check=False,
                                            why="CHECK calls IPAM"),
    "bridge vlan, its bridge is there": Story(bridge(vlan=7, preserveDefaultVlan=True, isDefaultGateway=True), before=[
        "ip link add br0 address 02:00:00:00:00:01 type bridge vlan_filtering 1 vlan_default_pvid 5",
        "ip link set br0 up"], pods=2, needs=VLANS),
    "bridge that is there with addresses": Story(bridge(), before=OLD_BRIDGE),
    "bridge that is there with the gateway": Story(bridge(isGateway=True), before=[
        "ip link add br0 type bridge", "ip addr add 10.22.0.1/24 dev br0"]),
    "bridge that is there with another mtu": Story(bridge(isGateway=True, mtu=1400), before=[
        "ip link add br0 mtu 1300 type bridge ageing_time 1000", "ip link set br0 up"]),
    "bridge that is there, promiscuous": Story(bridge(promiscMode=True), before=[
        "ip link add br0 type bridge", "ip link set br0 promisc on"]),
    "bridge, forwarding on already": Story(bridge(isGateway=True), before=[
        "sysctl -q -w net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1"]),
    "MAC of CNI_ARGS": Story(bridge(ipam=static(("10.22.0.5/24", None))), args=f"IgnoreUnknown=1;MAC={MAC}"),
    "MAC of args": Story(bridge(args={"cni": {"mac": MAC}})),
    "MAC of the capability": Story(bridge(runtimeConfig={"mac": MAC})),
    "MAC three times": Story(bridge(runtimeConfig={"mac": MAC}, args={"cni": {"mac": "02:00:00:00:00:02"}}),
                             args="IgnoreUnknown=true;MAC=02:00:00:00:00:03"),
    "MAC twice": Story(bridge(args={"cni": {"mac": MAC}}), args="IgnoreUnknown=1;MAC=02:00:00:00:00:03"),
    "MAC with dashes, in capitals": Story(l2(runtimeConfig={"mac": "02-AA-BB-CC-DD-EE"}), check=False, why="no IPAM"),
    "dns of the configuration": Story(bridge(dns={"nameservers": ["10.0.0.53"], "domain": "a.example",
                                                  "search": ["b.example"], "options": ["ndots:2"]})),
    "dns over that of IPAM": Story(bridge(dns={"search": ["c.example"]}, ipam=static(
        ("10.22.0.5/24", None), dns={"nameservers": ["10.0.0.54"], "domain": "a.example"}))),
    "dns empty, but there": Story(bridge(dns={"search": []}, ipam=static(
        ("10.22.0.5/24", None), dns={"nameservers": ["10.0.0.54"]}))),
    "dns of IPAM": Story(bridge(dns={}, ipam=static(("10.22.0.5/24", None), dns={"domain": "a.example"}))),
    "ptp, dns of IPAM": Story(ptp(ipam=static(("10.22.0.5/24", "10.22.0.1"), dns={"domain": "a.example"})),
                              quick_dad=True),
    "routes with gw": Story(bridge(isGateway=True, routes=[
        {"dst": "192.0.2.0/24", "gw": "10.22.0.7"}, {"dst": "198.51.100.0/24", "gw": "10.22.0.8"}, DEFAULT4])),
    "routes of IPv6 with gw": Story(bridge(V6, isGateway=True, routes=[
        {"dst": "2001:db8::/32", "gw": "fd00:22::7"}, DEFAULT6])),
    "a route through the first gateway": Story(
        bridge(isGateway=True, routes=[{"dst": "192.0.2.0/24"}]), check=False, why="older peer: a route without gw "
        "has to be without gateway in the kernel too; the reference compares the gateway only if given"),
    "ptp, a route through the first gateway": Story(
        ptp(routes=[{"dst": "192.0.2.0/24"}]), quick_dad=True, check=False, why="older peer: a route without gw"),
    "routes without any gateway": Story(bridge(ipam=static(("10.22.0.5/24", None),
                                                           routes=[{"dst": "192.0.2.0/24"}]))),
    "one prefix by two gateways": Story(bridge(routes=[
        {"dst": "192.0.2.0/24", "gw": "10.22.0.7"}, {"dst": "192.0.2.0/24", "gw": "10.22.0.8"}])),
    "static, several addresses": Story(bridge(isGateway=True, ipam=static(
        ("10.22.0.5/24", "10.22.0.1"), ("10.22.0.6/24", "10.22.0.1"), ("fd00:22::5/64", "fd00:22::1")))),
    "static by CNI_ARGS": Story(bridge(ipam=static()), args="IgnoreUnknown=1;IP=10.22.0.7/24,10.22.1.7/24;"
                                                            "GATEWAY=10.22.0.1"),
    "static by the capability": Story(bridge(ipam=static(), runtimeConfig={"ips": ["10.22.0.7/24", "fd00:22::7/64"]})),
    "static /31": Story(bridge(ipam=static(("10.22.0.4/31", None)))),
    "static, a host address": Story(bridge(ipam=static(("10.22.0.5/32", None))), check=False,
                                    why="the reference's CHECK fails every /32"),
    "an address asked for": Story(bridge(isGateway=True, runtimeConfig={"ips": ["10.22.0.77/24"]})),
    "an address asked for in args": Story(bridge(isGateway=True, args={"cni": {"ips": ["10.22.0.77"]}})),
    "ranges of the capability": Story(bridge(isGateway=True, ipam=host_local("10.23.0.0/24"), runtimeConfig={
        "ipRanges": [[{"subnet": "fd00:23::/64", "rangeStart": "fd00:23::100"}]]})),
    "the single range of old": Story(bridge(isGateway=True, ipam={
        "type": "host-local", "dataDir": "@here", "subnet": V4, "rangeStart": "10.22.0.10", "rangeEnd": "10.22.0.12",
        "gateway": "10.22.0.254"}), pods=3),
    "keys in other spelling": Story({"CNIVersion": "1.0.0", "NAME": "net-a", "type": "bridge", "BRIDGE": "br7",
                                     "isgateway": True, "ipam": host_local(V4)}),
    "null values": Story(bridge(isGateway=None, mtu=None, dns=None, args=None, runtimeConfig=None)),
    "another interface name": Story(bridge(isGateway=True), ifname="net-15-letters-"[:15]),
    "ptp": Story(ptp(), quick_dad=True),
    "ptp, default route": Story(ptp(routes=[DEFAULT4]), quick_dad=True),
    "ptp, route with gw, mtu, dns": Story(ptp(mtu=1300, dns={"domain": "a.example"}, routes=[
        {"dst": "192.0.2.0/24", "gw": "10.22.0.1"}]), quick_dad=True),
    "ptp, dns empty, but there": Story(ptp(dns={"options": []}, ipam=static(
        ("10.22.0.5/24", "10.22.0.1"), dns={"nameservers": ["10.0.0.54"]})), quick_dad=True),
    "ptp, three pods": Story(ptp(routes=[DEFAULT4]), pods=3, quick_dad=True),
    "ptp dual stack": Story(ptp(V4, V6, routes=[DEFAULT4, DEFAULT6])),
    "ptp IPv6, two pods": Story(ptp(V6, routes=[DEFAULT6]), pods=2, quick_dad=True),
    "ptp with static": Story(ptp(ipam=static(("10.22.0.5/24", "10.22.0.1"), ("10.23.0.5/24", "10.23.0.1"))),
                             quick_dad=True),
}
for _version in ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0"):
    _check = _version >= "0.4.0"
    STORIES[f"bridge in {_version}"] = Story(bridge(V4, V6, isDefaultGateway=True, cniVersion=_version,
                                                    dns={"domain": "a.example"}), check=_check)
    STORIES[f"bridge in {_version}, no dns"] = Story(bridge(isGateway=True, cniVersion=_version), check=_check)
    STORIES[f"ptp in {_version}"] = Story(ptp(routes=[DEFAULT4], cniVersion=_version), check=_check, quick_dad=True)
    STORIES[f"loopback in {_version}"] = Story(loopback(cniVersion=_version), check=_check)
STORIES["bridge without a version"] = Story(
    {key: value for key, value in bridge().items() if key != "cniVersion"}, check=False)
STORIES["loopback without a version"] = Story(
    {key: value for key, value in loopback().items() if key != "cniVersion"}, check=False)
