"""Show netlink datagrams as text, one line for each message: fastcni's requests and the kernel's answers.

    RTM_NEWLINK index 0 ifname veth1a2b3c4d kind veth mtu 1500
    RTM_NEWADDR index 2 local 10.22.0.5/16
    NFT_MSG_NEWSETELEM table fastcni set masquerade, 1 element
    ENODEV: "No such device"
"""

from __future__ import annotations

import errno
import struct
import sys
from collections.abc import Callable, Iterator
from ipaddress import ip_address

from fastcni._netlink import read_ack
from fastcni.kernel import nft, uapi
from fastcni.kernel.sockets import inet_sockets

Attributes = dict[int, bytes]

HEADER = struct.Struct("=IHHII")        # struct nlmsghdr: length, type, flags, sequence, port
MIN_MESSAGE, MIN_ATTRIBUTE = HEADER.size, 4
TYPE_MASK = 0x3FFF                      # NLA_TYPE_MASK: clears the flags "nested" and "network byte order"
MAX_TEXT = 64
DONE = "done"
NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END = 0x10, 0x11           # linux/netfilter/nfnetlink.h
ROUTE_FAMILIES: dict[int, str] = {uapi.AF_INET: "inet", uapi.AF_INET6: "inet6"}
FAMILIES = {0: "", **nft.FAMILIES}


def text(value: bytes) -> str:
    """Return a name from the kernel up to its NUL. U+FFFD replaces control characters."""
    found = value.partition(b"\0")[0][:MAX_TEXT].decode("utf-8", "replace")
    return "".join(char if char.isprintable() else "\ufffd" for char in found)


def integer(value: bytes) -> int:
    return int.from_bytes(value, sys.byteorder)


def number(value: bytes) -> str:
    return str(integer(value))


def mac(value: bytes) -> str:
    return value.hex(":")


def address(value: bytes) -> str:
    return str(ip_address(value)) if len(value) in (4, 16) else value.hex()


def kind(value: bytes) -> str:
    return text(attributes(value).get(uapi.IFLA_INFO_KIND, b""))


Show = tuple[str, Callable[[bytes], str]]
# For each kind of message: the size of struct ifinfomsg, ifaddrmsg and so on, and the attributes to show
LINK: tuple[int, dict[int, Show]] = (16, {
    uapi.IFLA_IFNAME: ("ifname", text), uapi.IFLA_LINKINFO: ("kind", kind), uapi.IFLA_ADDRESS: ("address", mac),
    uapi.IFLA_MTU: ("mtu", number), uapi.IFLA_MASTER: ("master", number), uapi.IFLA_LINK: ("link", number),
    uapi.IFLA_TXQLEN: ("qlen", number), uapi.IFLA_IFALIAS: ("alias", text), uapi.IFLA_NET_NS_FD: ("netns fd", number),
    uapi.IFLA_GROUP: ("group", number)})
ADDRESS: tuple[int, dict[int, Show]] = (8, {
    uapi.IFA_LOCAL: ("local", address), uapi.IFA_ADDRESS: ("address", address),
    uapi.IFA_BROADCAST: ("brd", address)})
ROUTE: tuple[int, dict[int, Show]] = (12, {
    uapi.RTA_DST: ("dst", address), uapi.RTA_GATEWAY: ("via", address), uapi.RTA_OIF: ("oif", number),
    uapi.RTA_PREFSRC: ("src", address), uapi.RTA_PRIORITY: ("metric", number), uapi.RTA_TABLE: ("table", number)})
NEIGHBOUR: tuple[int, dict[int, Show]] = (12, {uapi.NDA_DST: ("dst", address), uapi.NDA_LLADDR: ("lladdr", mac)})
TRAFFIC: tuple[int, dict[int, Show]] = (20, {uapi.TCA_KIND: ("kind", text)})
RULE: tuple[int, dict[int, Show]] = (12, {uapi.FRA_SRC: ("from", address), uapi.FRA_TABLE: ("table", number)})
NETCONF: tuple[int, dict[int, Show]] = (4, {})
# RTM_*: each kind of message has consecutive numbers for NEW, DEL, GET and SET
FAMILY_OF = {uapi.RTM_NEWLINK: ("LINK", LINK), uapi.RTM_NEWADDR: ("ADDR", ADDRESS), uapi.RTM_NEWROUTE: ("ROUTE", ROUTE),
             uapi.RTM_NEWNEIGH: ("NEIGH", NEIGHBOUR), uapi.RTM_NEWRULE: ("RULE", RULE),
             uapi.RTM_NEWQDISC: ("QDISC", TRAFFIC), uapi.RTM_NEWTCLASS: ("TCLASS", TRAFFIC),
             uapi.RTM_NEWTFILTER: ("TFILTER", TRAFFIC), uapi.RTM_NEWNETCONF: ("NETCONF", NETCONF),
             uapi.RTM_GETNSID - 2: ("NSID", NETCONF)}
