"""Configurations of chained plugins. Each follows an interface plugin that adds the pod's link."""

from side_by_side.stories import DEFAULT4, MAC, V4, V6, Story, bridge, ptp, static

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0")
VRFS = ("vrf",)
BEHIND = bridge(isGateway=True)


def sbr(**keys):
    return {"cniVersion": "1.0.0", "name": "net-a", "type": "sbr", **keys}


def vrf(**keys):
    return {"cniVersion": "1.0.0", "name": "net-a", "type": "vrf", "vrfname": "blue", **keys}


def tuning(**keys):
    return {"cniVersion": "1.0.0", "name": "net-a", "type": "tuning", "dataDir": "@here/tuning", **keys}


def bandwidth(**keys):
    return {"cniVersion": "1.0.0", "name": "net-a", "type": "bandwidth", **keys}


INGRESS = {"ingressRate": 20_000_000, "ingressBurst": 400_000}
EGRESS = {"egressRate": 8000, "egressBurst": 80000}
IFB = ("ifb",)
CHAINED_STORIES = {
    "bandwidth": Story(bandwidth(**INGRESS, **EGRESS), behind=BEHIND, pods=2, needs=IFB),
    "bandwidth of ingress": Story(bandwidth(**INGRESS), behind=BEHIND),
    "bandwidth of egress": Story(bandwidth(**EGRESS), behind=BEHIND, needs=IFB),
    "bandwidth of a ptp with a small mtu": Story(bandwidth(**EGRESS), behind=ptp(mtu=1300), needs=IFB, quick_dad=True),
    "bandwidth by the capability": Story(bandwidth(runtimeConfig={"bandwidth": {**INGRESS, **EGRESS}}), behind=BEHIND,
                                         needs=IFB),
    "bandwidth by both": Story(bandwidth(**INGRESS, runtimeConfig={"bandwidth": EGRESS}), behind=BEHIND),
    "bandwidth of many bits": Story(bandwidth(ingressRate=1 << 36, ingressBurst=1 << 32, egressRate=1_000_001,
                                              egressBurst=99_999), behind=BEHIND, needs=IFB),
    "bandwidth without limits": Story(bandwidth(ingressRate=0, egressBurst=0), behind=BEHIND),
    "tuning without keys": Story(tuning(), behind=BEHIND),
    "tuning": Story(tuning(mac=MAC, promisc=True, mtu=1400, allmulti=True, sysctl={
        "net.ipv4.ip_forward": "1", "net/ipv4/conf/eth0/rp_filter": "2"}), behind=BEHIND, pods=2),
    "tuning, MAC with dashes, in capitals": Story(
        tuning(mac="02-AA-BB-CC-DD-EE"), behind=BEHIND, check=False, why="the reference compares MACs as texts"),
    "tuning IFNAME": Story(tuning(sysctl={"net.ipv4.conf.IFNAME.arp_notify": "1"}), behind=BEHIND, check=False,
                           why="older peer: its CHECK looks for a link called IFNAME"),
    "tuning by args": Story(tuning(mtu=1400, sysctl={"net.ipv4.ip_forward": "0"}, args={"cni": {
        "mtu": 1300, "promisc": True, "allmulti": True, "sysctl": {"net.ipv4.ip_forward": "1"}}}), behind=BEHIND),
    "tuning, MAC four times": Story(
        tuning(mac="02:00:00:00:00:01", runtimeConfig={"mac": "02:00:00:00:00:03"}, args={"cni": {"mac": MAC}}),
        behind=bridge(isGateway=True, ipam=static(("10.22.0.5/24", None))),
        args="IgnoreUnknown=1;MAC=02:00:00:00:00:02"),
    "tuning, MAC of the capability": Story(tuning(mac="02:00:00:00:00:01", runtimeConfig={"mac": MAC}), behind=BEHIND),
}
CHAINED_STORIES |= {
    "sbr": Story(sbr(), behind=bridge(V4, V6, isDefaultGateway=True), pods=2),
    "sbr, IPv4 alone": Story(sbr(), behind=bridge(isGateway=True, routes=[
        DEFAULT4, {"dst": "192.0.2.0/24", "gw": "10.22.0.7"}])),
    "sbr, IPv6 alone": Story(sbr(), behind=bridge(V6, isDefaultGateway=True, routes=[
        {"dst": "2001:db8::/32", "gw": "fd00:22::7"}])),
    "sbr, two IPv4 addresses": Story(sbr(), behind=bridge(isGateway=True, ipam=static(
        ("10.22.0.5/24", "10.22.0.1"), ("10.22.0.6/24", "10.22.0.1"), routes=[{"dst": "192.0.2.0/24"}]))),
    "sbr, without gateways": Story(sbr(), behind=bridge(isGateway=True, ipam=static(("10.22.0.5/24", None)))),
    "sbr behind ptp": Story(sbr(), behind=ptp(routes=[DEFAULT4]), quick_dad=True),
}
CHAINED_STORIES |= {
    "vrf": Story(vrf(), behind=bridge(V4, V6, isDefaultGateway=True), pods=2, needs=VRFS),
    "vrf with routes": Story(vrf(table=1000), needs=VRFS, behind=bridge(V4, V6, isGateway=True, routes=[
        {"dst": "192.0.2.0/24", "gw": "10.22.0.7"}, {"dst": "2001:db8::/32", "gw": "fd00:22::7"}])),
    "vrf behind ptp": Story(vrf(), behind=ptp(routes=[DEFAULT4]), quick_dad=True, needs=VRFS),
}
CHAINED_STORIES |= {f"vrf in {version}": Story(vrf(cniVersion=version), check=version >= "0.4.0", needs=VRFS,
                                               behind=bridge(V4, V6, isGateway=True, cniVersion=version))
                    for version in VERSIONS[3:]}
CHAINED_STORIES |= {f"sbr in {version}": Story(sbr(cniVersion=version), check=version >= "0.4.0",
                                               behind=bridge(V4, V6, isGateway=True, cniVersion=version))
                    for version in VERSIONS}
CHAINED_STORIES |= {f"bandwidth in {version}": Story(bandwidth(**INGRESS, **EGRESS, cniVersion=version), needs=IFB,
                                                     check=version >= "0.4.0",
                                                     behind=bridge(isGateway=True, cniVersion=version))
                    for version in VERSIONS if version >= "0.3.0"}
CHAINED_STORIES |= {f"tuning in {version}": Story(tuning(mtu=1400, cniVersion=version), check=version >= "0.4.0",
                                                  behind=bridge(isGateway=True, cniVersion=version))
                    for version in VERSIONS}
