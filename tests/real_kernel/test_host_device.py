"""host-device: each way to name a device, the way into the pod and back, MACs, DPDK, CHECK, STATUS, and DEL of what is
gone.

The devices are veth, with a cable to a station. /sys is what a test writes, and once the kernel's own.
"""

import os
import subprocess

import pytest
from real_kernel.node import Inside, addresses, ip_json, links, routes, run, source_seen, sysctl

from fastcni.kernel import sysfs
from fastcni.kit import lending

DUAL = ("10.22.0.0/24", "fd00:22::/64")
MAC, OTHER_MAC = "0a:00:00:00:00:01", "0a:00:00:00:00:02"
PCI, SF, PATH = "0000:5e:00.1", "mlx5_core.sf.4", "devices/pci0000:5d/0000:5e:00.1"
DPDK = ("vfio-pci", "uio_pci_generic", "igb_uio")


@pytest.fixture
def far(node, pod_netns):
    """A station at the other end of the device up0."""
    name = pod_netns()
    node.uplink(name)
    run("ip", "addr", "add", "192.0.2.9/24", "dev", "up0")
    return name


@pytest.fixture
def conf(node, far, tmp_path):
    return node.conf(*DUAL, type="host-device", bridge=None, device="up0", dataDir=str(tmp_path / "kept"))


@pytest.fixture
def layer2(conf):
    return {**conf, "ipam": None}


