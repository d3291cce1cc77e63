"""Requests that both implementations must reject: a table of inputs, and of reasons for different error texts."""

from side_by_side.chained_stories import INGRESS, bandwidth
from side_by_side.device_stories import UPLINK, device
from side_by_side.stories import bridge, host_local, l2, loopback, ptp, static

NO_NETNS = "/run/netns/fcni-is-not-there"


class Bad:
    """A call that must fail. conf: a dict, or bytes for `plugin`. before: commands that run first, on the host, or in
    the pod if they begin with "pod:"; "fill": the ADD of another pod. twice: make the same ADD first. variables:
    environment variables of the call, see Side.environment; None omits a variable.

    differs: why the two error texts differ, or "" if they are equal. taken_by: the implementation ("go", "fastcni")
    that accepts the request; `differs` says why.
    """

    def __init__(self, conf, command="ADD", *, plugin=None, before=(), differs="", taken_by="",
                 twice=False, **variables):
        self.conf, self.command, self.plugin, self.before = conf, command, plugin, before
        self.differs, self.taken_by = differs, taken_by
        self.twice, self.variables = twice, variables


def hostdev(**keys):
    return device("host-device", master=None, **keys)


def ipam(**keys):
    """Return a configuration of host-local as the called plugin, without an interface plugin."""
    return {"cniVersion": "1.0.0", "name": "net-a", "type": "host-local",
            "ipam": {"type": "host-local", "dataDir": "@here", **keys}}


def ranges(*subnets, **keys):
    return ipam(ranges=[[{"subnet": subnet, **keys}] for subnet in subnets])


def alone(*addresses, **keys):
    """Return a configuration of static as the called plugin, without an interface plugin."""
    return {"cniVersion": "1.0.0", "name": "net-a", "type": "static", "ipam": static(*addresses), **keys}


IN_THE_WAY = "pod:ip link add eth0 type veth peer name other"
# A bridge in use: a port gives the bridge a carrier. The bridge's MAC is fixed, so ports do not change the MAC.
BRIDGE = ("ip link add br0 address 02:00:00:00:00:01 type bridge", "ip link set br0 up",
          "ip link add port0 master br0 up type veth peer name ext0", "ip link set ext0 up")
