"""Read the annotation k8s.v1.cni.cncf.io/networks, which names a pod's additional networks, in the short form and in
the JSON form:

    mynet, other/storage@stor0
    [{"name": "mynet", "interface": "stor0", "ips": ["10.1.0.5/24"], "mac": "02:00:00:00:00:01"}]

Source: Network Plumbing Working Group, Kubernetes Network Custom Resource Definition De-facto Standard 1.3, section 4.
"""

from __future__ import annotations

from fastcni.kit.call.conf import read_mac
from fastcni.spec import address, config, errors, json
from fastcni.spec.config import Section, shown
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

NETWORKS, DEFAULT_NETWORK = "k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network"
MAX_LABEL, LABEL_CHARACTERS = 253, frozenset("abcdefghijklmnopqrstuvwxyz0123456789-.")
MAX_NETWORKS = 64               # most networks in an annotation
# {key of an element: capability that the delegate's plugins may declare}
CAPABILITIES = {"ips": "ips", "mac": "mac", "infiniband-guid": "infinibandGUID", "bandwidth": "bandwidth",
                "portMappings": "portMappings", "deviceID": "deviceID"}


class Selection:
    """One network that a pod asks for.

    namespace, name  the definition of the network
    ifname           the interface name in the pod; "": follows from the network's index, such as "net1"
    capabilities     {capability: value} for plugins that declare it
    cni_args         members for `args.cni` of each plugin
    gateways         packed gateways of the default routes that the pod asks for; []: this network gives no default
                     route; None: the pod asks for nothing
    """

    __slots__ = ("namespace", "name", "ifname", "capabilities", "cni_args", "gateways")

    def __init__(self, namespace: str, name: str, ifname: str = "") -> None:
        check_label(name, "name")
        check_label(namespace, "namespace")
        if ifname:
            try:
                config.check_ifname(ifname)
            except CniError as e:
                raise wrong(f"interface {shown(ifname)}: {e.msg}") from None
            if ifname == "lo":
                raise wrong('interface "lo" is the loopback link of each pod')
        self.namespace, self.name, self.ifname = namespace, name, ifname
        self.capabilities: dict[str, Any] = {}
        self.cni_args: dict[str, Any] = {}
        self.gateways: list[bytes] | None = None


def read_networks(text: str, namespace: str) -> list[Selection]:
    """Read an annotation's text. namespace: the default namespace, for networks without a namespace. Raises CniError
    7."""
    if not text.strip():
        return []
    found = read_json(text, namespace) if any(c in text for c in '[{"') else [
        read_short(item.strip(), namespace) for item in text.split(",")]
    if len(found) > MAX_NETWORKS:
        raise wrong(f"more than {MAX_NETWORKS} networks")
    return found


def read_short(item: str, namespace: str) -> Selection:
    """Read `namespace/name@interface`; namespace and interface are optional. Raises CniError 7."""
    head, slash, rest = item.partition("/")
    if not slash:
        head, rest = namespace, item
    name, at, ifname = rest.partition("@")
    if "/" in rest or "@" in ifname or (at and not ifname.strip()):
        raise wrong(f"{shown(item)} is not [namespace/]name[@interface]")
    return Selection(head.strip(), name.strip(), ifname.strip())


def read_json(text: str, namespace: str) -> list[Selection]:
    try:
        document = json.read(text.encode("utf-8", "replace"))
    except json.JsonError as e:
        raise wrong(f"not JSON: {e}") from None
    if not isinstance(document, list):
        raise wrong(f"expected a list, got {shown(document)}")
    holder = Section({NETWORKS: document})
    return [read_element(element, namespace) for element in holder.sections(NETWORKS)]


def read_element(element: Section, namespace: str) -> Selection:
    """Read one object of the JSON form. Raises CniError 7."""
    found = Selection(element.text("namespace") or namespace, element.text("name"),
                      element.text("interface") or element.text("interfaceRequest"))
    found.capabilities = {CAPABILITIES[key]: element.raw(key) for key in CAPABILITIES if element.has(key)}
    for text in element.texts("ips"):
        read_address(element, "ips", text)
    for key in ("mac", "infiniband-guid"):
        if text := element.text(key):
            try:
                read_mac(text)
            except ValueError as e:
                raise element.wrong(key, str(e)) from None
    element.section("bandwidth")
    element.sections("portMappings")
    element.text("deviceID")
    found.cni_args = element.section("cni-args").values
    if element.has("default-route"):
        found.gateways = [read_address(element, "default-route", text) for text in element.texts("default-route")]
    return found


def read_address(element: Section, key: str, text: str) -> bytes:
    try:
        return address.read_cidr(text)[0] if "/" in text and key == "ips" else address.read_ip(text)
    except ValueError:
        raise element.wrong(key, f"invalid IP address: {shown(text)}") from None


def is_label(text: str) -> bool:
    """Return whether the text can be the name of an object in Kubernetes (RFC 1123), and of a file."""
    return (0 < len(text) <= MAX_LABEL and LABEL_CHARACTERS.issuperset(text) and text[0].isalnum()
            and text[-1].isalnum())


def check_label(text: str, what: str) -> None:
    """Raise CniError 7 unless is_label(text)."""
    if not is_label(text):
        raise wrong(f"{what} {shown(text)} must consist of lower case letters, digits, - and .")


def wrong(why: str) -> CniError:
    return errors.bad_config(f"pod annotation {NETWORKS}: {why}")
