"""The two files of flannel: what flanneld says of the node's part of the network, and what a pod's delegate was given.

    /run/flannel/subnet.env                     <dataDir>/<container id>, 0600
        FLANNEL_NETWORK=10.244.0.0/16               {"cniVersion": "1.0.0", "ipMasq": false, "ipam": {...}, ...}
        FLANNEL_SUBNET=10.244.1.1/24
        FLANNEL_MTU=1450
        FLANNEL_IPMASQ=true
"""

from fastcni.kit.call import files
from fastcni.spec import address as addresses
from fastcni.spec import errors, json
from fastcni.spec.config import Section, is_name, shown
from fastcni.spec.errors import CniError

NETWORKS = ("FLANNEL_NETWORK", "FLANNEL_IPV6_NETWORK")
SUBNETS = ("FLANNEL_SUBNET", "FLANNEL_IPV6_SUBNET")
MTU, MASQUERADES = "FLANNEL_MTU", "FLANNEL_IPMASQ"


class Subnet:
    """networks (of the cluster) and subnets (of this node) as CIDR texts, IPv4 first; mtu; masquerades (flanneld does
    it)."""

    __slots__ = ("networks", "subnets", "mtu", "masquerades")


def read_subnet(path):
    """Raises CniError 11 where there is no such file, 6 for one that says too little or what cannot be."""
    content = files.read(path)
    if content is None:
        raise CniError(errors.TRY_AGAIN_LATER, f"open {path}: no such file or directory",
                       "flanneld writes it: does it run on this node?")
    lines = content.decode("utf-8", "replace").splitlines()
    found = {name: value for name, _, value in (line.strip().partition("=") for line in lines)}
    missing = [name for names in (NETWORKS, SUBNETS) if not any(found.get(name) for name in names) for name in names]
    missing += [name for name in (MTU, MASQUERADES) if name not in found]
    if missing:
        raise CniError(errors.DECODING_FAILURE, f"{path} is missing {', '.join(missing)}",
                       "flanneld writes it, with a network and a subnet of IPv4 or IPv6 at least")
    subnet = Subnet()
    try:
        subnet.networks, subnet.subnets = ([cidr for name in names for cidr in read_cidrs(found.get(name, ""))]
                                           for names in (NETWORKS, SUBNETS))
        subnet.mtu = read_mtu(found[MTU])
    except ValueError as e:
        raise CniError(errors.DECODING_FAILURE, f"{path}: {e}", "flanneld writes it") from None
    subnet.masquerades = found[MASQUERADES] == "true"
    return subnet


def read_cidrs(text):
    """Networks with commas between them, their host bits zero."""
    pairs = [addresses.read_cidr(word.strip()) for word in text.split(",") if word]
    return [addresses.cidr_text(addresses.network(*pair), pair[1]) for pair in pairs]


def read_mtu(text):
    if not (text.isascii() and text.isdigit() and int(text) < 1 << 32):
        raise ValueError(f"{MTU} is {shown(text)}, which is no number of bytes")
    return int(text)


class Saved:
    """What the delegate was given for a container in a network. Of several networks with one folder, and of several
    interfaces, the last ADD has the file, as in the reference."""

    __slots__ = ("path", "network")

    def __init__(self, folder, container_id, network):
        self.path, self.network = f"{folder}/{container_id}", network

    def read(self):
        """The configuration as a dict; None where there is none, or that of another network, or what a crash left."""
        found = self.content()
        return found.values if found and found.text("name") == self.network else None

    def content(self):
        """The file as a Section, None where it has no configuration."""
        content = files.read(self.path)
        try:
            section = Section(json.read(content or b"{}"))
            return section if section.text("name") and section.text("type") else None
        except (json.JsonError, AttributeError, CniError):
            return None

    def keep(self, document, undo):
        """Write it. The way back is the file of before."""
        before, after = files.read(self.path), json.write(document)
        if after == before:             # a file that is not written again cannot be lost by it
            return
        if before is None:
            undo(files.remove, self.path)
        else:
            undo(files.write, self.path, before)
        files.write(self.path, after)

    def remove(self):
        """It is gone, unless another network has it by now."""
        if self.read() or not self.content():
            files.remove(self.path)


def gc(req, folder):
    """Remove the files of this network's containers that have no valid attachment."""
    valid = {container_id for container_id, _ in req.valid_attachments}
    for name in files.names(folder):
        saved = Saved(folder, name, req.name)
        if is_name(name) and name not in valid and saved.read():
            saved.remove()
            req.release(f"file {folder}/{name}", name)
