"""Read and write the two files of flannel: the node's part of the network, which flanneld writes, and the configuration
of a pod's delegate.

    /run/flannel/subnet.env                     <dataDir>/<container id>, 0600
        FLANNEL_NETWORK=10.244.0.0/16               {"cniVersion": "1.0.0", "ipMasq": false, "ipam": {...}, ...}
        FLANNEL_SUBNET=10.244.1.1/24
        FLANNEL_MTU=1450
        FLANNEL_IPMASQ=true
"""

from __future__ import annotations

from fastcni.kit.call import files
from fastcni.spec import address as addresses
from fastcni.spec import errors, json
from fastcni.spec.config import Section, is_name, shown
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

NETWORKS = ("FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK")
SUBNETS = ("FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET")
MTU, MASQUERADES = "FLANNEL_MTU", "FLANNEL_IPMASQ"


class Subnet:
    """The content of flanneld's file. networks: the cluster's networks as CIDR texts, IPv4 first. subnets: this node's
    subnets as CIDR texts, IPv4 first. mtu: the pods' MTU. masquerades: whether flanneld masquerades the pods'
    traffic."""

    __slots__ = ("networks", "subnets", "mtu", "masquerades")
    networks: list[str]
    subnets: list[str]
    mtu: int
    masquerades: bool


def read_subnet(path: str) -> Subnet:
    """Read flanneld's file. Raises CniError 11 if the file does not exist, 6 if variables are missing or invalid."""
    content = files.read(path)
    if content is None:
        raise CniError(errors.TRY_AGAIN_LATER, f"open {path}: no such file or directory",
                       "flanneld writes this file: does flanneld run on this node?")
    lines = content.decode("utf-8", "replace").splitlines()
    found = {name: value for name, _, value in (line.strip().partition("=") for line in lines)}
    missing = [name for names in (NETWORKS, SUBNETS) if not any(found.get(name) for name in names) for name in names]
    missing += [name for name in (MTU, MASQUERADES) if name not in found]
    if missing:
        raise CniError(errors.DECODING_FAILURE, f"{path} is missing {', '.join(missing)}",
                       "flanneld writes this file, with a network and a subnet of IPv4 or IPv6 at least")
    subnet = Subnet()
    try:
        subnet.networks, subnet.subnets = ([cidr for name in names for cidr in read_cidrs(found.get(name, ""))]
                                           for names in (NETWORKS, SUBNETS))
        subnet.mtu = read_mtu(found[MTU])
    except ValueError as e:
        raise CniError(errors.DECODING_FAILURE, f"{path}: {e}", "flanneld writes this file") from None
    subnet.masquerades = found[MASQUERADES] == "true"
    return subnet


def read_cidrs(text: str) -> list[str]:
    """Return the networks of a comma-separated list, with host bits zero. Raises ValueError."""
    pairs = [addresses.read_cidr(word.strip()) for word in text.split(",") if word]
    return [addresses.cidr_text(addresses.network(*pair), pair[1]) for pair in pairs]


def read_mtu(text: str) -> int:
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 32):
        raise ValueError(f"{MTU} is {shown(text)}, which is not a number of bytes")
    return int(text)


class Saved:
    """The file of the delegate's configuration for a container in a network. If several networks use one directory, or
    a container has several interfaces, the file has the configuration of the last ADD, as in the reference."""

    __slots__ = ("path", "network")

    def __init__(self, directory: str, container_id: str, network: str) -> None:
        self.path, self.network = f"{directory}/{container_id}", network

    def read(self) -> dict[str, Any] | None:
        """Return the configuration. None if the file does not exist, belongs to another network, or is incomplete after
        a crash."""
        found = self.content()
        return found.values if found and found.text("name") == self.network else None

    def content(self) -> Section | None:
        """Return the file as a Section, None if the file has no configuration."""
        content = files.read(self.path)
        try:
            section = Section(json.read(content or b"{}"))
            return section if section.text("name") and section.text("type") else None
        except (json.JsonError, AttributeError, CniError):
            return None

    def keep(self, document: dict[str, Any], undo: Undo) -> None:
        """Write the configuration. The rollback restores the earlier file."""
        before, after = files.read(self.path), json.write(document)
        if after == before:             # do not write equal content again: a crash could lose the file
            return
        if before is None:
            undo(files.remove, self.path)
        else:
            undo(files.write, self.path, before)
        files.write(self.path, after)

    def remove(self) -> None:
        """Remove the file, unless it now belongs to another network."""
        if self.read() or not self.content():
            files.remove(self.path)


def gc(req: Request, directory: str) -> None:
    """Remove the files of this network's containers without a valid attachment."""
    valid = {container_id for container_id, _ in req.valid_attachments}
    for name in files.names(directory):
        saved = Saved(directory, name, req.name)
        if is_name(name) and name not in valid and saved.read():
            saved.remove()
            req.release(f"file {directory}/{name}", name)