class Machine:
    """A /sys of a test's own."""

    def __init__(self, root):
        self.root = root

    def add(self, folder, *names, driver="", mac=None):
        """A device with links of those names; their MACs are the kernel's, if no other is said."""
        (self.root / folder).mkdir(parents=True, exist_ok=True)
        for name in names:
            net = self.root / folder / "net" / name
            net.mkdir(parents=True)
            (net / "address").write_text(f"{mac or links()[name]['address']}\n")
        if driver:
            (self.root / folder / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")

    def pci(self, *names, device=PCI, driver="ice", **more):
        self.add(f"bus/pci/devices/{device}", *names, driver=driver, **more)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(sysfs, "ROOT", f"{tmp_path}/sys/")
    return Machine(tmp_path / "sys")


def naming(conf, **keys):
    """The configuration with these keys in place of `device`."""
    return {**{key: value for key, value in conf.items() if key != "device"}, **keys}


def device():
    """What the host has as up0, with its addresses, but without what the kernel gets to know later."""
    found = {key: value for key, value in links()["up0"].items() if key not in ("operstate", "qdisc", "flags")}
    return found, "UP" in links()["up0"]["flags"], addresses("up0")


# -- there and back ---------------------------------------------------------------------------------------

def test_device_moves_into_the_pod_and_back(node, pod, far, conf):
    before = links()["up0"]
    result = node.add(conf, pod)
    assert source_seen(pod, far, "10.22.0.254") == "10.22.0.2"
    assert source_seen(pod, far, "fd00:22::fe") == "fd00:22::2"
    assert [ip["interface"] for ip in result["ips"]] == [0, 0] and "dns" not in result
    assert result["interfaces"] == [{"name": "eth0", "mac": before["address"], "sandbox": f"/run/netns/{pod}"}]
    assert addresses("eth0", pod) == ["10.22.0.2/24", "fd00:22::2/64"]
    assert set(links()) == {"lo"} and links(pod)["eth0"]["ifalias"] == "up0"
    node.check(conf, pod, result)
    node.delete(conf, pod)
    after = links()["up0"]
    assert set(links(pod)) == {"lo"} and node.held() == {} and addresses("up0") == []
    assert "ifalias" not in after and "UP" not in after["flags"]
    assert all(after[key] == before[key] for key in ("address", "mtu", "txqlen", "linkinfo"))


def test_one_device_serves_one_pod_after_the_other(node, pod, pod_netns, conf):
    for name in (pod, pod_netns()):
        node.check(conf, name, node.add(conf, name))
        assert node.refused("ADD", conf, pod, ifname="eth1")["code"] == 11
        node.delete(conf, name)


def test_device_can_have_the_same_name_in_the_pod(node, pod, conf):
    result = node.add(conf, pod, ifname="up0")
    assert links(pod)["up0"]["ifalias"] == "up0"
    node.check(conf, pod, result, ifname="up0")
    node.delete(conf, pod, ifname="up0")
    assert set(links()) == {"lo", "up0"}


def test_pod_and_host_may_have_the_names_that_the_device_leaves(node, pod, conf):
    run("ip", "-n", pod, "link", "add", "up0", "type", "veth", "peer", "other")
    run("ip", "link", "add", "eth0", "type", "veth", "peer", "other")
    node.add(conf, pod)
    assert links(pod)["eth0"]["ifalias"] == "up0" and set(links(pod)) == {"lo", "eth0", "up0", "other"}
    node.delete(conf, pod)
    assert set(links()) == {"lo", "eth0", "other", "up0"} and set(links(pod)) == {"lo", "up0", "other"}


def test_without_ipam_the_link_is_up_and_has_no_address_and_the_result_no_dns(node, pod, layer2):
    result = node.add({**layer2, "dns": {"domain": "example.org"}}, pod)
    assert "UP" in links(pod)["eth0"]["flags"] and addresses("eth0", pod) == []
    assert set(result) == {"cniVersion", "interfaces"}
    node.check(layer2, pod, result)
    node.delete(layer2, pod)
    assert set(links()) == {"lo", "up0"}


def test_dns_is_the_configurations_not_ipams(node, pod, conf, tmp_path):
    (tmp_path / "resolv.conf").write_text("nameserver 192.0.2.1\n")
    conf["ipam"]["resolvConf"] = str(tmp_path / "resolv.conf")
    assert "dns" not in node.add(conf, pod)
    node.delete(conf, pod)
    assert node.add({**conf, "dns": {"nameservers": ["192.0.2.2"]}}, pod)["dns"] == {"nameservers": ["192.0.2.2"]}


def test_routes_lead_into_the_device(node, pod, conf):
    conf["ipam"]["routes"] = [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]
    result = node.add(conf, pod)
    assert ("default", "10.22.0.1") in routes(pod) and ("default", "fd00:22::1") in routes(pod, family=6)
    node.check(conf, pod, result)


@pytest.mark.parametrize("wanted", [False, True])
def test_duplicate_address_is_detected_where_the_network_asks_for_it(node, pod, far, conf, wanted):
    run("ip", "-n", far, "addr", "add", "fd00:22::2/64", "dev", "far0", "nodad")
    conf["ipam"]["ranges"] = [[{"subnet": "fd00:22::/64"}]]
    if not wanted:
        node.add(conf, pod)
        assert sysctl("net/ipv6/conf/eth0/accept_dad", pod) == "0"
        return
    error = node.refused("ADD", {**conf, "enabledad": True}, pod)
    assert "fd00:22::2 in DADFAILED state" in error["msg"] and set(links()) == {"lo", "up0"} and node.held() == {}


def test_disableipv6_leaves_none_on_the_link_until_it_is_back(node, pod, conf):
    conf["ipam"]["ranges"] = [[{"subnet": "10.22.0.0/24"}]]
    node.add({**conf, "disableIPv6": True}, pod)
    assert "inet6" not in run("ip", "-n", pod, "addr", "show", "eth0")
    node.delete(conf, pod)
    assert sysctl("net/ipv6/conf/up0/disable_ipv6") == "0"


def test_no_descriptor_is_left_open(node, pod, conf):
    before = set(os.listdir("/proc/self/fd"))
    node.add(conf, pod)
    node.delete(conf, pod)
    node.refused("ADD", {**conf, "device": "up9"}, pod)
    assert set(os.listdir("/proc/self/fd")) == before


# -- which device -----------------------------------------------------------------------------------------

def test_device_by_its_mac(node, pod, conf):
    run("ip", "link", "set", "up0", "address", MAC)
    node.add(naming(conf, hwaddr="0A-00-00-00-00-01"), pod)
    assert links(pod)["eth0"]["ifalias"] == "up0"


@pytest.mark.parametrize("altname", ["enp94s0", "a-name-of-more-than-fifteen-letters"])
def test_device_by_an_alternative_name_comes_back_under_its_own(node, pod, conf, altname):
    run("ip", "link", "property", "add", "dev", "up0", "altname", altname)
    node.add({**conf, "device": altname}, pod)
    assert links(pod)["eth0"]["ifalias"] == "up0"
    node.delete(conf, pod)
    assert links()["up0"]["altnames"] == [altname]


def test_device_whose_pod_ended_without_del_is_found_under_the_pods_name(node, pod, conf):
    """The kernel gives a network card back, when the namespace ends, as it is called there."""
    run("ip", "link", "set", "up0", "down")
    run("ip", "link", "set", "up0", "name", "net1", "alias", "up0")
    result = node.add(conf, pod)
    node.check(conf, pod, result)
    node.delete(conf, pod)
    assert set(links()) == {"lo", "up0"}


@pytest.mark.parametrize("folder, keys", [
    (PATH, {"kernelpath": f"/sys/{PATH}"}), (PATH, {"kernelpath": f"/sys/{PATH}/"}),
    (f"bus/pci/devices/{PCI}", {"pciBusID": PCI}), (f"bus/pci/devices/{PCI}/virtio2", {"pciBusID": PCI}),
    (f"bus/pci/devices/{PCI}", {"runtimeConfig": {"deviceID": PCI}}),
    (f"bus/auxiliary/devices/{SF}", {"runtimeConfig": {"deviceID": SF}})])
def test_device_by_its_place_in_the_machine(node, pod, conf, machine, folder, keys):
    machine.pci()
    machine.add(folder, "up0")
    conf = naming(conf, **keys)
    result = node.add(conf, pod)
    assert links(pod)["eth0"]["ifalias"] == "up0"
    node.check(conf, pod, result)
    node.delete(naming(conf, runtimeConfig=None), pod)
    assert set(links()) == {"lo", "up0"}


def test_of_several_links_the_first_by_name_is_taken(node, pod, conf, machine):
    run("ip", "link", "add", "up1", "type", "veth", "peer", "up00")
    machine.pci("up1", "up0", "up00")
    for ifname, name in (("eth0", "up0"), ("eth1", "up00"), ("eth2", "up1")):
        node.add(naming(conf, pciBusID=PCI), pod, ifname=ifname)
        assert links(pod)[ifname]["ifalias"] == name


@pytest.mark.parametrize("keys, name", [
    ({"pciBusID": "0000:01:00.0", "runtimeConfig": {"deviceID": PCI}}, "up0"),
    ({"pciBusID": PCI, "runtimeConfig": {"deviceID": SF}}, "up1"),
    ({"device": "up1", "runtimeConfig": {"deviceID": PCI}}, "up1"), ({"hwaddr": MAC, "pciBusID": PCI}, "up1"),
    ({"device": "up0", "hwaddr": MAC}, "up0"), ({"kernelpath": "/sys/devices/a", "pciBusID": PCI}, "up1"),
    ({"kernelpath": "/sys/devices/a", "hwaddr": MAC}, "up2")])
def test_device_goes_before_mac_before_path_before_bus_and_the_runtimes_id_before_the_configurations(
        node, pod, conf, machine, keys, name):
    run("ip", "link", "add", "up1", "type", "veth", "peer", "other")
    run("ip", "link", "add", "up2", "type", "veth", "peer", "another")
    run("ip", "link", "set", "up2" if "kernelpath" in keys else "up1", "address", MAC)
    machine.pci("up0")
    machine.add(f"bus/auxiliary/devices/{SF}", "up1")
    machine.add("devices/a", "up1")
    node.add(naming(conf, **keys), pod)
    assert links(pod)["eth0"]["ifalias"] == name


def test_sys_of_another_namespace_is_not_believed(node, pod, conf, machine):
    """A server whose /sys is of another namespace than the caller's sees names that mean other links here."""
    machine.pci("up0", mac=MAC)
    before = device()
    error = node.refused("ADD", naming(conf, pciBusID=PCI), pod)
    assert error["msg"] == f"failed to find host device: no net directory under pci device {PCI}"
    assert device() == before


@pytest.fixture
def kernels_sys(node, monkeypatch):
    """The /sys of the test's network namespace, mounted by a process in a mount namespace of its own."""
    script = "mount -t sysfs sysfs /sys && echo mounted && exec sleep 60"
    process = subprocess.Popen(["unshare", "--mount", "sh", "-c", script], stdout=subprocess.PIPE)
    try:
        assert process.stdout.readline() == b"mounted\n"
        monkeypatch.setattr(sysfs, "ROOT", f"/proc/{process.pid}/root/sys/")
        yield
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_device_by_its_path_in_the_kernels_own_sys(node, pod, conf, kernels_sys):
    """lo is in that folder, too: it comes first where nothing is called `a`."""
    run("ip", "link", "set", "up0", "down")
    run("ip", "link", "set", "up0", "name", "a")
    conf = naming(conf, kernelpath="/sys/devices/virtual")
    node.ok("STATUS", conf)
    result = node.add(conf, pod)
    assert links(pod)["eth0"]["ifalias"] == "a"
    node.check(conf, pod, result)
    node.delete(conf, pod)
    assert set(links()) == {"lo", "a"}


@pytest.mark.parametrize("keys, says", [
    ({"device": "up9"}, "Link not found"), ({"hwaddr": MAC}, "failed to find physical interface"),
    ({"kernelpath": "/sys/devices/nowhere"}, 'failed to find network devices at "/sys/devices/nowhere/net"'),
    ({"pciBusID": PCI}, f"no net directory under pci device {PCI}"),
    ({"runtimeConfig": {"deviceID": SF}}, f"no net directory under auxiliary device {SF}")])
def test_device_that_is_not_there_may_come_back(node, pod, conf, machine, keys, says):
    machine.pci()
    machine.add(f"bus/auxiliary/devices/{SF}")
    assert node.refused("ADD", naming(conf, **keys), pod) == {
        "code": 11, "msg": f"failed to find host device: {says}",
        "details": "a device that a pod has is not on the host until that pod is deleted"}
    assert node.held() == {}


@pytest.mark.parametrize("keys, says", [
    ({}, 'specify either "device", "hwaddr", "kernelpath" or "pciBusID"'),
    ({"device": ""}, 'specify either "device", "hwaddr", "kernelpath" or "pciBusID"'),
    ({"kernelpath": "devices/a"}, 'kernel device path "devices/a" must be absolute and begin with /sys/devices/'),
    ({"kernelpath": "/sys/devices/../../etc"}, 'kernel device path "/sys/devices/../../etc" must be absolute'),
    ({"kernelpath": "/sys/devices/a\0"}, "must be absolute and begin with /sys/devices/"),
    ({"hwaddr": "0a:00"}, 'failed to parse MAC address "0a:00": address 0a:00: invalid MAC address'),
    ({"pciBusID": "../.."}, 'pciBusID: expected a name, not "../.."'),
    ({"runtimeConfig": {"deviceID": ".."}}, 'runtimeConfig.deviceID: expected a name, not ".."'),
    ({"device": 128 * "a"}, f'device: expected a name, not "{128 * "a"}"'),
    ({"device": "up0\0"}, 'device: expected a name, not "up0'),
    ({"device": 7}, "device: expected a string, got number 7"),
    ({"device": "up0", "dataDir": "/a\0"}, "dataDir: a path has no NUL byte"),
    ({"device": "up0", "runtimeConfig": {"deviceID": "0000:01:00.0"}},
     "runtime config DeviceID 0000:01:00.0 not found or unsupported")])
def test_bad_names_of_a_device_are_refused(node, pod, conf, machine, keys, says):
    before = device()
    error = node.refused("ADD", naming(conf, **{"dataDir": None, **keys}), pod)
    assert error["code"] == 7 and says in error["msg"] and device() == before


# -- DPDK -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("driver", DPDK)
@pytest.mark.parametrize("keys", [{"pciBusID": PCI}, {"runtimeConfig": {"deviceID": PCI}},
                                  {"pciBusID": PCI, "device": "up0"}])
def test_device_of_a_dpdk_driver_stays_and_the_result_has_its_addresses(node, pod, conf, machine, driver, keys):
    machine.pci(driver=driver)
    before, conf = device(), naming(conf, dns={"domain": "example.org"}, **keys)
    result = node.add(conf, pod)
    assert result["interfaces"] == [{"name": "eth0", "sandbox": f"/run/netns/{pod}"}]
    assert [(ip["address"], ip["interface"]) for ip in result["ips"]] == [("10.22.0.2/24", 0), ("fd00:22::2/64", 0)]
    assert result["dns"] == {"domain": "example.org"}
    assert set(links(pod)) == {"lo"} and device() == before
    node.check(conf, pod, result)
    assert "Failed to find address added by container" in node.check_refused(conf, pod, result, cid="other")
    node.delete(conf, pod)
    assert node.held() == {} and device() == before


def test_dpdk_without_ipam_gives_the_name_alone(node, pod, layer2, machine):
    machine.pci(driver="vfio-pci")
    conf = naming(layer2, pciBusID=PCI, dns={"domain": "example.org"})
    result = node.add(conf, pod)
    assert result == {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": f"/run/netns/{pod}"}]}
    node.check(conf, pod, result)
    assert node.refused("CHECK", conf, pod)["msg"] == "Required prevResult missing"
    node.delete(conf, pod)


def test_mac_of_a_dpdk_device_is_the_programs(node, pod, layer2, machine):
    machine.pci(driver="vfio-pci")
    reply = node.call("ADD", naming(layer2, pciBusID=PCI, runtimeConfig={"mac": MAC}), pod)
    assert reply.status == 0 and b"driver of DPDK" in reply.stderr


def test_pci_device_without_a_driver_is_an_error_but_not_of_del(node, pod, conf, machine):
    machine.pci("up0")
    conf = naming(conf, pciBusID=PCI)
    result = node.add(conf, pod)
    (machine.root / f"bus/pci/devices/{PCI}/driver").unlink()
    says = f"error with host device: lstat /sys/bus/pci/devices/{PCI}/driver: no such file or directory"
    assert node.check_refused(conf, pod, result) == says
    assert node.refused("ADD", conf, pod, ifname="eth1")["msg"] == says
    node.delete(conf, pod)
    assert set(links()) == {"lo", "up0"} and node.held() == {}


# -- what fails -------------------------------------------------------------------------------------------

def test_device_keeps_even_its_addresses_when_ipam_has_none(node, pod, conf):
    conf["ipam"]["ranges"] = [[{"subnet": "10.22.0.0/24", "rangeStart": "10.22.0.5", "rangeEnd": "10.22.0.5"}]]
    node.add({**conf, "type": "host-local"}, pod, cid="other")
    before = device()
    assert node.refused("ADD", conf, pod)["code"] == 11 and device() == before and set(links(pod)) == {"lo"}


@pytest.mark.needs("bridge")
def test_device_is_as_it_was_when_the_pod_cannot_be_configured(node, pod, conf):
    """But for its addresses and routes, which go when a link changes its namespace."""
    run("ip", "link", "add", "br0", "type", "bridge")
    run("ip", "addr", "flush", "dev", "up0")
    run("ip", "link", "set", "up0", "master", "br0", "mtu", "1400", "alias", "to the left switch")
    before = node.left(pod), links()["up0"]["ifalias"]
    conf["ipam"]["routes"] = [{"dst": "198.51.100.0/24", "gw": "172.16.0.1"}]
    error = node.refused("ADD", {**conf, "runtimeConfig": {"mac": MAC}}, pod)
    assert "failed to add route '198.51.100.0/24" in error["msg"] and "undoing" not in error.get("details", "")
    assert (node.left(pod), links()["up0"]["ifalias"]) == before
    assert "UP" in links()["up0"]["flags"] and os.listdir(conf["dataDir"]) == [".fastcni"]


def test_name_taken_in_the_pod_leaves_the_device_alone(node, pod, conf):
    run("ip", "-n", pod, "link", "add", "eth0", "type", "veth", "peer", "other")
    before = node.left(pod), device()
    assert node.refused("ADD", conf, pod) == {
        "code": 999, "msg": 'failed to rename host device "up0" to "eth0": File exists',
        "details": "the pod has an interface of that name; was it added before?"}
    assert (node.left(pod), device()) == before
    reply = node.call("DEL", conf, pod)                 # the runtime's answer to a failed ADD
    assert reply.status == 0 and b"alias is not set" in reply.stderr and (node.left(pod), device()) == before


def test_name_taken_on_the_host_keeps_the_device_in_the_pod_until_it_is_free(node, pod, conf):
    node.add(conf, pod)
    run("ip", "link", "add", "up0", "type", "veth", "peer", "other")
    before = node.left(pod), links(pod)["eth0"]["ifalias"]
    for _ in range(2):
        assert node.refused("DEL", conf, pod) == {
            "code": 999, "msg": 'failed to rename host device "eth0" to "up0": File exists',
            "details": "the host has an interface of that name; the device stays in the pod, and DEL can be repeated "
                       "when the name is free"}
        assert (node.left(pod), links(pod)["eth0"]["ifalias"]) == before        # its address is not free either
    run("ip", "link", "del", "up0")
    node.delete(conf, pod)
    assert set(links()) == {"lo", "up0"} and node.held() == {}


def test_name_taken_at_the_last_moment_takes_the_device_back(node, pod, conf, monkeypatch):
    """The kernel has moved it by then, and not renamed."""
    monkeypatch.setattr(lending, "check_free", lambda *_: None)
    run("ip", "-n", pod, "link", "add", "eth0", "type", "veth", "peer", "other")
    run("ip", "addr", "flush", "dev", "up0")
    before = node.left(pod)
    assert node.refused("ADD", conf, pod)["msg"] == 'failed to move link "up0": File exists (errno 17)'
    assert node.left(pod) == before
    node.add(conf, pod, ifname="eth1")
    run("ip", "link", "add", "up0", "type", "veth", "peer", "other")
    assert node.refused("DEL", conf, pod, ifname="eth1")["msg"] == 'failed to move link "eth1": File exists (errno 17)'
    assert links(pod)["eth1"]["ifalias"] == "up0" and set(links()) == {"lo", "up0", "other"}
    run("ip", "link", "del", "up0")
    node.delete(conf, pod, ifname="eth1")
    assert "ifalias" not in links()["up0"]


def test_link_that_cannot_leave_its_namespace_is_an_error(node, pod, conf):
    before = node.left(pod)
    error = node.refused("ADD", {**conf, "device": "lo"}, pod)
    assert 'failed to move link "lo": ' in error["msg"] and node.left(pod) == before


# -- MACs -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("env, args, runtime, mac", [
    (MAC, None, None, MAC), (MAC, OTHER_MAC, None, OTHER_MAC), (MAC, MAC, OTHER_MAC, OTHER_MAC)])
