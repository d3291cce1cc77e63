"""policy: the node agent applies the network policies of Kubernetes to the pod before the pod's first process runs.

The agent is `fastcni agent --policies`; docs/policy.md describes it. Without an agent, ADD fails (code 11). The pod's
namespace and name are K8S_POD_NAMESPACE and K8S_POD_NAME of CNI_ARGS, otherwise "default" and the container's ID. The
pod's labels are the labels of its Kubernetes object. If policies are in files and no file has the pod, the labels come
from the capability `labels`, from `args.cni.labels` ([{"key": "app", "value": "web"}], CNI's conventions), or from
LABELS=app:web,tier:front of CNI_ARGS.

The node must forward the pod's traffic, so a previous plugin must make a veth pair, whose host end is the pod's port.
At this port the agent drops packets from other sources than the pod's addresses and MAC. Keys allow more packets:

    {"type": "policy", "allowedAddressPairs": [{"ipAddress": "10.1.0.100", "macAddress": "00:00:5e:00:01:05"}],
     "allowedEtherTypes": ["0x8847"], "allowRouterAdvertisements": false, "dhcp": false}
"""

from __future__ import annotations

import posix

from fastcni.kit import policies
from fastcni.kit.call import chained
from fastcni.kit.call.conf import ENDINGS, keys_of, read_ethernet
from fastcni.kit.dhcp import dhcp_conf, lease_path
from fastcni.kit.ovs import cache as ovs_cache
from fastcni.spec import address, errors, version
from fastcni.spec.config import read_args, shown
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.spec.config import Section

CAPABILITIES, ARGS = ("labels",), ("LABELS",)
VERSIONS = version.starting_from("0.3.0")         # results of earlier versions have no interfaces
MIN_ETHERTYPE, MAX_ETHERTYPE = 0x0600, 0xFFFF
CHECKED = {**dict.fromkeys((0x0800, 0x0806, 0x86DD), "IPv4, ARP and IPv6 are checked by address"),
           **dict.fromkeys((0x8100, 0x88A8), "a VLAN tag in a VLAN tag hides what the frame carries")}
KNOWN = (*ARGS, "K8S_POD_NAMESPACE", "K8S_POD_NAME", "K8S_POD_INFRA_CONTAINER_ID", "K8S_POD_UID")


class Conf:
    """The configuration keys of one network, and CNI_ARGS. For DEL and GC only `socket` is set."""

    __slots__ = ("args", "labels", "port", "socket")

    socket: str                         # the agent's socket, key agentSocketPath
    args: dict[str, str]
    labels: dict[str, str]
    port: dict[str, Any]                # for the agent: additional packets that the pod may send


def read(req: Request) -> Conf:
    keys, conf = keys_of(req), Conf()
    conf.socket = keys.text("agentSocketPath") or policies.SOCKET
    if req.command in ENDINGS:
        return conf
    conf.args = read_args(req.args, KNOWN)
    conf.labels = read_labels(conf.args.get("LABELS", ""))
    for each in keys.section("args").section("cni").sections("labels"):
        conf.labels[each.text("key")] = each.text("value")
    given: Section = keys.section("runtimeConfig").section("labels")
    conf.labels |= {key: given.text(key) for key in given.values}
    conf.port = {"pairs": [read_pair(each) for each in keys.sections("allowedAddressPairs")],
                 "types": [read_ethertype(keys, at, each) for at, each in enumerate(keys.items("allowedEtherTypes"))],
                 "router": keys.flag("allowRouterAdvertisements"), "dhcp": keys.flag("dhcp")}
    return conf


def read_pair(section: Section) -> dict[str, str]:
    """Convert one object of allowedAddressPairs to the agent's form: {"address": "10.1.0.100/32", "mac": 12 hex
    digits}, without "mac" if the object has no macAddress. Raises CniError 7."""
    text, mac = section.text("ipAddress"), section.text("macAddress")
    try:
        packed, prefix = address.read_cidr(text) if "/" in text else (found := address.read_ip(text), 8 * len(found))
    except ValueError:
        raise section.wrong("ipAddress", f"expected an address or a prefix, got {shown(text)}") from None
    if not mac:
        return {"address": address.cidr_text(packed, prefix)}
    found = read_ethernet(mac)
    if found[0] & 1:
        raise section.wrong("macAddress", f"expected the MAC of one station, got {mac}")
    return {"address": address.cidr_text(packed, prefix), "mac": found.hex()}


