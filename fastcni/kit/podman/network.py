"""Read and check a podman network, and convert it to a CNI network list.

The list has the same plugins as podman's own CNI networks: bridge, portmap, firewall, tuning. podman chooses the
addresses.
"""

from __future__ import annotations

from fastcni.spec import address, config, errors, version
from fastcni.spec.config import Section, shown
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Subnet = tuple[bytes, int, bytes | None]

OPTIONS = ("conflist", "isolate", "mtu", "no_default_route", "vlan")
CONF_DIR = "/etc/cni/net.d"     # directory of the network lists that the option conflist names


class Network:
    """The keys of a podman network.

    name; bridge: network_interface, "" for none; internal; ipam: "host-local" or "none"; subnets: (packed, prefix
    length, packed gateway or None); routes: in the form of a CNI configuration; conflist: the name of a list, "" for
    none; isolate, no_default_route: the options of these names; mtu, vlan: 0 for none.
    """

    __slots__ = ("name", "bridge", "internal", "ipam", "subnets", "routes", "conflist", "isolate", "no_default_route",
                 "mtu", "vlan")

    def __init__(self, keys: Section) -> None:
        """Read the network's keys. Raises CniError 2 for a key that fastcni does not support, 7 for a bad value."""
        self.name, self.bridge, self.internal = keys.text("name"), keys.text("network_interface"), keys.flag("internal")
        if self.bridge:
            config.check_ifname(self.bridge)
        self.ipam = keys.section("ipam_options").text("driver") or "host-local"
        if self.ipam not in ("host-local", "none"):
            raise unsupported(f"the IPAM driver {shown(self.ipam)}", "fastcni supports the drivers host-local and none")
        self.subnets = [read_subnet(subnet) for subnet in keys.sections("subnets")]
        self.routes = [read_route(route) for route in keys.sections("routes")]
        self._read_options(keys.section("options"))

    def _read_options(self, options: Section) -> None:
        for name in options.values:
            if name not in OPTIONS:
                raise unsupported(f"the option {name}", f"the options are {', '.join(OPTIONS)}")
        self.conflist = options.text("conflist")
        self.no_default_route = read_flag(options, "no_default_route")
        if options.text("isolate") == "strict":
            raise unsupported("isolate=strict", "isolate=true separates networks that have it")
        self.isolate = read_flag(options, "isolate")
        self.mtu, self.vlan = read_number(options, "mtu", 65535), read_number(options, "vlan", 4094)
        if self.conflist:
            config.check_network_name(self.conflist)
            beside = [name for name in OPTIONS if name != "conflist" and options.text(name)]
            if beside:
                raise unsupported(f"{beside[0]} together with conflist", "write this key into the conflist")


def unsupported(what: str, hint: str) -> CniError:
    return CniError(errors.UNSUPPORTED_FIELD, f"fastcni does not support {what} in a network of podman", hint)


def read_flag(options: Section, name: str) -> bool:
    text = options.text(name) or "false"
    if text not in config.TRUTH:
        raise options.wrong(name, f"expected true or false, got {shown(text)}")
    return config.TRUTH[text]


def read_number(options: Section, name: str, high: int) -> int:
    text = options.text(name) or "0"
    if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text) <= high):
        raise options.wrong(name, f"expected a number up to {high}, got {shown(text)}")
    return int(text)


def read_subnet(keys: Section) -> Subnet:
    found = keys.cidr("subnet")
    if found is None:
        raise keys.wrong("subnet", "missing")
    return (*found, keys.ip("gateway"))


def read_route(keys: Section) -> dict[str, Any]:
    """Return a route of the network in the form of a CNI configuration."""
    if keys.text("route_type") not in ("", "unicast"):
        raise unsupported(f"a route of the type {keys.text('route_type')}", "use a route with a gateway")
    found: dict[str, Any] = {"dst": keys.text("destination"), "gw": keys.text("gateway")}
    if keys.has("metric"):
        found["priority"] = keys.integer("metric", low=0)
    return found


# The network list for a container --------------------------------------------------------------------

class ContainerNetwork:
    """A network list for a container. document: the list. capability_args: the container's capability arguments, as in
    libcni. netns: the namespace that an earlier setup recorded, or "". outcome: the result of that setup; None: it has
    not finished."""

    __slots__ = ("document", "capability_args", "netns", "outcome")

    def __init__(self, document: dict[str, Any], capability_args: dict[str, Any], netns: str = "",
                 outcome: dict[str, Any] | None = None) -> None:
        self.document, self.capability_args = document, capability_args
        self.netns, self.outcome = netns, outcome

    @property
    def name(self) -> str:
        name: str = self.document["name"]
        return name

    def leave_ports(self, lengths: set[int]) -> None:
        """Remove the port mappings of the families with these address lengths (4, 16), because another network of the
        container has the mappings of these families."""
        if lengths:
            kept = [only(mapping, lengths) for mapping in self.capability_args.pop("portMappings")]
            if mappings := [mapping for mapping in kept if mapping]:
                self.capability_args["portMappings"] = mappings