def test_mac_of_the_runtime_goes_before_args_before_the_variable_and_del_takes_it_back(
        node, pod, conf, layer2, env, args, runtime, mac):
    own = links()["up0"]["address"]
    keys = {**layer2, "args": {"cni": {"mac": args}}, "runtimeConfig": {"mac": runtime}}
    result = node.add(keys, pod, env={"CNI_ARGS": f"K8S_POD_NAME=a;MAC={env}"})
    assert links(pod)["eth0"]["address"] == mac == result["interfaces"][0]["mac"]
    node.check(keys, pod, result)
    node.delete(layer2, pod)            # which need not be told
    assert links()["up0"]["address"] == own and os.listdir(conf["dataDir"]) == [".fastcni"]


def test_mac_that_the_device_has_is_nothing_to_keep(node, pod, conf):
    node.add({**conf, "runtimeConfig": {"mac": links()["up0"]["address"]}}, pod)
    assert not os.path.exists(conf["dataDir"])


def test_mac_that_the_kernel_refuses_is_an_error_and_the_device_stays(node, pod, conf):
    run("ip", "addr", "flush", "dev", "up0")
    before = node.left(pod)
    error = node.refused("ADD", {**conf, "runtimeConfig": {"mac": "01:00:00:00:00:01"}}, pod)
    assert 'failed to set the MAC of "eth0"' in error["msg"] and node.left(pod) == before


