# cython: language_level=3, boundscheck=False, wraparound=False, initializedcheck=False, cdivision=True
# cython: binding=False, auto_pickle=False
"""Encode the headers of rtnetlink(7), and decode a link from the kernel's message (linux/if_link.h).

This module is compiled, because an ADD encodes ten headers and decodes four links.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from cpython.unicode cimport PyUnicode_AsUTF8AndSize, PyUnicode_DecodeASCII, PyUnicode_DecodeUTF8
from libc.stdint cimport int32_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy, memset

from fastcni._attributes cimport Attributes, inside, number, start, step

cdef extern from "<string.h>" nogil:
    size_t strnlen(const char* text, size_t most)

cdef extern from *:
    """
    #include <linux/if.h>
    #include <linux/if_addr.h>
    #include <linux/if_link.h>
    #include <linux/rtnetlink.h>
    #include <linux/sockios.h>
    #include <string.h>
    #include <sys/ioctl.h>

    static int link_index(int sock, const char *name, size_t size)
    {
        struct ifreq asked = { .ifr_ifindex = 0 };
        if (size >= IFNAMSIZ)
            return 0;
        memcpy(asked.ifr_name, name, size);
        return ioctl(sock, SIOCGIFINDEX, &asked) ? 0 : asked.ifr_ifindex;
    }
    """
    int link_index(int sock, const char* name, size_t size)
    enum: IFF_UP
    enum: IFLA_ADDRESS, IFLA_IFALIAS, IFLA_IFNAME, IFLA_LINK, IFLA_LINKINFO, IFLA_LINK_NETNSID, IFLA_MASTER, IFLA_MTU
    enum: IFLA_OPERSTATE, IFLA_PROMISCUITY, IFLA_TXQLEN
    enum: IFLA_INFO_DATA, IFLA_INFO_KIND, IFLA_INFO_SLAVE_DATA, IFLA_INFO_SLAVE_KIND
    enum: IFLA_BR_VLAN_DEFAULT_PVID, IFLA_BR_VLAN_FILTERING, IFLA_BRPORT_ISOLATED, IFLA_BRPORT_MODE
    ctypedef struct link_header "struct ifinfomsg":
        uint8_t ifi_family
        int32_t ifi_index
        uint32_t ifi_flags, ifi_change
    ctypedef struct address_header "struct ifaddrmsg":
        uint8_t ifa_family, ifa_prefixlen, ifa_flags, ifa_scope
        uint32_t ifa_index
    ctypedef struct route_header "struct rtmsg":
        uint8_t rtm_family, rtm_dst_len, rtm_table, rtm_protocol, rtm_scope, rtm_type


def ifinfomsg(int32_t index=0, uint32_t flags=0, uint32_t change=0, uint8_t family=0):
    """Return a struct ifinfomsg as bytes. Its hardware type is 0, because the kernel sets this type."""
    cdef link_header head
    memset(&head, 0, sizeof(head))
    head.ifi_family, head.ifi_index, head.ifi_flags, head.ifi_change = family, index, flags, change
    return PyBytes_FromStringAndSize(<const char*>&head, sizeof(head))


def ifaddrmsg(uint8_t family, uint8_t prefix, uint32_t index, uint8_t scope=0, uint8_t flags=0):
    """Return a struct ifaddrmsg as bytes."""
    cdef address_header head
    head.ifa_family, head.ifa_prefixlen, head.ifa_flags, head.ifa_scope = family, prefix, flags, scope
    head.ifa_index = index
    return PyBytes_FromStringAndSize(<const char*>&head, sizeof(head))


def rtmsg(uint8_t family, uint8_t prefix=0, *, uint32_t table=0, uint8_t protocol=0, uint8_t scope=0, uint8_t kind=0):
    """Return a struct rtmsg as bytes. rtm_table is RT_TABLE_UNSPEC for a table above 255, which needs the attribute
    RTA_TABLE."""
    cdef route_header head
    memset(&head, 0, sizeof(head))
    head.rtm_family, head.rtm_dst_len, head.rtm_table = family, prefix, table if table < 256 else 0
    head.rtm_protocol, head.rtm_scope, head.rtm_type = protocol, scope, kind
    return PyBytes_FromStringAndSize(<const char*>&head, sizeof(head))


@cython.final
cdef class Link:
    """The fields of an RTM_NEWLINK that fastcni needs: name, index, kind ("" for physical), mtu, txqlen (packets that
    may wait), address (bytes), master and peer (indexes, 0 without a master or peer), peer_elsewhere (the peer is in
    another namespace), flags, operstate, promiscuity, hairpin and isolated (of a bridge port, else None),
    vlan_filtering and default_pvid (of a bridge), alias (text, "" without an alias), data (attributes of its kind, as
    bytes)."""

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
    """Return an RTM_NEWLINK or RTM_DELLINK payload as a Link. Raises ValueError for a message cut short."""
    cdef Attributes found
    cdef Link link = Link()
    cdef link_header head
    if PyBytes_GET_SIZE(payload) < <Py_ssize_t>sizeof(head):
        raise ValueError(f"ifinfomsg of {PyBytes_GET_SIZE(payload)} bytes")
    start(&found, <const uint8_t*>PyBytes_AS_STRING(payload), PyBytes_GET_SIZE(payload), sizeof(head))
    memcpy(&head, found.base, sizeof(head))
    link.index, link.flags = head.ifi_index, head.ifi_flags
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
    """Read IFLA_LINKINFO: the link's kind and data, the flags of a bridge port, the VLAN settings of a bridge."""
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


def index_of(int sock, str name not None):
    """Return the index of a link in the network namespace of a socket of any kind; 0 if the link does not exist.
    Source: netdevice(7), SIOCGIFINDEX, which does not wait for the kernel's RTNL lock as RTM_GETLINK does."""
    cdef Py_ssize_t size
    cdef const char* text = PyUnicode_AsUTF8AndSize(name, &size)
    return link_index(sock, text, size)