def read_ethertype(keys: Section, at: int, value: object) -> int:
    """Convert one value of allowedEtherTypes, such as 35015 or "0x88c7", to an integer. at: the value's index. Raises
    CniError 7."""
    key = f"allowedEtherTypes[{at}]"
    try:
        found = int(value, 16) if isinstance(value, str) else value
    except ValueError:
        found = None
    if type(found) is not int or not MIN_ETHERTYPE <= found <= MAX_ETHERTYPE:
        raise keys.wrong(key, f'expected an ethertype like "0x88cc", got {shown(value)}')
    if found in CHECKED:
        raise keys.wrong(key, f"{shown(value)} cannot be allowed: {CHECKED[found]}")
    return found


def read_labels(text: str) -> dict[str, str]:
    """Convert LABELS of CNI_ARGS, "app:web,tier:front", to {"app": "web", "tier": "front"}. Raises CniError 4."""
    found = {}
    for pair in text.split(",") if text else ():
        key, colon, value = pair.partition(":")
        if not colon:
            raise CniError(errors.INVALID_ENVIRONMENT, f'ARGS: LABELS: expected key:value, got "{pair}"')
        found[key] = value
    return found


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    previous = chained.previous(req)
    request = about(req, conf, previous)
    policies.admit()
    undo(delete, req, conf)
    policies.ask(conf.socket, {"do": "protect", **request})
    return previous


def restore(req: Request, conf: Conf) -> None:
    """Send the pod's port to the agent again, because the agent does not know the ports of pods that an earlier version
    of fastcni has added."""
    policies.ask(conf.socket, {"do": "protect", **about(req, conf, chained.previous(req))})


def delete(req: Request, conf: Conf) -> None:
    try:
        policies.ask(conf.socket, {"do": "forget", "id": [req.name, req.container_id, req.ifname]})
    except policies.NoAgent as e:
        req.warn(f"{e.msg}. The agent forgets the pod when another pod gets the address, or at GC")


def check(req: Request, conf: Conf) -> None:
    policies.admit()
    policies.ask(conf.socket, {"do": "check", **about(req, conf, chained.previous(req))})


def gc(req: Request, conf: Conf) -> None:
    try:
        found = policies.ask(conf.socket, {"do": "collect", "network": req.name,
                                           "valid": sorted(map(list, req.valid_attachments))})
    except policies.NoAgent as e:
        req.warn(e.msg)
        return
    for what in found.get("released", ()):
        req.release(what)


def status(req: Request, conf: Conf) -> None:
    """Ask the agent for its status. Raise CniError 50 if no agent answers, or if the agent has not read the policies
    yet."""
    try:
        policies.ask(conf.socket, {"do": "status"})
    except CniError as e:
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, e.msg, policies.HINT) from None


def about(req: Request, conf: Conf, previous: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object that tells the agent about an attachment. previous: prevResult."""
    addresses = [ip["address"].partition("/")[0] for ip in previous.get("ips", ())
                 if chained.in_pod(previous, ip, req.ifname)]
    if not addresses:
        raise errors.bad_config(f"prevResult has no address of {req.ifname}")
    if posix.access(ovs_cache.path(ovs_cache.DIRECTORY, req.container_id, req.ifname), posix.F_OK):
        raise errors.bad_config("the pod is a port of Open vSwitch: policies cannot hold for it",
                                "pods on one bridge reach each other without passing a hook of nftables")
    name = conf.args.get("K8S_POD_NAME") or req.container_id
    interfaces = previous.get("interfaces", ())
    links = [each["name"] for each in interfaces if not each.get("sandbox")]
    if not links:
        raise errors.bad_config("the pod's traffic does not pass the node: policies cannot hold for it",
                                "put it behind a plugin that makes a link with an end on the host, as bridge and ptp "
                                "do")
    macs = [each.get("mac", "") for each in interfaces if each["name"] == req.ifname and each.get("sandbox")]
    if not macs or not macs[0]:
        raise errors.bad_config(f"prevResult has no MAC of {req.ifname}")
    dhcp = conf.port["dhcp"] or has_lease(req)
    return {"id": [req.name, req.container_id, req.ifname],
            "links": links, "port": {**conf.port, "dhcp": dhcp, "mac": read_ethernet(macs[0]).hex()},
            "pod": f"{conf.args.get('K8S_POD_NAMESPACE') or 'default'}/{name}",
            "uid": conf.args.get("K8S_POD_UID", ""), "labels": conf.labels, "addresses": addresses}


def has_lease(req: Request) -> bool:
    """Return whether fastcni's dhcp daemon has a lease for the attachment. The daemon's files show this, because
    prevResult does not name the IPAM plugin."""
    if not posix.access(lease_path.STATE_DIR, posix.F_OK):
        return False
    key = dhcp_conf.client_id(req.container_id, req.name, req.ifname)
    return posix.access(lease_path.path_of(lease_path.STATE_DIR, key), posix.F_OK)
