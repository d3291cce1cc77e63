# Part of _netlink.pyx: the headers of rtnetlink(7), and a link as the kernel tells it (linux/if_link.h). An ADD packs
# ten of the one, and hears of four of the other.

from cpython.unicode cimport PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8

cdef extern from "<string.h>" nogil:
    size_t strnlen(const char* text, size_t most)

cdef enum:
    IFF_UP = 1
    IFLA_ADDRESS = 1
    IFLA_IFNAME = 3
    IFLA_MTU = 4
    IFLA_LINK = 5
    IFLA_MASTER = 10
    IFLA_TXQLEN = 13
    IFLA_OPERSTATE = 16
    IFLA_LINKINFO = 18
    IFLA_IFALIAS = 20
    IFLA_PROMISCUITY = 30
    IFLA_LINK_NETNSID = 37
    IFLA_INFO_KIND = 1
    IFLA_INFO_DATA = 2
    IFLA_INFO_SLAVE_KIND = 4
    IFLA_INFO_SLAVE_DATA = 5
    IFLA_BR_VLAN_FILTERING = 7
    IFLA_BR_VLAN_DEFAULT_PVID = 39
    IFLA_BRPORT_MODE = 4
    IFLA_BRPORT_ISOLATED = 33


cdef struct link_header:             # struct ifinfomsg
    uint8_t family, pad
    uint16_t kind
    int32_t index
    uint32_t flags, change


def ifinfomsg(int32_t index=0, uint32_t flags=0, uint32_t change=0, uint8_t family=0):
    """A struct ifinfomsg as bytes; the type of hardware is the kernel's to say."""
    cdef link_header head
    head.family, head.pad, head.kind, head.index, head.flags, head.change = family, 0, 0, index, flags, change
    return PyBytes_FromStringAndSize(<const char*>&head, sizeof(head))


cdef struct address_header:          # struct ifaddrmsg
    uint8_t family, prefix, flags, scope
    uint32_t index


def ifaddrmsg(uint8_t family, uint8_t prefix, uint32_t index, uint8_t scope=0, uint8_t flags=0):
    """A struct ifaddrmsg as bytes."""
    cdef address_header head
    head.family, head.prefix, head.flags, head.scope, head.index = family, prefix, flags, scope, index
    return PyBytes_FromStringAndSize(<const char*>&head, sizeof(head))


cdef struct route_header:            # struct rtmsg
    uint8_t family, dst_len, src_len, tos, table, protocol, scope, kind
    uint32_t flags


def rtmsg(uint8_t family, uint8_t prefix=0, *, uint32_t table=0, uint8_t protocol=0, uint8_t scope=0, uint8_t kind=0):
    """A struct rtmsg as bytes; a table that it has no room for is RT_TABLE_UNSPEC there, and RTA_TABLE says it."""
    cdef route_header head
    memset(&head, 0, sizeof(head))
    head.family, head.dst_len, head.table = family, prefix, table if table < 256 else 0
    head.protocol, head.scope, head.kind = protocol, scope, kind
    return PyBytes_FromStringAndSize(<const char*>&head, sizeof(head))


@cython.final
cdef class Link:
    """What we need of an RTM_NEWLINK: name, index, kind ("" for physical), mtu, txqlen (packets that may wait),
    address (bytes), master and peer (indexes, 0 for none), peer_elsewhere (the peer lives in another namespace), flags,
    operstate, promiscuity, hairpin and isolated (of a bridge port, else None), vlan_filtering and default_pvid (of a
    bridge), alias (text, "" without one), data (attributes of its kind, as bytes)."""

    cdef public str name, kind, alias
    cdef public bytes address, data
    cdef public uint32_t index, flags, mtu, txqlen, master, peer, operstate, promiscuity, default_pvid
    cdef public bint peer_elsewhere
    cdef public object hairpin, isolated, vlan_filtering

    def __cinit__(self):
        self.name = self.kind = self.alias = ""
        self.address = self.data = b""

    @property
    def up(self):
        return self.flags & IFF_UP != 0

    @property
    def mac(self):
        return self.address.hex(":")


def read_link(bytes payload not None):
    """An RTM_NEWLINK or RTM_DELLINK payload as a Link. Raises ValueError for a message cut short."""
    cdef Attributes found
    cdef Link link = Link()
    cdef link_header head
    if PyBytes_GET_SIZE(payload) < <Py_ssize_t>sizeof(head):
        raise ValueError(f"ifinfomsg of {PyBytes_GET_SIZE(payload)} bytes")
    start(&found, <const uint8_t*>PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), sizeof(head))
    memcpy(&head, found.base, sizeof(head))
    link.index, link.flags = head.index, head.flags
    while step(&found):
        if found.kind == IFLA_IFNAME:
            link.name = PyUnicode_DecodeUTF8(found.text, strnlen(found.text, found.length), "surrogateescape")
        elif found.kind == IFLA_IFALIAS:
            link.alias = PyUnicode_DecodeUTF8(found.text, strnlen(found.text, found.length), "surrogateescape")
        elif found.kind == IFLA_ADDRESS:
            link.address = PyBytes_FromStringAndSize(found.text, found.length)
        elif found.kind == IFLA_MTU:
            link.mtu = number(&found)
        elif found.kind == IFLA_TXQLEN:
            link.txqlen = number(&found)
        elif found.kind == IFLA_MASTER:
            link.master = number(&found)
        elif found.kind == IFLA_LINK:
            link.peer = number(&found)
        elif found.kind == IFLA_LINK_NETNSID:
            link.peer_elsewhere = True
        elif found.kind == IFLA_OPERSTATE:
            link.operstate = number(&found)
        elif found.kind == IFLA_PROMISCUITY:
            link.promiscuity = number(&found)
        elif found.kind == IFLA_LINKINFO:
            read_info(link, &found)
    return link


cdef int read_info(Link link, Attributes* linkinfo) except -1:
    """IFLA_LINKINFO: kind and data, and those of the link that this one is a port of."""
    cdef Attributes info, of_port, of_bridge
    cdef bint is_port = False
    inside(&info, linkinfo)
    inside(&of_port, NULL)
    inside(&of_bridge, NULL)
    while step(&info):
        if info.kind == IFLA_INFO_KIND:
            link.kind = PyUnicode_DecodeASCII(info.text, strnlen(info.text, info.length), "replace")
        elif info.kind == IFLA_INFO_DATA:
            link.data = PyBytes_FromStringAndSize(info.text, info.length)
            inside(&of_bridge, &info)
        elif info.kind == IFLA_INFO_SLAVE_KIND:
            is_port = info.length >= 6 and memcmp(info.text, b"bridge", 6) == 0
        elif info.kind == IFLA_INFO_SLAVE_DATA:
            inside(&of_port, &info)
    if is_port:
        link.hairpin = link.isolated = False
        while step(&of_port):
            if of_port.kind == IFLA_BRPORT_MODE:
                link.hairpin = number(&of_port) != 0
            elif of_port.kind == IFLA_BRPORT_ISOLATED:
                link.isolated = number(&of_port) != 0
    if link.kind == "bridge":
        link.vlan_filtering = False
        while step(&of_bridge):
            if of_bridge.kind == IFLA_BR_VLAN_FILTERING:
                link.vlan_filtering = number(&of_bridge) != 0
            elif of_bridge.kind == IFLA_BR_VLAN_DEFAULT_PVID:
                link.default_pvid = number(&of_bridge)
    return 0
