"""Plugins that give the pod one link. Each test runs for each plugin of the table DEVICES."""

import pytest
from lab.node import addresses, links, routes, run, sysctl

DUAL = ("10.22.0.0/24", "fd00:22::/64")
MACS = [f"0a:00:00:00:00:0{digit}" for digit in "1234"]


class Device:
    """The differences between these plugins.

    keys      the plugin's own keys in a configuration; conf() adds host-device's `dataDir`
    kind      the kind of the pod's link, as ip(8) names it; "" if the moved device decides
    needs     features of the kernel that the plugin needs
    bad       keys that ADD rejects, and that DEL must not read
    taken     the error of an ADD if the pod already has a link named CNI_IFNAME
    announced the link's sysctls (arp_notify, ndisc_notify)
    dns       whether the result has the configuration's `dns`; otherwise it has IPAM's
    """

    def __init__(self, keys, kind, needs=(), *, bad, taken, announced, dns=True):
        self.keys, self.kind, self.needs, self.bad, self.taken = keys, kind, needs, bad, taken
        self.announced, self.dns = announced, dns

    @property
    def on_master(self):
        return "master" in self.keys


def renamed(kind):
    return f'failed to rename {kind} to "eth0"'


DEVICES = {
    "dummy": Device({}, "dummy", ["dummy"], bad={"args": {"cni": {"mac": "x"}}}, taken=renamed("dummy"),
                    announced=("0", "0"), dns=False),
    "host-device": Device({"device": "up0"}, "", bad={"device": "a/b", "hwaddr": "x"}, announced=("0", "0"),
                          taken='failed to rename host device "up0" to "eth0": File exists'),
    "ipvlan": Device({"master": "up0"}, "ipvlan", ["ipvlan"], taken=renamed("ipvlan"), announced=("1", "1"),
                     bad={"mode": "l4", "master": "up9", "mtu": -1, "prevResult": {"cniVersion": "9"}}),
    "macvlan": Device({"master": "up0"}, "macvlan", taken=renamed("macvlan"), announced=("1", "1"),
                      bad={"mode": "tunnel", "master": "up9", "mac": "x", "mtu": -1}),
    "tap": Device({}, "tun", ["tun"], taken="failed to create tap: Device or resource busy (errno 16)",
                  announced=("1", "0"),
                  bad={"mac": "x", "mtu": -1, "owner": "x", "bridge": "none", "selinuxContext": "x"}),
    "vlan": Device({"master": "up0", "vlanId": 5}, "vlan", ["8021q"], taken=renamed("vlan"), announced=("0", "0"),
                   bad={"vlanId": 9999, "master": "", "mtu": -1}),
}


def devices(wanted=lambda device: True):
    """Return the parameters of a test: the plugins of the table for which wanted() is true."""
    return pytest.mark.parametrize("kind", [pytest.param(kind, marks=pytest.mark.needs(*device.needs))
                                            for kind, device in DEVICES.items() if wanted(device)], indirect=True)


@pytest.fixture
def kind(request):
    return request.param


@pytest.fixture
def device(kind):
    return DEVICES[kind]


@pytest.fixture
def conf(node, neighbor, kind, device, tmp_path):
    more = {"dataDir": str(tmp_path / "kept")} if kind == "host-device" else {}
    return node.conf(*DUAL, type=kind, bridge=None, **device.keys, **more)


def without_addresses(conf):
    """Return a configuration whose IPAM range has no address."""
    return {**conf, "ipam": {**conf["ipam"], "ranges": [[{"subnet": "10.22.0.0/24", "rangeStart": "10.22.9.1"}]]}}


def only_ipv4(conf):
    return {**conf, "ipam": {**conf["ipam"], "ranges": [[{"subnet": "10.22.0.0/24"}]]}}


# -- ADD ----------------------------------------------------------------------------------------------------

@devices()
def test_result_names_the_link_and_its_addresses_and_del_removes_both(node, pod, device, conf):
    result = node.add(conf, pod)
    link = links(pod)["eth0"]
    assert result["interfaces"] == [{"name": "eth0", "mac": link["address"], "sandbox": f"/run/netns/{pod}"}]
    assert [(ip["address"], ip["interface"]) for ip in result["ips"]] == [("10.22.0.2/24", 0), ("fd00:22::2/64", 0)]
    assert addresses("eth0", pod) == ["10.22.0.2/24", "fd00:22::2/64"]
    assert "UP" in link["flags"]
    assert not device.kind or link["linkinfo"]["info_kind"] == device.kind
    assert set(links()) - {"up0"} == {"lo"}             # ADD leaves no link on the host
    node.check(conf, pod, result)
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo"}
    assert node.held() == {}
    assert set(links()) == {"lo", "up0"}


