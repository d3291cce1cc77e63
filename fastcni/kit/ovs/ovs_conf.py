"""Read the keys of the ovs plugin, the keys of ovs-cni's file ovs.conf, and the arguments of a pod."""

from __future__ import annotations

from fastcni.clients.ovsdb import DEFAULT_ADDRESS, socket_address
from fastcni.kit.call import files, ipam
from fastcni.kit.call.conf import (
    ENDINGS,
    MAX_VID,
    keys_of,
    read_ethernet,
    read_ipv6,
    read_mtu,
    read_own_dns,
    read_runtime_mac,
)
from fastcni.kit.call.trunk import read_trunk
from fastcni.kit.ovs import cache
from fastcni.spec import errors, json
from fastcni.spec.config import Section, read_args
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fastcni.kit.call.request import Request

# Paths of ovs-cni's ovs.conf. The plugin reads the file that configuration_path names, or else the first of these that
# exists
FILES = ("/etc/kubernetes/cni/net.d/ovs.d/ovs.conf", "/etc/cni/net.d/ovs.d/ovs.conf")
OVN_BRIDGE = "br-int"           # bridge of a pod with an OVN port, if the network names no bridge
MAX_OFPORT = 65279              # OpenFlow reserves the numbers above
MAX_VNI = (1 << 24) - 1
RETRIES, INTERVAL_MS = 5, 600   # ovs-cni's defaults
MAX_LINK_S = 60.0
POD_ARGS = ("mac", "ovnport", "k8s_pod_uid")


class OvsConf:
    """The keys of a network. For DEL, GC and STATUS, bridge may be "".

    socket_file     OVSDB's address: "unix:PATH", "tcp:IP:PORT", a path, or "" for the usual socket
    path            configuration_path
    vlan            the VLAN of the port's untagged frames; None: the port is a trunk
    trunk           the sorted VLANs of the port's tagged frames; []: all VLANs
    vxlan           vxlanID, the key of tunnels of the bridge; the port gets these tunnels' VLAN. None: not configured
    ofport, kind    ofport_request (0: any), interface_type
    retries, interval_ms
                    ovs-cni's number of checks of the port's state, and their interval. ADD waits at most retries *
                    interval_ms. 0: not given
    """

    __slots__ = ("bridge", "vlan", "trunk", "vxlan", "mtu", "ofport", "kind", "socket_file", "path",
                 "retries", "interval_ms", "directory", "layer3", "dns", "ipv6", "enable_dad")

    bridge: str
    vlan: int | None
    trunk: list[int]
    vxlan: int | None
    mtu: int                    # 0: the kernel's default
    ofport: int
    kind: str
    socket_file: str
    path: str
    retries: int
    interval_ms: int
    directory: str                 # the directory of the cache files
    layer3: bool                # the configuration names an IPAM plugin
    dns: dict[str, Any] | None  # the configuration's dns; None: keep IPAM's
    ipv6: bool                  # the pod's link has IPv6
    enable_dad: bool

    @property
    def address(self) -> str:
        """Return OVSDB's address."""
        return self.socket_file or DEFAULT_ADDRESS

    @property
    def link_timeout_s(self) -> float:
        """Return how many seconds ADD waits until ovs-vswitchd has set the port up."""
        return min((self.retries or RETRIES) * (self.interval_ms or INTERVAL_MS) / 1000, MAX_LINK_S)


FROM_FILE = ("bridge", "vlan", "trunk", "mtu", "ofport", "kind", "socket_file", "retries", "interval_ms")


def read(req: Request) -> OvsConf:
    """Return the network's keys, completed by the keys of ovs.conf. Raises CniError."""
    if req.command in ENDINGS:
        return with_file(read_ending(keys_of(req)), read_ending)
    return with_file(req.conf.once(read_keys), read_keys)


def with_file(own: OvsConf, read_other: Callable[[Section], OvsConf]) -> OvsConf:
    """Return the keys `own`. Take absent and empty keys from ovs.conf, which read_other() reads. Raises CniError."""
    path, found = read_file(own.path)
    if found is None:
        return own
    try:
        other = read_other(Section(found))
    except CniError as e:
        raise CniError(e.code, f"{path}: {e.msg}", e.details) from None
    merged = OvsConf()
    for name in OvsConf.__slots__:
        if hasattr(own, name):
            value = getattr(own, name)
            empty = value is None or (value in ("", 0, []) and name != "vlan")
            setattr(merged, name, getattr(other, name) if name in FROM_FILE and empty else value)
    return merged


