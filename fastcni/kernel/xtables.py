"""Facts of the legacy iptables that the kernel gives without running a program."""

from __future__ import annotations

from _socket import AF_INET, AF_INET6, IPPROTO_IP, IPPROTO_IPV6, SOCK_CLOEXEC, SOCK_DGRAM, socket

from fastcni._system import getsockopt

IPT_SO_GET_INFO = 64            # linux/netfilter_ipv4/ip_tables.h; ip6_tables.h has the same number
INFO_BYTES = 84                 # name[32], then thirteen numbers
SOCKETS = {4: (AF_INET, IPPROTO_IP), 16: (AF_INET6, IPPROTO_IPV6)}          # by length of an address


def get_info(length: int, table: str) -> bytes:
    """struct ipt_getinfo: how many rules and bytes a table has, and where its chains begin and end. It differs after
    almost any change; the legacy iptables announces no changes. Raises OSError, ENOENT without such a table."""
    family, level = SOCKETS[length]
    sock = socket(family, SOCK_DGRAM | SOCK_CLOEXEC)
    try:
        return getsockopt(sock.fileno(), level, IPT_SO_GET_INFO, table.encode().ljust(INFO_BYTES, b"\0"))
    finally:
        sock.close()
