"""Create and delete the ifb device that limits a pod's sent packets. The device has the name that the reference
plugin gives, and an alias with fastcni's mark."""

from __future__ import annotations

from errno import EEXIST

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.call import names
from fastcni.kit.call.undo import every
from fastcni.kit.links import change, find, veth
from fastcni.spec import errors
from fastcni.spec.config import IFNAME_BYTES
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kernel.rtnl import Link
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

MARK = "fastcni "               # prefix of the alias; the attachment's mark follows, as in nftables
ALIAS_BYTES = uapi.IFALIASZ - 1


def names_of(req: Request) -> tuple[str, str]:
    """Return the possible names of the attachment's ifb, in the order to try: the reference plugin's name, which all
    interfaces of a container share, then a name for this interface only."""
    each = req.name + req.container_id
    return names.digest(each, IFNAME_BYTES, "bwp"), names.digest(f"{each}:{req.ifname}", IFNAME_BYTES, "bwp")


def is_own(req: Request, link: Link) -> bool:
    """Return whether the link has the mark of this attachment."""
    return link.alias.startswith(MARK + req.hashes)


def add(req: Request, mtu: int, undo: Undo) -> Link:
    """Create an ifb, set it up, and return its Link. Replace an ifb that an earlier ADD without DEL has left. Raises
    CniError 999 if other links have the names, NetlinkError."""
    for name in names_of(req):
        link = create(req, name, mtu, undo)
        left = None if link else find.link(req.mode.route, name)
        if left and is_own(req, left):
            change.delete_by_name(req.mode.route, name)
            link = create(req, name, mtu, undo)
        if link:
            return link
    raise CniError(errors.INTERNAL, f"adding link: {name} exists", "neither fastcni nor the Go plugin made it")


def create(req: Request, name: str, mtu: int, undo: Undo) -> Link | None:
    """Create an ifb. Return its Link, None if another link has the name."""
    sock = req.mode.route
    batch = rtnl.new_ifb(Batch(), name, address=veth.random_mac(), mtu=mtu, what="adding link")
    try:
        with undo.request(change.delete_by_name, sock, name):
            link = rtnl.first_link(wire.exchange(sock, batch))
    except wire.NetlinkError as e:
        if e.errno != EEXIST:
            raise
        return None
    link = link or find.new_link(sock, name)       # Linux before 6.2 does not echo the request
    alias = f"{MARK}{names.mark(req)}".encode()[:ALIAS_BYTES].decode("utf-8", "ignore")
    wire.exchange(sock, rtnl.set_alias(Batch(), link.index, alias, what=f"set the alias of {name}"))
    return link


def find_own(req: Request) -> list[Link]:
    """Return the ifbs of this attachment: first fastcni's, then the ifb that the reference plugin made for the
    container."""
    shared, own = (find.link(req.mode.route, name) for name in names_of(req))
    found = [own] if own else []
    if shared and (is_own(req, shared) or not shared.alias.startswith(MARK)):
        found.append(shared)
    return found


def delete(req: Request) -> None:
    """Delete the ifbs of this attachment. Needs neither the pod's namespace nor prevResult."""
    req.delete_links(*((link.index, link.name) for link in find_own(req)))


def gc(req: Request) -> None:
    """Delete the ifbs whose mark names an attachment of this network that is no longer valid."""
    network = f"{MARK}{names.network_mark(req.name)}-"
    valid = {MARK + names.hashes(req.name, *each) for each in req.valid_attachments}
    replies = wire.dump(req.mode.route, uapi.RTM_GETLINK, rtnl.ifinfomsg(), "list ifbs", only_ifbs)
    every(*((release, req, link) for link in (rtnl.read_link(each) for _, each in replies)
            if link.kind == "ifb" and link.alias.startswith(network) and link.alias.partition(",")[0] not in valid))


def release(req: Request, link: Link) -> None:
    """Delete an ifb, and report it by req.release()."""
    req.mode.delete_links((link.index, link.name))
    req.release(f"link {link.name}")


def only_ifbs(batch: Batch) -> None:
    """Restrict a dump of links to ifbs."""
    batch.nest(uapi.IFLA_LINKINFO).text(uapi.IFLA_INFO_KIND, "ifb").end()
    batch.u32(uapi.IFLA_EXT_MASK, uapi.RTEXT_FILTER_SKIP_STATS)