def test_folder_that_cannot_be_written_is_an_error_and_the_device_stays(node, pod, conf):
    run("ip", "addr", "flush", "dev", "up0")
    before = node.left(pod)
    error = node.refused("ADD", {**conf, "dataDir": "/proc/nowhere", "runtimeConfig": {"mac": MAC}}, pod)
    assert error["code"] == 5 and "/proc/nowhere" in error["msg"] and node.left(pod) == before


# -- DEL, CHECK, STATUS, GC -------------------------------------------------------------------------------

@pytest.mark.parametrize("gone", ["link", "netns", "variable", "nothing, twice"])
def test_del_of_what_is_gone_succeeds_and_frees_the_address(node, pod, conf, gone):
    node.add({**conf, "runtimeConfig": {"mac": MAC}}, pod)
    if gone == "link":
        run("ip", "-n", pod, "link", "del", "eth0")
    elif gone == "netns":
        run("ip", "netns", "del", pod)
    for _ in range(2):
        node.delete(conf, "" if gone == "variable" else pod, cid=f"c-{pod}")
    assert node.held() == {} and os.listdir(conf["dataDir"]) == [".fastcni"]


@pytest.mark.parametrize("alias", ["", "a/b", "sixteen-letters-", "a%d", "a\x7f"])
def test_device_that_does_not_know_its_name_stays_in_the_pod(node, pod, conf, alias):
    """The reference fails for ever, and with it the pod's end. Whoever is root in the pod can change an alias."""
    result = node.add(conf, pod)
    run("ip", "-n", pod, "link", "set", "eth0", "alias", alias)
    says = 'failed to find original ifname for "eth0" (alias is not set)'
    assert node.check_refused(conf, pod, result) == says
    reply = node.call("DEL", conf, pod)
    assert reply.status == 0 and says.encode() in reply.stderr and node.held() == {}
    assert set(links()) == {"lo"} and "eth0" in links(pod)


