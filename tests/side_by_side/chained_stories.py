"""Configurations of chained plugins, each behind one that gives the pod its link."""

from side_by_side.stories import MAC, Story, bridge, static

VERSIONS = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0")
BEHIND = bridge(isGateway=True)


def tuning(**keys):
    return {"cniVersion": "1.0.0", "name": "net-a", "type": "tuning", "dataDir": "@here/tuning", **keys}


CHAINED_STORIES = {
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
CHAINED_STORIES |= {f"tuning in {version}": Story(tuning(mtu=1400, cniVersion=version), check=version >= "0.4.0",
                                                  behind=bridge(isGateway=True, cniVersion=version))
                    for version in VERSIONS}