def read_ending(keys: Section) -> OvsConf:
    """Return the keys that DEL and GC need. OVSDB's address must be valid, because a DEL cannot remove the port without
    it."""
    conf = OvsConf()
    conf.layer3 = bool(ipam.read_type(keys))
    conf.socket_file, conf.path = read_socket_file(keys.strict), keys.strict.file("configuration_path", absolute=False)
    conf.directory = keys.strict.file("dataDir", cache.DIRECTORY, absolute=False)
    return conf


def read_keys(keys: Section) -> OvsConf:
    conf = read_ending(keys)
    if keys.text("deviceID"):
        raise CniError(errors.UNSUPPORTED_FIELD, "deviceID: hardware offload is not supported",
                       "ovs makes veth pairs; ovs-cni can use virtual functions")
    conf.bridge, conf.mtu = keys.text("bridge"), read_mtu(keys)
    conf.vlan = keys.integer("vlan", None, low=0, high=MAX_VID)
    # As in ovs-cni, a trunk may contain 0, which stands for untagged frames
    conf.trunk = sorted({vid for item in keys.sections("trunk") for vid in read_trunk(item, low=0)})
    conf.vxlan = keys.integer("vxlanID", None, low=0, high=MAX_VNI)
    if conf.vxlan is not None and (conf.trunk or conf.vlan is not None):
        raise errors.bad_config("cannot use vxlanID with vlan and trunk",
                                "with vxlanID the pod has the VLAN of the bridge's tunnels")
    conf.ofport = keys.integer("ofport_request", low=0, high=MAX_OFPORT)
    conf.kind = keys.text("interface_type")
    conf.retries = keys.integer("link_state_check_retries", low=0, high=1 << 31)
    conf.interval_ms = keys.integer("link_state_check_interval", low=0, high=1 << 31)
    conf.dns, conf.ipv6, conf.enable_dad = read_own_dns(keys), read_ipv6(keys), keys.flag("enabledad")
    return conf


def read_socket_file(keys: Section) -> str:
    """Return socket_file, "" without it. Raises CniError 7."""
    text = keys.text("socket_file")
    try:
        socket_address(text)
    except ValueError as e:
        raise keys.wrong("socket_file", str(e)) from None
    return text


def read_file(path: str) -> tuple[str, dict[str, Any] | None]:
    """Return (path, object) of the first ovs.conf that exists; the object is None if no file exists. Raises
    CniError."""
    for name in (path, *FILES) if path else FILES:
        content = files.read(name)
        if content is None:
            continue
        try:
            found = json.read(content)
        except json.JsonError as e:
            raise CniError(errors.DECODING_FAILURE, f"parse ovs config file {name}: {e}") from None
        if not isinstance(found, dict):
            raise CniError(errors.DECODING_FAILURE, f"parse ovs config file {name}: not an object")
        return name, found
    return "", None


class PodArgs:
    """The arguments of a pod: its MAC, the name of its port in OVN ("": none), and its uid."""

    __slots__ = ("mac", "ovn_port", "pod_uid")

    def __init__(self, req: Request) -> None:
        """Read args.cni and CNI_ARGS. Names are case-insensitive, as in ovs-cni. Raises CniError 4 and 7."""
        names = {pair.partition("=")[0] for pair in req.args.split(";")}
        known = {name for name in names if name.lower() in POD_ARGS}
        given = {name.lower(): value for name, value in read_args(req.args, known).items()}
        text = req.conf.once(read_runtime_mac) or given.get("mac", "")
        self.mac = read_ethernet(text) if text else None
        self.ovn_port = req.conf.once(read_ovn_port) or given.get("ovnport", "")
        self.pod_uid = given.get("k8s_pod_uid", "")


def read_ovn_port(keys: Section) -> str:
    """Return args.cni.ovnPort, or ""."""
    return keys.section("args").section("cni").text("ovnPort")