VERBS = ("NEW", "DEL", "GET", "SET")
# Subsystems of nfnetlink: (prefix, names of the messages in their order). NFT_NAMES: {attribute: its meaning}
NFT = ("NFT_MSG_", "NEWTABLE GETTABLE DELTABLE NEWCHAIN GETCHAIN DELCHAIN NEWRULE GETRULE DELRULE NEWSET GETSET DELSET "
       "NEWSETELEM GETSETELEM DELSETELEM NEWGEN GETGEN TRACE NEWOBJ GETOBJ DELOBJ".split())
NFT_NAMES = {"TABLE": {1: "table"}, "CHAIN": {1: "table", 3: "chain"}, "RULE": {1: "table", 2: "chain"},
             "SET": {1: "table", 2: "set"}, "SETELEM": {1: "table", 2: "set"}}      # NFTA_*_TABLE and NFTA_*_NAME
NFTA_SET_ELEM_LIST_ELEMENTS = 3
IPSET = ("IPSET_CMD_", "NONE PROTOCOL CREATE DESTROY FLUSH RENAME SWAP LIST SAVE ADD DEL TEST HEADER TYPE".split())
IPSET_ATTR_SETNAME = 2
CTNETLINK = ("IPCTNL_MSG_CT_", "NEW GET DELETE GET_CTRZERO GET_STATS_CPU GET_STATS".split())
SUBSYSTEMS = {1: CTNETLINK, 6: IPSET, 10: NFT}                  # NFNL_SUBSYS_*


def lines(datagram: bytes) -> list[str]:
    """Return a line for each message of a datagram; a single "done" for consecutive acknowledgements without an error.
    Truncated or unknown messages become numbers; lines() raises no exception."""
    found = [line(kind_, flags, payload) for kind_, flags, payload in messages(datagram)]
    return [text_ for text_, before in zip(found, ["", *found], strict=False) if not text_ == before == DONE]


