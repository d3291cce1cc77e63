"""A device for tests of host-device: a veth on the host, whose peer is in another namespace."""

from lab.node import addresses, links, run

DUAL = ("10.22.0.0/24", "fd00:22::/64")
MAC, OTHER_MAC = "0a:00:00:00:00:01", "0a:00:00:00:00:02"


def add_uplink(node, pod_netns):
    """Add the device up0 to the host. Return the namespace of up0's peer."""
    name = pod_netns()
    node.uplink(name)
    run("ip", "addr", "add", "192.0.2.9/24", "dev", "up0")
    return name


def conf_of(node, directory):
    """Return a configuration for up0. directory: dataDir, where ADD writes a file for DEL."""
    return node.conf(*DUAL, type="host-device", bridge=None, device="up0", dataDir=str(directory))


def naming(conf, **keys):
    """Return the configuration with other keys that name the device, instead of `device`."""
    return {**{key: value for key, value in conf.items() if key != "device"}, **keys}


def device():
    """Return the host's link up0 and its addresses, without attributes that the kernel may change."""
    found = {key: value for key, value in links()["up0"].items() if key not in ("operstate", "qdisc", "flags")}
    return found, "UP" in links()["up0"]["flags"], addresses("up0")