def only(mapping: dict[str, Any], without: set[int]) -> dict[str, Any] | None:
    """Return the mapping without the families with these address lengths; None if no family is left."""
    if host_ip := mapping.get("hostIP"):
        return None if (16 if ":" in host_ip else 4) in without else mapping
    return None if len(without) > 1 else {**mapping, "hostIP": "0.0.0.0" if 16 in without else "::"}


def read_setup(setup: Section) -> ContainerNetwork:
    """Return the network list for the container. setup: podman's JSON. Raises CniError."""
    network, options = Network(setup.section("network")), setup.section("network_options")
    for name in options.section("options").values:
        raise unsupported(f"the container's option {name}", "podman's --network NAME:ip=,ip6=,mac=,interface_name=")
    args: dict[str, Any] = {}
    mappings = [] if network.internal else read_mappings(setup)
    if mappings:
        args["portMappings"] = mappings
    if mac := options.text("static_mac"):
        args["mac"] = mac
    addresses = read_addresses(network, options)
    if network.conflist:
        if addresses:
            args["ips"] = [address.cidr_text(packed, prefix) for packed, prefix, _ in addresses]
        return ContainerNetwork(find_list(network.conflist), args)
    return ContainerNetwork({"cniVersion": version.CURRENT, "name": network.name,
                             "plugins": plugins_of(network, addresses, options.text("interface_name"))}, args)


def read_addresses(network: Network, options: Section) -> list[Subnet]:
    """Return the container's addresses, each with the prefix length and the gateway of its subnet.

    Raises CniError 7.
    """
    found = []
    for text in options.texts("static_ips"):
        try:
            packed = address.read_ip(text)
        except ValueError:
            raise options.wrong("static_ips", f"invalid IP address: {shown(text)}") from None
        for subnet, prefix, gateway in network.subnets:
            if address.in_subnet(packed, subnet, prefix):
                found.append((packed, prefix, gateway))
                break
        else:
            raise options.wrong("static_ips", f"{text} is in no subnet of the network {network.name}")
    if network.ipam == "none":
        return []
    if network.subnets and not found:
        raise options.wrong("static_ips", "podman has given no address")
    return found


def read_mappings(setup: Section) -> list[dict[str, Any]]:
    """Return the capability argument portMappings. It has an entry for each protocol and each port of podman's
    ranges."""
    found = []
    for keys in setup.sections("port_mappings"):
        host, inside = keys.integer("host_port", low=0, high=65535), keys.integer("container_port", low=1, high=65535)
        count, host_ip = keys.integer("range", 1, low=0, high=65535) or 1, keys.text("host_ip")
        if max(host, inside) + count - 1 > 65535:
            raise keys.wrong("range", "a port would be above 65535")
        for protocol in (keys.text("protocol") or "tcp").split(","):
            for step in range(count):
                mapping: dict[str, Any] = {"hostPort": host + step, "containerPort": inside + step,
                                           "protocol": protocol}
                if host_ip:
                    mapping["hostIP"] = host_ip
                found.append(mapping)
    return found


def plugins_of(network: Network, addresses: list[Subnet], ifname: str) -> list[dict[str, Any]]:
    """Return the plugins of the network's list."""
    gateways = any(gateway for _, _, gateway in addresses) and not network.internal
    bridge: dict[str, Any] = {"type": "bridge", "bridge": network.bridge, "hairpinMode": True,
                              "ipMasq": bool(addresses) and not network.internal, "isGateway": gateways,
                              "isDefaultGateway": gateways and not network.no_default_route,
                              "capabilities": {"mac": True}}
    for name, value in (("mtu", network.mtu), ("vlan", network.vlan)):
        if value:
            bridge[name] = value
    if not addresses:
        return [bridge, tuning(ifname)]
    bridge["ipam"] = {"type": "static", "routes": network.routes, "addresses": [
        {"address": address.cidr_text(packed, prefix), **({"gateway": address.ip_text(gateway)} if gateway else {})}
        for packed, prefix, gateway in addresses]}
    firewall: dict[str, Any] = {"type": "firewall"}
    if network.isolate:
        firewall["ingressPolicy"] = "same-bridge"
    return [bridge, {"type": "portmap", "capabilities": {"portMappings": True}}, firewall, tuning(ifname)]


def tuning(ifname: str) -> dict[str, Any]:
    """Return the configuration of the plugin tuning that sets rp_filter, with the value of netavark's bridge driver:
    a reply may arrive on another network's interface."""
    return {"type": "tuning", "sysctl": {f"net/ipv4/conf/{ifname}/rp_filter": "2"}}


def find_list(name: str) -> dict[str, Any]:
    """Return the network list of that name in CONF_DIR. Raises CniError 7."""
    from fastcni.kit.networks.definitions import configurations  # imported here, because few networks have a list

    broken: list[str] = []
    for path, document in configurations(CONF_DIR, broken):
        if document.get("name") == name and path.endswith(".conflist"):
            plugins = Section(document, path).sections("plugins")
            if len(plugins) == 1 and plugins[0].text("type") == "chain":        # a list that `fastcni fuse` has written
                plugins = plugins[0].sections("plugins")
            if not plugins:
                raise errors.bad_config(f"{path} has no list of plugins")
            return {**document, "plugins": [plugin.values for plugin in plugins]}
    raise errors.bad_config(f'no network list "{name}" in {CONF_DIR}, which the option conflist names',
                            "; ".join(broken))