@devices()
def test_routes_lead_into_the_link_and_are_checked(node, pod, conf):
    conf["ipam"]["routes"] = [{"dst": "0.0.0.0/0"}, {"dst": "2001:db8::/32"}]
    result = node.add(conf, pod)
    assert ("default", "10.22.0.1") in routes(pod)
    assert ("2001:db8::/32", "fd00:22::1") in routes(pod, family=6)
    node.check(conf, pod, result)
    run("ip", "route", "del", "default", netns=pod)
    assert "0.0.0.0/0" in node.check_refused(conf, pod, result)


@devices()
def test_dns_is_the_configurations_not_ipams_and_dummys_is_ipams(node, pod, device, conf):
    conf["ipam"] = {"type": "static", "addresses": [{"address": "10.22.0.9/24"}], "dns": {"domain": "a.example"}}
    expected = "b.example" if device.dns else "a.example"
    assert node.add({**conf, "dns": {"domain": "b.example"}}, pod)["dns"] == {"domain": expected}


@devices(lambda device: device.kind != "ipvlan")          # an ipvlan has its master's MAC
@pytest.mark.parametrize("asked, mac", [
    ({"env": MACS[1]}, MACS[1]),
    ({"env": MACS[1], "args": {"cni": {"mac": MACS[2]}}}, MACS[2]),
    ({"args": {"cni": {"mac": MACS[2]}}, "runtimeConfig": {"mac": MACS[3]}}, MACS[3])],
    ids=["CNI_ARGS", "args", "runtimeConfig"])
def test_mac_of_the_runtime_overrides_args_and_args_override_the_variable(node, pod, conf, asked, mac):
    keys = {key: value for key, value in asked.items() if key != "env"}
    env = {"CNI_ARGS": f"IgnoreUnknown=1;MAC={asked['env']}"} if "env" in asked else {}
    result = node.add({**conf, **keys}, pod, env=env)
    assert links(pod)["eth0"]["address"] == mac
    assert result["interfaces"][0]["mac"] == mac


@devices(lambda device: device.kind not in ("dummy", "ipvlan", "vlan"))
def test_without_ipam_the_link_is_up_and_has_no_address(node, pod, conf):
    conf = {**conf, "ipam": None}
    result = node.add(conf, pod)
    assert "UP" in links(pod)["eth0"]["flags"]
    assert addresses("eth0", pod) == []
    assert "ips" not in result
    node.check(conf, pod, result)


@devices()
def test_addresses_are_announced_and_duplicates_are_not_looked_for(node, pod, device, conf):
    node.add(conf, pod)
    assert sysctl("net/ipv6/conf/eth0/accept_dad", pod) == "0"
    announced = [sysctl(f"net/{name}", pod) for name in ("ipv4/conf/eth0/arp_notify", "ipv6/conf/eth0/ndisc_notify")]
    assert announced == list(device.announced)


# ext0 must receive the probe of the duplicate address detection
@devices(lambda device: device.kind in ("ipvlan", "macvlan", ""))
def test_duplicate_address_is_detected_where_the_network_asks_for_it(node, pod, neighbor, conf):
    run("ip", "addr", "add", "fd00:22::2/64", "dev", "ext0", "nodad", netns=neighbor)
    conf["ipam"]["ranges"] = [[{"subnet": "fd00:22::/64"}]]
    before = node.left(pod)
    assert "fd00:22::2 in DADFAILED state" in node.refused("ADD", {**conf, "enabledad": True}, pod)["msg"]
    assert node.left(pod) == before


@devices()
def test_disableipv6_leaves_none_on_the_link(node, pod, conf):
    node.add({**only_ipv4(conf), "disableIPv6": True}, pod)
    assert "inet6" not in run("ip", "addr", "show", "eth0", netns=pod)


@devices()
def test_a_name_that_the_host_has_too_is_free_in_the_pod(node, pod, device, conf):
    run("ip", "link", "add", "same0", "type", "veth", "peer", "other")
    node.add(conf, pod, ifname="same0")
    assert links(pod)["same0"]["linkinfo"]["info_kind"] == (device.kind or "veth")
    assert "same0" in links()


@devices()
def test_pod_that_has_the_name_keeps_its_link(node, pod, device, conf):
    run("ip", "link", "add", "eth0", "type", "veth", "peer", "other", netns=pod)
    before = node.left(pod)
    assert device.taken in node.refused("ADD", conf, pod)["msg"]
    assert node.left(pod) == before


@devices(lambda device: device.on_master)
def test_master_can_be_in_the_pod(node, pod, conf):
    run("ip", "link", "set", "up0", "netns", pod, "name", "inner")
    run("ip", "link", "set", "inner", "up", netns=pod)
    conf.update(master="inner", linkInContainer=True)
    result = node.add(conf, pod)
    assert links(pod)["eth0"]["link"] == "inner"
    node.check(conf, pod, result)
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo", "inner"}
    error = node.refused("ADD", {**conf, "master": "up0"}, pod)     # the plugin looks for the master only in the pod
    assert (error["code"], error["msg"]) == (7, 'failed to lookup master "up0": Link not found')
    assert node.held() == {}


