"""A conflist of bridge and portmap, for the tests of portmap's backends."""

DUAL = ("10.22.0.0/24", "fd00:22::/64")
NODE, EXTERNAL = {4: "198.51.100.1", 6: "2001:db8::1"}, {4: "198.51.100.9", 6: "2001:db8::9"}
POD, BRIDGE = {4: "10.22.0.2", 6: "fd00:22::2"}, {4: "10.22.0.1", 6: "fd00:22::1"}


def mapping(host_port=8080, container_port=80, protocol="tcp", **more):
    return {"hostPort": host_port, "containerPort": container_port, "protocol": protocol, **more}


class Chain:
    """The chain. keys: keys of portmap's configuration."""

    def __init__(self, node, first, **keys):
        self.node, self.first = node, first
        self.conf = {"cniVersion": first["cniVersion"], "name": first["name"], "type": "portmap", **keys}

    def portmap(self, *mappings, **keys):
        return {**self.conf, "runtimeConfig": {"portMappings": list(mappings)}, **keys}

    def of(self, pod, *mappings, first=None, **keys):
        """Add a pod by the first plugin of the chain. Return portmap's configuration for the pod."""
        return self.portmap(*mappings, **keys, prevResult=self.node.add(first or self.first, pod))

    def add(self, pod, *mappings, **keys):
        """Add a pod by both plugins. Return portmap's configuration, for DEL."""
        conf = self.of(pod, *mappings, **keys)
        assert self.node.add(conf, pod) == conf["prevResult"]
        return conf

    def alone(self, number, *mappings, **keys):
        """Return portmap's configuration for a pod that need not exist. number: determines the pod's addresses
        10.22.x.y and fd00:22::x:y."""
        ips = [{"address": f"10.22.{number >> 8}.{number & 255}/16"}, {"address": f"fd00:22::{number:x}/64"}]
        return self.portmap(*mappings, **keys, prevResult={"cniVersion": self.conf["cniVersion"], "ips": ips})