def test_del_does_not_look_at_what_only_add_needs(node, pod, conf, machine):
    node.add(conf, pod)
    bad = {"device": "a/b", "hwaddr": "x", "kernelpath": "x", "pciBusID": PCI, "runtimeConfig": {"deviceID": "x"}}
    node.delete(naming(conf, **bad), pod)
    assert set(links()) == {"lo", "up0"}


@pytest.mark.parametrize("words, says", [
    ("set eth0 address 0a:00:00:00:00:09", "Interface eth0 Mac doesn't match: "),
    ("set eth0 down", "Interface eth0 is down"), ("del eth0", "Interface name eth0 not found")])
def test_check_sees_what_is_wrong(node, pod, conf, words, says):
    result = node.add(conf, pod)
    run("ip", "-n", pod, "link", *words.split())
    assert says in node.check_refused(conf, pod, result)


def test_check_looks_at_addresses(node, pod, conf):
    result = node.add(conf, pod)
    run("ip", "-n", pod, "addr", "del", "10.22.0.2/24", "dev", "eth0")
    assert "Failed to match addr 10.22.0.2/24" in node.check_refused(conf, pod, result)


def test_status_is_well_while_a_pod_has_the_device(node, pod, conf, machine):
    """A network of one device would take its whole node down otherwise."""
    machine.pci("up0")
    for each in (conf, naming(conf, pciBusID=PCI)):
        node.ok("STATUS", each)
        node.add(each, pod)
        node.ok("STATUS", each)
        node.delete(each, pod)