def messages(datagram: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield (type, flags, payload) of each message."""
    at = 0
    while at + MIN_MESSAGE <= len(datagram):
        size, kind_, flags, _, _ = HEADER.unpack_from(datagram, at)
        size = max(size, MIN_MESSAGE)
        yield kind_, flags, datagram[at + MIN_MESSAGE:at + size]
        at += (size + 3) & ~3


def attributes(data: bytes) -> Attributes:
    """Return {type: payload} of the attributes of a message. If a type occurs again, its last attribute counts."""
    return dict(attribute_list(data))


def attribute_list(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (type, payload) of each attribute of a message, or of each element of a nested list."""
    at = 0
    while at + MIN_ATTRIBUTE <= len(data):
        size, kind_ = struct.unpack_from("=HH", data, at)
        size = max(size, MIN_ATTRIBUTE)
        yield kind_ & TYPE_MASK, data[at + MIN_ATTRIBUTE:at + size]
        at += (size + 3) & ~3


def line(kind_: int, flags: int, payload: bytes) -> str:
    if kind_ == uapi.NLMSG_ERROR:
        return acknowledgement(kind_, flags, payload)
    if kind_ == uapi.NLMSG_DONE:
        return "end of the dump"
    # The numbers of a batch are also those of RTM_NEWLINK and RTM_DELLINK, whose payload is longer
    if kind_ in (NFNL_MSG_BATCH_BEGIN, NFNL_MSG_BATCH_END) and len(payload) < LINK[0]:
        return "begin transaction" if kind_ == NFNL_MSG_BATCH_BEGIN else "commit transaction"
    # RTM_NEWADDR has the same number as SOCK_DIAG_BY_FAMILY
    if kind_ == uapi.SOCK_DIAG_BY_FAMILY and is_sock_diag(payload):
        return sock_diag(payload)
    return netfilter(kind_, payload) if kind_ >= 1 << 8 else routing(kind_, payload)


def is_sock_diag(payload: bytes) -> bool:
    """Return whether a message belongs to sock_diag(7). RTM_NEWADDR has the same number, but after its header valid
    attributes fill the rest of the message."""
    at = ADDRESS[0]
    while at + MIN_ATTRIBUTE <= len(payload):
        size = int.from_bytes(payload[at:at + 2], sys.byteorder)
        if not MIN_ATTRIBUTE <= size <= len(payload) - at:
            return True
        at += (size + 3) & ~3
    return False


def sock_diag(payload: bytes) -> str:
    """Return the text of a request for sockets, or of a socket (see kernel/sockets/inet_sockets.py)."""
    if len(payload) < inet_sockets.MESSAGE_BYTES:
        return f"SOCK_DIAG_BY_FAMILY {ROUTE_FAMILIES.get(payload[0], str(payload[0]))} protocol {payload[1]}"
    packed = payload[8:24 if payload[0] == uapi.AF_INET6 else 12]
    return f"SOCK_DIAG_BY_FAMILY {address(packed)} port {int.from_bytes(payload[4:6], 'big')}"


def acknowledgement(kind_: int, flags: int, payload: bytes) -> str:
    """Return DONE, or the error with the text of the extended acknowledgement."""
    try:
        code, explanation, _ = read_ack(kind_, flags, payload)
    except ValueError:
        return "an acknowledgement that is cut short"
    if not code:
        return DONE
    name = errno.errorcode.get(code, f"error {code}")
    return f'{name}: "{text(explanation.encode())}"' if explanation else name


def routing(kind_: int, payload: bytes) -> str:
    """Return the text of a message of rtnetlink(7)."""
    name, (size, shown) = FAMILY_OF.get(kind_ & ~3, ("", NETCONF))
    if not name or len(payload) < size:
        return f"message of type {kind_}, {len(payload)} bytes"
    head, found = payload[:size], attributes(payload[size:])
    texts = [f"{label} {show(found[what])}" for what, (label, show) in shown.items() if what in found]
    if shown is LINK[1] or shown is TRAFFIC[1]:
        texts.insert(0, f"index {int.from_bytes(head[4:8], sys.byteorder, signed=True)}")
        if shown is LINK[1] and integer(head[12:16]) & uapi.IFF_UP:         # field ifi_change
            texts.append("up" if integer(head[8:12]) & uapi.IFF_UP else "down")
    elif shown is ADDRESS[1]:
        texts = [f"index {number(head[4:8])}", *texts, f"prefixlen {head[1]}"]
    elif shown is NEIGHBOUR[1]:
        texts.insert(0, f"index {number(head[4:8])}")
    elif shown is ROUTE[1]:
        family = ROUTE_FAMILIES.get(head[0], str(head[0]))
        texts = [family, *([] if uapi.RTA_DST in found else ["default"]), *texts, f"prefixlen {head[1]}"]
    return " ".join([f"RTM_{VERBS[kind_ & 3]}{name}", *texts])


def netfilter(kind_: int, payload: bytes) -> str:
    """Return the text of a message of nfnetlink: nf_tables, ipset or conntrack."""
    prefix, names = SUBSYSTEMS.get(kind_ >> 8, ("", []))
    if kind_ & 0xFF >= len(names) or len(payload) < 4:
        return f"netfilter message of subsystem {kind_ >> 8}, type {kind_ & 0xFF}, {len(payload)} bytes"
    name, found = names[kind_ & 0xFF], attributes(payload[4:])
    texts = [f"{prefix}{name}"]
    if prefix == NFT[0]:
        family, of = FAMILIES.get(payload[0], str(payload[0])), NFT_NAMES.get(name[3:], {})
        texts += [f"{label} {f'{family} ' if label == 'table' else ''}{text(found[what])}"
                  for what, label in of.items() if what in found]
        if name.endswith("SETELEM"):
            texts[-1] += f", {elements(found.get(NFTA_SET_ELEM_LIST_ELEMENTS, b''))}"
    elif prefix == IPSET[0] and IPSET_ATTR_SETNAME in found:
        texts.append(f"set {text(found[IPSET_ATTR_SETNAME])}")
    return " ".join(texts)


def elements(nested: bytes) -> str:
    """Return the number of elements in a nested list as text, such as "2 elements"."""
    count = sum(1 for _ in attribute_list(nested))
    return f"{count} element{'' if count == 1 else 's'}"