CABLE = UPLINK[:1]  # the link stays down, because the carrier of a link that is up changes after a delay
FULL = ranges("10.22.0.0/30")
JSON = "fastcni names the key and the value, Go names its own types; the texts begin in the same way"
OLDER = "Go 1.1.1 has an older text; fastcni has the newest reference's"
KERNEL = "fastcni quotes the kernel's message, and prints addresses in the usual form"
LENIENT = "DEL only warns of a bad value, because a typo must not keep a pod from ending"
WHERE = "fastcni names the key"
WHY = "fastcni says why, after the text of the reference plugin"
EARLY = "fastcni rejects the value before any change, so its text names no failed step"
BAD = {
    # -- the environment --
    "no CNI_CONTAINERID": Bad(bridge(), cid=None),
    "no CNI_CONTAINERID in DEL": Bad(bridge(), "DEL", cid=None),
    "no CNI_IFNAME": Bad(bridge(), ifname=None),
    "no CNI_PATH": Bad(bridge(), CNI_PATH=None),
    "no CNI_NETNS": Bad(bridge(), CNI_NETNS=None),
    "no CNI_NETNS in CHECK": Bad(bridge(), "CHECK", CNI_NETNS=None),
    "nothing but the command": Bad(bridge(), CNI_NETNS=None, cid=None, ifname=None, CNI_PATH=None),
    "empty variables": Bad(bridge(), CNI_NETNS="", cid="", ifname=""),
    "a container id with a slash": Bad(bridge(), cid="../../etc/passwd"),
    "a container id with a space": Bad(bridge(), "DEL", cid="a b"),
    "a long interface name": Bad(bridge(), ifname="sixteen-letters-"),
    "an interface called ..": Bad(bridge(), ifname=".."),
    "an interface with a slash": Bad(bridge(), ifname="a/b"),
    "an interface with a colon": Bad(bridge(), "DEL", ifname="eth0:1"),
    "an interface with a tab": Bad(bridge(), ifname="eth\t0"),
    "an unknown command": Bad(bridge(), "FROB"),
    "bad CNI_ARGS": Bad(bridge(), args="IP"),
    "CNI_ARGS that end in a semicolon": Bad(bridge(), args="IgnoreUnknown=1;"),
    "CNI_ARGS with two equal signs": Bad(bridge(), args="MAC=a=b"),
    "DEL, CNI_ARGS with two equal signs": Bad(bridge(), "DEL", args="MAC=a=b", taken_by="fastcni", differs=LENIENT),
    "unknown CNI_ARGS": Bad(bridge(), args="K=V;K2=V2"),
    "IgnoreUnknown that is no boolean": Bad(bridge(), args="IgnoreUnknown=Perhaps"),
    "MAC of CNI_ARGS reaches host-local": Bad(bridge(), args="MAC=02:11:22:33:44:55"),
    "a bad MAC in CNI_ARGS": Bad(bridge(), args="IgnoreUnknown=1;MAC=nonsense", differs=EARLY),
    "a bad MAC in runtimeConfig": Bad(bridge(runtimeConfig={"mac": "02:11"}), differs=EARLY),
    "a bad IP in CNI_ARGS": Bad(ranges("10.22.0.0/24"), args="IP=10.22.0", differs=OLDER),
    # -- stdin --
    "an empty stdin": Bad(b"", plugin="bridge"),
    "half a configuration": Bad(b'{"cniVersion": "1.0.0", "name": ', plugin="bridge"),
    "no JSON": Bad(b"bridge", plugin="bridge"),
    "a list": Bad(b"[1]", plugin="bridge", differs=JSON),
    "trailing words": Bad(b'{"cniVersion": "1.0.0", "name": "a", "type": "bridge"} more', plugin="bridge"),
    "a name that is a number": Bad(b'{"cniVersion": "1.0.0", "name": 5}', plugin="bridge", differs=JSON),
    "no name": Bad(b'{"cniVersion": "1.0.0", "type": "bridge"}', plugin="bridge"),
    "an empty name": Bad(bridge(name="")),
    "a name with dots and slashes": Bad(bridge(name="../net")),
    "a name with a space": Bad(bridge(name="a b"), "DEL"),
    "a version of the future": Bad(bridge(cniVersion="9.0.0")),
    "a version that is none": Bad(bridge(cniVersion="one")),
    "CHECK in a version without it": Bad(bridge(cniVersion="0.3.1"), "CHECK"),
    "mtu as text": Bad(bridge(mtu="1500"), differs=JSON),
    "isGateway as text": Bad(bridge(isGateway="yes"), differs=JSON),
    "ipam as a list": Bad(bridge(ipam=[]), differs=JSON),
    "DEL, ipam as a list": Bad(bridge(ipam=[]), "DEL", differs=JSON),
    "DEL, mtu as text": Bad(bridge(mtu="1500"), "DEL", taken_by="fastcni", differs=LENIENT),
    "DEL, a vlan of 4095": Bad(bridge(vlan=4095), "DEL", taken_by="fastcni", differs=LENIENT),
    "ptp DEL, ipMasq as text": Bad(ptp(ipMasq="yes"), "DEL", taken_by="fastcni", differs=LENIENT),
    "a prevResult of another family": Bad(bridge(prevResult={"cniVersion": "0.4.0"}), "CHECK"),
    "loopback, a prevResult of another family": Bad(loopback(prevResult={"cniVersion": "0.4.0"})),
    "CHECK without prevResult": Bad(bridge(ipam=static(("10.22.0.5/24", None))), "CHECK"),
    "ptp CHECK without prevResult": Bad(ptp(ipam=static(("10.22.0.5/24", None))), "CHECK"),
    # -- namespaces and links --
    "a namespace that is not there": Bad(bridge(), CNI_NETNS=NO_NETNS),
    "ptp, a namespace that is not there": Bad(ptp(), CNI_NETNS=NO_NETNS),
    "loopback, a namespace that is not there": Bad(loopback(), CNI_NETNS=NO_NETNS,
        differs="fastcni says why it opens the namespace, as bridge and ptp do"),
    "a namespace that is a file": Bad(bridge(), CNI_NETNS="/bin/sh",
        differs="fastcni says what the number of the file system means"),
    "DEL, a namespace that is a file": Bad(bridge(), "DEL", CNI_NETNS="/bin/sh", taken_by="fastcni",
        differs="a mount point without its namespace is a plain file, and DEL has to succeed"),
    "the host's own namespace": Bad(l2(), CNI_NETNS="/proc/self/ns/net", taken_by="go",
        differs="Go 1.1.1 does not check this; the newest reference rejects it after the changes"),
    "an interface that is there": Bad(bridge(), before=[IN_THE_WAY], differs=OLDER),
    "ptp, an interface that is there": Bad(ptp(), before=[IN_THE_WAY], differs=OLDER),
    "the same ADD twice": Bad(bridge(), twice=True, differs=OLDER),
    "a bridge that is a veth": Bad(bridge(), before=["ip link add br0 type veth peer name other"]),
    "a bridge called lo": Bad(bridge(bridge="lo")),
    "a bridge name that is too long": Bad(bridge(bridge="sixteen-letters-"), differs=EARLY),
    "loopback with a foreign address": Bad(loopback(), before=["pod:ip addr add 10.1.1.1/32 dev lo"]),
    "loopback CHECK, lo is down": Bad(loopback(), "CHECK"),
    "a bridge with another address": Bad(bridge(isGateway=True), before=[
        *BRIDGE, "ip addr add 10.99.0.1/16 dev br0"]),
    "a bridge with an overlapping IPv6 address": Bad(bridge("fd00:22::/64", isGateway=True), before=[
        *BRIDGE, "ip addr add fd00:22::9/64 dev br0 nodad"]),
    "hairpin and promisc": Bad(bridge(hairpinMode=True, promiscMode=True), differs=OLDER),
    "a vlan of 4095": Bad(bridge(vlan=4095)),
    "an unreachable gateway": Bad(bridge(routes=[{"dst": "192.0.2.0/24", "gw": "172.16.0.1"}]), differs=KERNEL),
    "the same route twice": Bad(bridge(routes=2 * [{"dst": "192.0.2.0/24", "gw": "10.22.0.7"}]), differs=KERNEL),
    "isDefaultGateway, and a default route without gw": Bad(
        bridge(isDefaultGateway=True, routes=[{"dst": "0.0.0.0/0"}]), taken_by="fastcni",
        differs="fastcni adds the route once; Go adds it twice and fails"),
    "a route with host bits": Bad(bridge(routes=[{"dst": "192.0.2.7/24", "gw": "10.22.0.7"}]), taken_by="fastcni",
        differs="fastcni routes to the network that contains the address; the kernel refuses host bits in a route"),
    "an mtu of a million": Bad(bridge(mtu=1000000), differs=EARLY),
    "a bridge without addresses in 0.2.0": Bad(l2(cniVersion="0.2.0")),
    # -- host-device --
    "host-device, no device named": Bad(hostdev()),
    "host-device, a device that is not there": Bad(hostdev(device="up9")),
    "host-device, a MAC that nobody has": Bad(hostdev(hwaddr="02:11:22:33:44:55")),
    "host-device, a bad MAC": Bad(hostdev(hwaddr="02:11")),
    "host-device, a path outside of /sys": Bad(hostdev(kernelpath="/etc")),
    "host-device, a path that is not there": Bad(hostdev(kernelpath="/sys/devices/nowhere")),
    "host-device, a PCI address that is not there": Bad(hostdev(pciBusID="ffff:00:00.0"),
        differs="fastcni names the link of the driver that it reads"),
    "host-device, a deviceID that is not there": Bad(hostdev(runtimeConfig={"deviceID": "ffff:00:00.0"}),
        differs=OLDER),
    "host-device, an interface that is there": Bad(hostdev(device="up0"), before=[
        "ip link add up0 type veth peer name other", IN_THE_WAY], differs=OLDER),
    "host-device, CHECK without prevResult": Bad(hostdev(device="lo", ipam=static(("10.22.0.5/24", None))), "CHECK"),
    # -- links on a master --
    "macvlan, an unknown mode": Bad(device("macvlan", mode="tunnel"), before=CABLE),
    "macvlan, a master that is not there": Bad(device("macvlan"), differs=WHERE),
    "macvlan, no master and no default route": Bad(device("macvlan", master=None)),
    "macvlan, an mtu above the master's": Bad(device("macvlan", mtu=1501), before=CABLE),
    "macvlan, a bad MAC": Bad(device("macvlan", mac="02:11"), before=CABLE, differs=EARLY),
    "macvlan, an interface that is there": Bad(device("macvlan"), before=(*CABLE, IN_THE_WAY), differs=KERNEL),
    "ipvlan, an unknown mode": Bad(device("ipvlan", mode="l4"), before=CABLE),
    "ipvlan, a master that is not there": Bad(device("ipvlan")),
    "ipvlan, no master and no default route": Bad(device("ipvlan", master=None)),
    "ipvlan behind two interfaces": Bad(device("ipvlan", master=None, prevResult={
        "cniVersion": "1.0.0", "interfaces": [{"name": "up0"}, {"name": "up1"}]}), before=CABLE),
    "vlan without a master": Bad(device("vlan", master=None), differs=OLDER),
    "vlan, a master that is not there": Bad(device("vlan"), differs=WHERE),
    "vlan, an id of 4095": Bad(device("vlan", vlanId=4095), before=CABLE, differs="Go's text includes 4095"),
    "vlan, an mtu above the master's": Bad(device("vlan", mtu=1501), before=CABLE),
    # -- IPAM as a delegate --
    "an IPAM plugin that is not there": Bad(bridge(ipam={"type": "no-such-plugin"})),
    "an IPAM plugin with a slash": Bad(bridge(ipam={"type": "../host-local"})),
    "DEL, an IPAM plugin that is not there": Bad(bridge(ipam={"type": "no-such-plugin"}), "DEL"),
    "ptp without ipam": Bad(ptp(ipam={})),
    "ptp DEL without ipam": Bad(ptp(ipam={}), "DEL"),
    "static without addresses": Bad(bridge(ipam=static())),
    "ptp without a gateway": Bad(ptp(ipam=static(("10.22.0.5/24", None))), differs=EARLY),
    "a delegate's error": Bad(bridge(ipam=host_local("10.22.0.0/31"))),
    # -- host-local --
    "no ipam": Bad({"cniVersion": "1.0.0", "name": "a", "type": "host-local"}),
    "no ranges": Bad(ipam()),
    "a subnet that is no CIDR": Bad(ranges("10.22.0.0"), differs=WHERE),
    "a subnet with host bits": Bad(ranges("10.22.0.7/24")),
    "a subnet that is too small": Bad(ranges("10.22.0.0/31")),
    "an IPv6 subnet that is too small": Bad(ranges("fd00:22::/127")),
    "a range without a subnet": Bad(ipam(ranges=[[{}]]), differs=WHY),
    "an empty range set": Bad(ipam(ranges=[[]])),
    "a range set of both families": Bad(ipam(ranges=[[{"subnet": "10.22.0.0/24"}, {"subnet": "fd00:22::/64"}]])),
    "rangeStart outside": Bad(ranges("10.22.0.0/24", rangeStart="10.23.0.1")),
    "rangeEnd outside": Bad(ranges("10.22.0.0/24", rangeEnd="10.23.0.1")),
    "rangeStart after rangeEnd": Bad(ranges("10.22.0.0/24", rangeStart="10.22.0.9", rangeEnd="10.22.0.5"), differs=WHY),
    "rangeStart that is no address": Bad(ranges("10.22.0.0/24", rangeStart="first"), differs=WHERE),
    "a gateway that is no address": Bad(ranges("10.22.0.0/24", gateway="010.1.1.1"), differs=WHERE),
    "ranges that overlap": Bad(ipam(ranges=[[{"subnet": "10.22.0.0/24"}, {"subnet": "10.22.0.0/16"}]])),
    "range sets that overlap": Bad(ranges("10.22.0.0/24", "10.22.0.0/16")),
    "two sets of one family in 0.2.0": Bad({**ranges("10.22.0.0/24", "10.23.0.0/24"), "cniVersion": "0.2.0"}),
    "DEL with a bad subnet": Bad(ranges("10.22.0.7/24"), "DEL", taken_by="fastcni", differs=LENIENT),
    "DEL with a dataDir that is a number": Bad(ipam(subnet="10.22.0.0/24", dataDir=7), "DEL", differs=JSON),
    "CHECK of what was never added": Bad(ranges("10.22.0.0/24"), "CHECK"),
    "a full range": Bad(FULL, before=["fill"]),
    "the gateway asked for": Bad({**ranges("10.22.0.0/24"), "runtimeConfig": {"ips": ["10.22.0.1"]}}),
    "an address out of range asked for": Bad({**ranges("10.22.0.0/24"), "runtimeConfig": {"ips": ["10.23.0.5"]}}),
    "an address asked for that is held": Bad({**FULL, "runtimeConfig": {"ips": ["10.22.0.2"]}}, before=["fill"]),
    "an address asked for that is none": Bad({**ranges("10.22.0.0/24"), "args": {"cni": {"ips": ["10.22.0"]}}},
                                            differs=OLDER),
    "the same pod twice": Bad(ranges("10.22.0.0/24"), twice=True),
    "resolvConf that is not there": Bad(ipam(ranges=[[{"subnet": "10.22.0.0/24"}]], resolvConf="/nowhere/resolv.conf")),
    "dataDir below a file": Bad({**ranges("10.22.0.0/24"), "ipam": {
        "type": "host-local", "subnet": "10.22.0.0/24", "dataDir": "/bin/sh"}}, differs=KERNEL),
    # -- static --
    "static, an address without a prefix": Bad(alone(("10.22.0.5", None))),
    "static, a bad gateway": Bad(alone(("10.22.0.5/24", "gw")), differs=WHERE),
    "static, a bad IP in CNI_ARGS": Bad(alone(), args="IP=10.22.0.5"),
    "static, a bad GATEWAY in CNI_ARGS": Bad(alone(), args="IP=10.22.0.5/24;GATEWAY=gw"),
    "static, a bad address in the capability": Bad(alone(runtimeConfig={"ips": ["10.22.0.5"]})),
    "static, two addresses in 0.2.0": Bad(alone(("10.22.0.5/24", None), ("10.22.0.6/24", None), cniVersion="0.2.0")),
    "static CHECK without prevResult": Bad(alone(("10.22.0.5/24", None)), "CHECK"),
    # -- bandwidth --
    "bandwidth, a rate without a burst": Bad(bandwidth(egressRate=8000)),
    "bandwidth, a burst without a rate": Bad(bandwidth(ingressBurst=8000), "CHECK"),
    "bandwidth, a burst of 4 GB": Bad(bandwidth(ingressRate=8, ingressBurst=8 * 0xFFFFFFFF)),
    "bandwidth without prevResult": Bad(bandwidth(**INGRESS)),
    "bandwidth CHECK without prevResult": Bad(bandwidth(**INGRESS), "CHECK"),
    "bandwidth of fewer bits than a byte has": Bad(
        bandwidth(ingressRate=7, ingressBurst=80), differs="the reference says that there is no prevResult"),
    "bandwidth DEL of what ADD refuses": Bad(
        bandwidth(egressRate=8000), "DEL", taken_by="fastcni", differs="DEL ignores a value that ADD rejects"),
}