def test_status_says_that_the_machine_has_no_such_device(node, conf, machine):
    for keys, folder in (({"pciBusID": PCI}, f"bus/pci/devices/{PCI}"),
                         ({"kernelpath": "/sys/devices/a"}, "devices/a")):
        assert node.refused("STATUS", naming(conf, **keys)) == {
            "code": 50, "msg": f"failed to find host device: /sys/{folder} is not there"}
    node.ok("STATUS", naming(conf))                     # the runtime names a device with each pod


def test_status_is_ipams_too(node, conf):
    conf["ipam"]["ranges"] = [[{"subnet": "10.22.0.0/24", "rangeStart": "10.22.9.1"}]]
    assert node.refused("STATUS", conf)["code"]


def test_gc_frees_addresses_and_files_of_pods_that_are_no_more(node, pod, pod_netns, conf):
    other = pod_netns()
    run("ip", "link", "add", "up1", "type", "veth", "peer", "other")
    for name, device in ((pod, "up0"), (other, "up1")):
        node.add({**conf, "device": device, "runtimeConfig": {"mac": MAC}}, name)
    node.ok("GC", naming(conf, **{"cni.dev/valid-attachments": [{"containerID": f"c-{other}", "ifname": "eth0"}]}))
    assert {content.split()[0] for content in node.held().values()} == {f"c-{other}"}
    assert sorted(os.listdir(conf["dataDir"])) == [".fastcni", f"c-{other}_eth0.json"]


def test_thread_is_back_in_its_namespace(node, pod, conf):
    with Inside(None):
        node.add(conf, pod)
        node.delete(conf, pod)
        assert "up0" in {item["ifname"] for item in ip_json("link")}
