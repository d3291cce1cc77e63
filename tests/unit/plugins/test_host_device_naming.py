"""host-device: each key that names a device, DPDK devices, which stay on the host, and device names in DEL and STATUS.
The tests write a private /sys, except for one that uses the kernel's."""

import subprocess

import pytest
from lab.node import links, run
from unit.plugins.uplink import MAC, add_uplink, conf_of, device, naming

from fastcni.kernel.devices import sysfs

PCI, SF, PATH = "0000:5e:00.1", "mlx5_core.sf.4", "devices/pci0000:5d/0000:5e:00.1"
DPDK = ("vfio-pci", "uio_pci_generic", "igb_uio")


@pytest.fixture
def conf(node, pod_netns, tmp_path):
    add_uplink(node, pod_netns)
    return conf_of(node, tmp_path / "kept")


@pytest.fixture
def layer2(conf):
    return {**conf, "ipam": None}


class Machine:
    """A private /sys, in place of the kernel's."""

    def __init__(self, root):
        self.root = root

    def add(self, directory, *names, driver="", mac=None):
        """Add a device with links of these names. mac: the MAC in /sys; by default the link's MAC."""
        (self.root / directory).mkdir(parents=True, exist_ok=True)
        for name in names:
            net = self.root / directory / "net" / name
            net.mkdir(parents=True)
            (net / "address").write_text(f"{mac or links()[name]['address']}\n")
        if driver:
            (self.root / directory / "driver").symlink_to(f"../../../../bus/pci/drivers/{driver}")

    def pci(self, *names, device=PCI, driver="ice", **more):
        self.add(f"bus/pci/devices/{device}", *names, driver=driver, **more)


@pytest.fixture
def machine(tmp_path, monkeypatch):
    monkeypatch.setattr(sysfs, "ROOT", f"{tmp_path}/sys/")
    return Machine(tmp_path / "sys")


# -- which device -----------------------------------------------------------------------------------------

def test_mac_names_the_device(node, pod, conf):
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
    """When a pod's namespace ends, the kernel moves a network card back to the host and keeps its name in the pod."""
    run("ip", "link", "set", "up0", "down")
    run("ip", "link", "set", "up0", "name", "net1", "alias", "up0")
    result = node.add(conf, pod)
    node.check(conf, pod, result)
    node.delete(conf, pod)
    assert set(links()) == {"lo", "up0"}


@pytest.mark.parametrize("directory, keys", [
    (PATH, {"kernelpath": f"/sys/{PATH}"}), (PATH, {"kernelpath": f"/sys/{PATH}/"}),
    (f"bus/pci/devices/{PCI}", {"pciBusID": PCI}), (f"bus/pci/devices/{PCI}/virtio2", {"pciBusID": PCI}),
    (f"bus/pci/devices/{PCI}", {"runtimeConfig": {"deviceID": PCI}}),
    (f"bus/auxiliary/devices/{SF}", {"runtimeConfig": {"deviceID": SF}})])
def test_address_on_a_bus_names_the_device(node, pod, conf, machine, directory, keys):
    machine.pci()
    machine.add(directory, "up0")
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
def test_device_overrides_mac_path_and_bus_and_the_runtimes_id_overrides_the_configurations(
        node, pod, conf, machine, keys, name):
    run("ip", "link", "add", "up1", "type", "veth", "peer", "other")
    run("ip", "link", "add", "up2", "type", "veth", "peer", "another")
    run("ip", "link", "set", "up2" if "kernelpath" in keys else "up1", "address", MAC)
    machine.pci("up0")
    machine.add(f"bus/auxiliary/devices/{SF}", "up1")
    machine.add("devices/a", "up1")
    node.add(naming(conf, **keys), pod)
    assert links(pod)["eth0"]["ifalias"] == name