# -- CHECK --------------------------------------------------------------------------------------------------

@devices()
@pytest.mark.parametrize("args, says", [
    ("link set eth0 down", "Interface eth0 is down"),
    ("addr del 10.22.0.2/24 dev eth0", "Failed to match addr 10.22.0.2/24 on interface eth0"),
    ("link del eth0", "Interface name eth0 not found")])
def test_check_reports_each_difference(node, pod, conf, args, says):
    result = node.add(conf, pod)
    run("ip", *args.split(), netns=pod)
    assert node.check_refused(conf, pod, result) == says


@devices(lambda device: device.kind != "ipvlan")
def test_check_reports_another_mac(node, pod, conf):
    result = node.add(conf, pod)
    run("ip", "link", "set", "eth0", "address", MACS[0], netns=pod)
    mac = result["interfaces"][0]["mac"]
    assert node.check_refused(conf, pod, result) == f"Interface eth0 Mac doesn't match: {mac}"


@devices(lambda device: device.kind)
def test_check_reports_another_kind_of_link(node, pod, device, conf):
    result = node.add(conf, pod)
    run("ip", "link", "del", "eth0", netns=pod)
    run("ip", "link", "add", "eth0", "address", result["interfaces"][0]["mac"], "type", "veth", netns=pod)
    assert node.check_refused(conf, pod, result) == f"Error: Container interface eth0 not of type {device.kind}"


@devices(lambda device: device.on_master)
def test_check_reports_a_missing_master(node, pod, conf):
    result = node.add(conf, pod)
    assert "up9" in node.check_refused({**conf, "master": "up9"}, pod, result)


# -- DEL, GC, STATUS ----------------------------------------------------------------------------------------

@devices()
@pytest.mark.parametrize("gone", ["link", "netns", "variable"])
def test_del_of_a_missing_link_succeeds_and_frees_the_address(node, pod, conf, gone):
    node.add(conf, pod)
    if gone == "link":
        run("ip", "link", "del", "eth0", netns=pod)
    elif gone == "netns":
        run("ip", "netns", "del", pod)
    for _ in range(2):
        node.delete(conf, "" if gone == "variable" else pod, cid=f"c-{pod}")
    assert node.held() == {}


@devices(lambda device: device.taken.startswith("failed to rename") and device.kind)
def test_del_removes_a_link_that_a_killed_add_has_not_renamed(node, pod, conf):
    """A server was killed after it had created a link in the pod, and before it renamed the link."""
    run("ip", "link", "add", "fcni.eth0", "type", "veth", "peer", "other", netns=pod)
    node.delete(conf, pod)
    assert set(links(pod)) == {"lo"}
    node.add(conf, pod)


@devices(lambda device: device.on_master)
def test_del_succeeds_where_the_master_is_gone(node, pod, conf):
    """The reference plugin vlan returns an error in this case."""
    node.add(conf, pod)
    run("ip", "link", "del", "up0")
    node.delete(conf, pod)
    assert node.held() == {}


@devices()
def test_del_ignores_keys_that_only_add_needs(node, pod, device, conf):
    node.add(conf, pod)
    node.delete({**conf, **device.bad}, pod)
    assert set(links(pod)) == {"lo"}


@devices()
def test_add_refuses_the_keys_that_del_ignores(node, pod, device, conf):
    assert node.refused("ADD", {**conf, **device.bad}, pod)["code"] in (6, 7)


@devices()
def test_gc_frees_addresses_of_pods_that_are_gone(node, pod, kind, pod_netns, conf):
    other = pod_netns()
    node.add(conf, pod)
    run("ip", "link", "add", "up1", "type", "veth", "peer", "other")
    second = {"host-device": {"device": "up1"}, "vlan": {"vlanId": 6}}.get(kind, {})
    node.add({**conf, **second}, other)
    node.ok("GC", {**conf, "cni.dev/valid-attachments": [{"containerID": f"c-{other}", "ifname": "eth0"}]})
    assert {content.split()[0] for content in node.held().values()} == {f"c-{other}"}


@devices()
def test_status_includes_that_of_ipam(node, conf):
    node.ok("STATUS", conf)
    assert node.refused("STATUS", without_addresses(conf))["code"]


@devices(lambda device: device.on_master)
def test_status_reports_a_missing_master(node, conf):
    error = node.refused("STATUS", {**conf, "master": "up9"})
    assert (error["code"], error["msg"]) == (50, 'master "up9" does not exist: Link not found')
    node.ok("STATUS", {**conf, "master": "up9", "linkInContainer": True})
