"""Configurations of the plugins that add one link to a pod, and change nothing else on the host."""

from side_by_side.stories import DEFAULT4, DEFAULT6, MAC, V4, V6, Story, host_local, static

UPLINK = ("ip link add up0 type veth peer name ext0", "ip link set up0 up", "ip link set ext0 up")
DEFAULT_ROUTE = (*UPLINK, "ip addr add 10.22.0.250/24 dev up0", "ip route add default via 10.22.0.254")
DNS = {"nameservers": ["10.0.0.53"], "search": ["a.example"]}


def device(kind, *subnets, routes=None, **keys):
    """Return a configuration with the master up0, without keys that are None."""
    ipam = host_local(*subnets, **({"routes": routes} if routes else {}))
    conf = {"cniVersion": "1.0.0", "name": "net-a", "type": kind, "master": "up0", "ipam": ipam, **keys}
    return {key: value for key, value in conf.items() if value is not None}


def stories(kind, needs, own, **more):
    """Return the stories of the plugin `kind`. own: keys that every configuration of this plugin has."""
    def on(*subnets, pods=1, before=UPLINK, check=True, why="", args="", **keys):
        return Story(device(kind, *subnets, **{**own, **keys}), pods=pods, before=before, check=check, why=why,
                     quick_dad=True, needs=needs, **({"args": args} if args else {}))

    found = {
        kind: on(),
        f"{kind} dual stack, default routes": on(V4, V6, routes=[DEFAULT4, DEFAULT6]),
        f"{kind}, mtu, dns": on(mtu=1400, dns=DNS),
        f"{kind}, dns of IPAM is left out": on(ipam=static(("10.22.0.5/24", None), dns={"domain": "a.example"})),
        f"{kind}, another interface name": Story(device(kind, **own), before=UPLINK, quick_dad=True, needs=needs,
                                                 ifname="up0"),
    }
    for version in ("0.1.0", "0.3.1", "0.4.0"):
        found[f"{kind} in {version}"] = on(V4, V6, cniVersion=version, check=version >= "0.4.0")
    return found | {f"{kind}{suffix}": on(**how) for suffix, how in more.items()}


DEVICE_STORIES = {
    **stories("macvlan", ["macvlan"], {}, **{
        ", three pods": {"pods": 3}, " private": {"mode": "private"}, " vepa": {"mode": "vepa"},
        " passthru": {"mode": "passthru"}, ", master of the default route": {"master": None, "before": DEFAULT_ROUTE},
        ", MAC of the key": {"mac": MAC},
        ", MAC of CNI_ARGS": {"ipam": static(("10.22.0.5/24", None)), "args": f"IgnoreUnknown=1;MAC={MAC}"},
        ", MAC of the capability": {"mac": "02:00:00:00:00:01", "runtimeConfig": {"mac": MAC}},
        " without addresses": {"ipam": None}, " without addresses, dns": {"ipam": {}, "dns": DNS}}),
    **stories("ipvlan", ["ipvlan"], {}, **{
        ", three pods": {"pods": 3}, " l3": {"mode": "l3"}, " l3s": {"mode": "l3s"},
        ", master of the default route": {"master": None, "before": DEFAULT_ROUTE, "check": False,
                                          "why": "the reference's CHECK looks for a master without a name"}}),
    **stories("host-device", [], {"master": None, "device": "up0"}, **{
        " without addresses": {"ipam": None}, " without addresses, dns": {"ipam": {}, "dns": DNS},
        " by hwaddr": {"device": None, "hwaddr": MAC, "before": (*UPLINK, f"ip link set up0 address {MAC}")},
        ", with configured addresses": {"before": DEFAULT_ROUTE},
        ", down": {"before": UPLINK[:1]}, ", of a bridge": {"before": (
            *UPLINK, "ip link add br0 address 02:00:00:00:00:01 type bridge", "ip link set up0 master br0 mtu 1400")},
    }),
    **stories("vlan", ["8021q"], {"vlanId": 5}, **{", id 0": {"vlanId": 0}, ", id 4094": {"vlanId": 4094}}),
}