def test_sys_of_another_namespace_is_refused(node, pod, conf, machine):
    """A server's /sys may belong to another namespace than the caller's. Its names then belong to other links."""
    machine.pci("up0", mac=MAC)
    before = device()
    error = node.refused("ADD", naming(conf, pciBusID=PCI), pod)
    assert error["msg"] == f"failed to find host device: no net directory under pci device {PCI}"
    assert device() == before


@pytest.fixture
def kernels_sys(node, monkeypatch):
    """Replace sysfs.ROOT by the /sys of the test's network namespace. A process in a new mount namespace has mounted
    it."""
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


def test_path_in_the_kernels_sys_names_the_device(node, pod, conf, kernels_sys):
    """This directory also contains lo. The kernel lists it in the order of names, so the test names its link `a`."""
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
def test_a_missing_device_is_an_error_to_try_again(node, pod, conf, machine, keys, says):
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
    assert error["code"] == 7
    assert says in error["msg"]
    assert device() == before


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
    assert set(links(pod)) == {"lo"}
    assert device() == before
    node.check(conf, pod, result)
    assert "Failed to find address added by container" in node.check_refused(conf, pod, result, cid="other")
    node.delete(conf, pod)
    assert node.held() == {}
    assert device() == before


def test_dpdk_without_ipam_gives_the_name_alone(node, pod, layer2, machine):
    machine.pci(driver="vfio-pci")
    conf = naming(layer2, pciBusID=PCI, dns={"domain": "example.org"})
    result = node.add(conf, pod)
    assert result == {"cniVersion": "1.1.0", "interfaces": [{"name": "eth0", "sandbox": f"/run/netns/{pod}"}]}
    node.check(conf, pod, result)
    assert node.refused("CHECK", conf, pod)["msg"] == "Required prevResult missing"
    node.delete(conf, pod)


def test_mac_of_a_dpdk_device_is_left_to_the_program(node, pod, layer2, machine):
    machine.pci(driver="vfio-pci")
    reply = node.call("ADD", naming(layer2, pciBusID=PCI, runtimeConfig={"mac": MAC}), pod)
    assert reply.status == 0
    assert b"driver of DPDK" in reply.stderr


def test_pci_device_without_a_driver_is_an_error_but_not_of_del(node, pod, conf, machine):
    machine.pci("up0")
    conf = naming(conf, pciBusID=PCI)
    result = node.add(conf, pod)
    (machine.root / f"bus/pci/devices/{PCI}/driver").unlink()
    says = f"error with host device: lstat /sys/bus/pci/devices/{PCI}/driver: no such file or directory"
    assert node.check_refused(conf, pod, result) == says
    assert node.refused("ADD", conf, pod, ifname="eth1")["msg"] == says
    node.delete(conf, pod)
    assert set(links()) == {"lo", "up0"}
    assert node.held() == {}


# -- DEL, STATUS -----------------------------------------------------------------------------------------

def test_del_ignores_keys_that_only_add_needs(node, pod, conf, machine):
    node.add(conf, pod)
    bad = {"device": "a/b", "hwaddr": "x", "kernelpath": "x", "pciBusID": PCI, "runtimeConfig": {"deviceID": "x"}}
    node.delete(naming(conf, **bad), pod)
    assert set(links()) == {"lo", "up0"}


def test_status_succeeds_while_a_pod_has_the_device(node, pod, conf, machine):
    """If STATUS failed, a network whose only device is in use would make its node not ready."""
    machine.pci("up0")
    for each in (conf, naming(conf, pciBusID=PCI)):
        node.ok("STATUS", each)
        node.add(each, pod)
        node.ok("STATUS", each)
        node.delete(each, pod)


def test_status_reports_a_missing_device(node, conf, machine):
    for keys, directory in (({"pciBusID": PCI}, f"bus/pci/devices/{PCI}"),
                         ({"kernelpath": "/sys/devices/a"}, "devices/a")):
        assert node.refused("STATUS", naming(conf, **keys)) == {
            "code": 50, "msg": f"failed to find host device: /sys/{directory} does not exist"}
    node.ok("STATUS", naming(conf))                     # without a name: the runtime names a device for each pod
