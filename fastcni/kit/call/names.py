"""Names and marks that are derived from a network and a container: the same text for the same attachment, always; and
names of iptables chains, derived or configured."""

import sys

from fastcni.spec.config import is_name, shown

ADMIN_CHAIN = "CNI-ADMIN"       # of the host's administrator, where the network names no other
CHAIN_MAX = 28                  # characters of a chain's name that iptables takes


def digest(text, length, prefix=""):
    """`prefix` and as much of the SHA-512 of `text` in lower-case hex as `length` has room for."""
    # hashlib would load OpenSSL for this.
    if sys.hexversion >= 0x030C0000:
        from _sha2 import sha512
    else:
        from _sha512 import sha512
    return prefix + sha512(text.encode()).hexdigest()[:length - len(prefix)]


def chain(prefix, req):
    """An iptables chain name of the reference plugins: 28 characters, e.g. CNI-e8f6f419596f7f47b3468487."""
    return container_chain(prefix, req.name, req.container_id)


def container_chain(prefix, name, container_id):
    return digest(name + container_id, CHAIN_MAX, prefix)


def read_chain(keys, key, default=""):
    """The name of an iptables chain that a configuration gives, `default` where it gives none. Raises CniError 7."""
    name = keys.text(key) or default
    if name and not (is_name(name) and len(name) <= CHAIN_MAX):
        raise keys.wrong(key, f"not the name of a chain: {shown(name)}")
    return name


def network_mark(name):
    return digest(name, 16)


def mark(req):
    """What we own in nftables carries this comment: hashes for the machine to compare, then words for people."""
    return attachment_mark(req.name, req.container_id, req.ifname)


def attachment_mark(name, container_id, ifname):
    words = f"net: {name}, if: {ifname}, id: {container_id}".replace('"', "")
    return f"{hashes(name, container_id, ifname)}, {words}"


def hashes(name, container_id, ifname):
    """The part of a mark that is compared; the words behind it may have been cut."""
    return f"{network_mark(name)}-{digest(f'{ifname}:{container_id}', 16)}"
