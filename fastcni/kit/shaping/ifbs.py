"""The ifb that what a pod sends goes through: its name is the Go plugin's, its alias is our mark."""

from errno import EEXIST

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.call import names
from fastcni.kit.call.undo import every
from fastcni.kit.links import announced, change, find, veth
from fastcni.spec import errors
from fastcni.spec.errors import CniError

MARK = "fastcni "               # then the mark of an attachment, as in nftables
ALIAS_BYTES = 255               # IFALIASZ of linux/if.h, without the closing NUL


def names_of(req):
    """The reference's name, which knows of no interface; then that of an interface which found it taken."""
    each = req.name + req.container_id
    return names.digest(each, 15, "bwp"), names.digest(f"{each}:{req.ifname}", 15, "bwp")


def is_ours(req, link):
    return link.alias.startswith(MARK + names.hashes(req.name, req.container_id, req.ifname))


def add(req, mtu, undo):
    """A new ifb as a Link, up. One that a pod without DEL has left is replaced. Raises CniError, NetlinkError."""
    for name in names_of(req):
        link = create(req, name, mtu, undo)
        left = None if link else find.link(req.host.route, name)
        if left and is_ours(req, left):
            change.delete_by_name(req.host.route, name)
            link = create(req, name, mtu, undo)
        if link:
            return link
    raise CniError(errors.INTERNAL, f"adding link: {name} exists", "neither fastcni nor the Go plugin made it")


def create(req, name, mtu, undo):
    """The Link, None where the name is taken."""
    sock = req.host.route
    batch = rtnl.new_ifb(Batch(), name, address=veth.random_mac(), mtu=mtu, what="adding link")
    try:
        with undo.request(change.delete_by_name, sock, name):
            link = rtnl.first_link(wire.exchange(sock, batch))
    except wire.NetlinkError as e:
        if e.errno != EEXIST:
            raise
        return None
    link = link or find.new_link(sock, name)       # Linux before 6.2 does not echo
    alias = f"{MARK}{names.mark(req)}".encode()[:ALIAS_BYTES].decode("utf-8", "ignore")
    wire.exchange(sock, rtnl.set_alias(Batch(), link.index, alias, what=f"set the alias of {name}"))
    return link


def of(req):
    """[Link] of this attachment's: ours first, then what the Go plugin has made for the container."""
    shared, own = (find.link(req.host.route, name) for name in names_of(req))
    found = [own] if own else []
    if shared and (is_ours(req, shared) or not shared.alias.startswith(MARK)):
        found.append(shared)
    return found


def delete(req):
    """Needs no namespace, and no prevResult."""
    every(*((announced.delete, req, link.index, link.name) for link in of(req)))


def gc(req):
    """Delete those with our mark of attachments of this network that are no longer valid."""
    network = f"{MARK}{names.network_mark(req.name)}-"
    valid = {MARK + names.hashes(req.name, *each) for each in req.valid_attachments}
    replies = wire.dump(req.host.route, uapi.RTM_GETLINK, rtnl.ifinfomsg(), "list ifbs", only_ifbs)
    every(*((release, req, link) for link in (rtnl.read_link(each) for _, each in replies)
            if link.kind == "ifb" and link.alias.startswith(network) and link.alias.partition(",")[0] not in valid))


def release(req, link):
    announced.delete(req, link.index, link.name)
    req.release(f"link {link.name}")


def only_ifbs(batch):
    batch.nest(uapi.IFLA_LINKINFO).text(uapi.IFLA_INFO_KIND, "ifb").end()
    batch.u32(uapi.IFLA_EXT_MASK, uapi.RTEXT_FILTER_SKIP_STATS)
