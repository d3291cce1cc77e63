"""Configurations and answers of recording plugins, for the tests of PodNetworks that use the fixture `networks`."""

NETNS = "/run/netns/pod1"
CAPABILITIES = dict.fromkeys(("portMappings", "bandwidth", "dns", "ips", "mac", "cgroupPath",
                              "io.kubernetes.cri.pod-annotations"), True)


def conflist(name, *plugins, version="1.1.0", **extra):
    return {"cniVersion": version, "name": name, **extra,
            "plugins": [{"type": it, "capabilities": CAPABILITIES} for it in plugins]}


def result_of(address, ifname="eth0"):
    return {"cniVersion": "1.1.0", "interfaces": [{"name": ifname, "mac": "c2:00:00:00:00:01", "sandbox": NETNS}],
            "ips": [{"address": address, "interface": 0}]}


def variables(call, *names):
    return [call.env[f"CNI_{name}"] for name in names]
