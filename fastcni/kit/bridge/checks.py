"""Check the bridge and the pod's port on it, for CHECK."""

from __future__ import annotations

from fastcni.kit.bridge.bridges import Port, promiscuous
from fastcni.kit.call.pod import Pod
from fastcni.kit.links import checks, find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kernel.rtnl import Link
    from fastcni.kit.bridge.conf import Conf
    from fastcni.kit.call.request import Request


def bridge(pod: Pod, conf: Conf, previous: dict[str, Any]) -> Link:
    """Return the bridge. Raises CniError if the bridge differs from the configuration or prevResult."""
    entry = next((item for item in previous.get("interfaces", ()) if item["name"] == conf.name), None)
    found = find.link(pod.host, conf.name)
    if entry is None or found is None:
        raise checks.wrong(f"Interface name {conf.name} not found")
    if entry.get("sandbox"):
        raise checks.wrong(f"Interface {conf.name} has sandbox {entry['sandbox']}, but a bridge is on the host")
    if found.kind != "bridge":
        raise checks.wrong(f"Interface {conf.name} does not have link type of bridge")
    checks.same_mac(entry, found, "Bridge interface")
    if promiscuous(found) != conf.promisc:
        raise checks.wrong(f"Bridge interface {conf.name} has promiscuity {found.promiscuity}, "
                           f"promiscMode is {str(conf.promisc).lower()}")
    return found


def port(req: Request, conf: Conf, previous: dict[str, Any]) -> Port:
    """Return the pod's port. Raises CniError if the bridge, the pod's link or the port is not as ADD made it."""
    pod = Pod(req)
    found = Port(pod, bridge(pod, conf, previous))
    found.result, found.inside = previous, checks.veth_in_pod(req, pod, previous)
    found.host = host_end(found, conf)
    checks.addresses_and_routes(pod, found.inside, previous)
    return found


def host_end(port: Port, conf: Conf) -> Link:
    """Return the host end of the pod's link. Raises CniError if the host end is no port of the bridge, or if its flags
    differ from the configuration."""
    inside, host = port.inside, find.link(port.pod.host, index=port.inside.peer)
    named = {item["name"] for item in port.result.get("interfaces", ())}
    if host is None or host.peer != inside.index or host.master != port.bridge.index or host.name not in named:
        raise checks.wrong(f"CNI veth created for bridge {conf.name} was not found")
    if (host.hairpin, host.isolated) != (conf.hairpin, conf.isolated):
        raise checks.wrong(f"Bridge port {host.name} has hairpin {host.hairpin} and isolated {host.isolated}",
                           f"hairpinMode is {conf.hairpin}, portIsolation {conf.isolated}")
    return host
