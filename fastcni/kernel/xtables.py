"""Read the state of legacy iptables tables from the kernel, without running iptables.

    table = xtables.read_table(4, "filter")
    table.leads("FORWARD", "DOCKER-USER")       whether the rule -A FORWARD ... -j DOCKER-USER exists
    table.drops("FORWARD")                      whether the policy is DROP

Layouts: linux/netfilter/x_tables.h, linux/netfilter_ipv4/ip_tables.h and linux/netfilter_ipv6/ip6_tables.h.
"""

from __future__ import annotations

import sys
from _socket import AF_INET, AF_INET6, IPPROTO_IP, IPPROTO_IPV6, SOCK_CLOEXEC, SOCK_DGRAM, socket
from errno import EAGAIN, ENOENT

from fastcni._system import getsockopt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

IPT_SO_GET_INFO, IPT_SO_GET_ENTRIES = 64, 65    # linux/netfilter_ipv4/ip_tables.h; ip6_tables.h has the same numbers
XT_TABLE_MAXNAMELEN, XT_EXTENSION_MAXNAMELEN = 32, 29
XT_ERROR_TARGET = "ERROR"       # the target of the entry before a user-defined chain; its data is the chain's name
INFO_BYTES = 84                 # struct ipt_getinfo: name[32], then thirteen numbers
HOOK_ENTRY, UNDERFLOW, SIZE = 36, 56, 80        # offsets of hook_entry[5], underflow[5] and size in struct ipt_getinfo
ENTRIES_BYTES = 40              # struct ipt_get_entries without its entries: name[32], size, padding
SOCKETS = {4: (AF_INET, IPPROTO_IP), 16: (AF_INET6, IPPROTO_IPV6)}          # by length of an address
HOOKS = {"PREROUTING": 0, "INPUT": 1, "FORWARD": 2, "OUTPUT": 3, "POSTROUTING": 4}      # NF_INET_*
ENTRY_BYTES = {4: 112, 16: 168}         # struct ipt_entry, struct ip6t_entry; matches and the target follow
TARGET_OFFSET = {4: 88, 16: 140}        # offset of u16 target_offset in the entry; u16 next_offset follows
ERROR_NAME_BYTES = 32           # bytes of errorname[30] in struct xt_error_target, aligned
MAX_TRIES = 5                   # tries while other programs change the table between two calls
DROP = -1                       # the kernel's verdict for a drop: -NF_DROP - 1
# struct xt_standard_target: u16 size, name[29], u8 revision, int verdict; struct xt_entry_target of REJECT: size, name
STANDARD_BYTES = (40).to_bytes(2, sys.byteorder)
DROPPING, REJECTING = STANDARD_BYTES + bytes(30) + b"\xff" * 4, STANDARD_BYTES + b"REJECT\0"


def get_info(length: int, table: str) -> bytes:
    """Return struct ipt_getinfo of a legacy iptables table, 84 bytes.

    length: the address length in bytes, 4 or 16. table: the table's name, "filter". Almost any change of the table
    changes this struct, which has the number of rules, their size, and where each built-in chain begins and ends. The
    kernel sends no notification of a change. Raises OSError; errno is ENOENT if the table does not exist.
    """
    return _ask(length, IPT_SO_GET_INFO, table.encode(), INFO_BYTES)


def forward_bytes(info: bytes) -> int:
    """Return the size in bytes of the rules in chain FORWARD; info: the answer of get_info() about table filter."""
    hook = 4 * HOOKS["FORWARD"]
    return number(info, UNDERFLOW + hook) - number(info, HOOK_ENTRY + hook)


def read_table(length: int, table: str) -> Table:
    """Return the rules of a table. The arguments and errors are the same as for get_info()."""
    for left in reversed(range(MAX_TRIES)):
        info = get_info(length, table)
        size = number(info, SIZE)
        question = table.encode().ljust(XT_TABLE_MAXNAMELEN, b"\0") + size.to_bytes(4, sys.byteorder)
        try:
            entries = _ask(length, IPT_SO_GET_ENTRIES, question, ENTRIES_BYTES + size)
        except OSError as e:
            if e.errno != EAGAIN or not left:           # EAGAIN: the table now has another size
                raise
        else:
            return Table(length, info, entries)
    raise AssertionError


def _ask(length: int, option: int, question: bytes, size: int) -> bytes:
    family, level = SOCKETS[length]
    try:
        sock = socket(family, SOCK_DGRAM | SOCK_CLOEXEC)
    except OSError as e:                # a kernel without IPv6 has no IPv6 tables
        raise OSError(ENOENT, e.strerror) from None
    try:
        return getsockopt(sock.fileno(), level, option, question, size)
    finally:
        sock.close()


def number(data: bytes, at: int, size: int = 4) -> int:
    return int.from_bytes(data[at:at + size], sys.byteorder)


def text(data: bytes, at: int, size: int) -> str:
    """Return a name that ends with NUL."""
    return data[at:at + size].partition(b"\0")[0].decode("latin-1")


class Table:
    """The rules of a legacy table. A rule is the bytes of its struct ipt_entry, with matches and target.

    length: the address length in bytes, 4 or 16. info: the answer of get_info() to which the rules belong. entries:
    struct ipt_get_entries; the kernel's offsets count from ENTRIES_BYTES.
    """

    __slots__ = ("length", "info", "entries")

    def __init__(self, length: int, info: bytes, entries: bytes) -> None:
        self.length, self.info, self.entries = length, info, entries

    def has_chain(self, chain: str) -> bool:
        return chain in HOOKS or self._start(chain) >= 0

    def drops(self, chain: str) -> bool:
        """Return whether the policy of a built-in chain is DROP."""
        entry = self._entry(ENTRIES_BYTES + number(self.info, UNDERFLOW + 4 * HOOKS[chain]))
        return self._verdict(entry) == DROP

    def refusals(self) -> int:
        """Return how many rules and policies drop packets, plus how many rules reject packets."""
        return self.entries.count(DROPPING) + self.entries.count(REJECTING)

    def rules(self, chain: str) -> Iterator[bytes]:
        """Yield the rules of a chain, without the policy of a built-in chain. Yield nothing if the chain does not
        exist.
        """
        hook = HOOKS.get(chain)
        if hook is None:
            at, end = self._start(chain), len(self.entries)
        else:
            at, end = (ENTRIES_BYTES + number(self.info, where + 4 * hook) for where in (HOOK_ENTRY, UNDERFLOW))
        while 0 <= at < end:
            entry = self._entry(at)
            if self._target(entry)[0] == XT_ERROR_TARGET:       # this entry begins the next chain, or ends the table
                return
            yield entry
            at += len(entry)

    def leads(self, chain: str, target: str) -> bool:
        """Return whether a rule of a chain jumps to the chain `target`."""
        start = self._start(target)
        return start >= 0 and any(self._verdict(entry) == start - ENTRIES_BYTES for entry in self.rules(chain))

    def targets(self, chain: str) -> Iterator[str]:
        """Yield the names of the user-defined chains to which the rules of a chain jump."""
        for rule in self.rules(chain):
            verdict = self._verdict(rule)
            if verdict is not None and verdict >= 0:
                # The entry before a chain's first rule has the chain's name; name[30] and padding end that entry
                yield text(self.entries, ENTRIES_BYTES + verdict - ERROR_NAME_BYTES, ERROR_NAME_BYTES)

    def matches(self, rule: bytes, name: str) -> Iterator[bytes]:
        """Yield the data of a rule's matches with this name, such as "set"."""
        at, end = ENTRY_BYTES[self.length], self._target_offset(rule)
        while at < end:
            size, found, data = self._extension(rule, at)
            if found == name:
                yield data
            at += size

    def mentions(self, rule: bytes, packed: bytes) -> bool:
        """Return whether a rule has -s or -d with exactly the address `packed`, not inverted."""
        size = self.length
        source, destination, *masks = (rule[at:at + size] for at in range(0, 4 * size, size))
        whole = b"\xff" * size
        return (packed, whole) in ((source, masks[0]), (destination, masks[1]))

    def _start(self, chain: str) -> int:
        """Return the offset of the first rule of a user-defined chain, -1 if the chain does not exist."""
        name = chain.encode()
        at = -1
        while (at := self.entries.find(b"\0" + name + b"\0", at + 1)) >= 0:
            # name[30] of struct xt_error_target follows u16 size, name[29] and u8 revision
            begin = at + 1 - 2 - XT_EXTENSION_MAXNAMELEN - 1
            size, found, _ = self._extension(self.entries, begin)
            if found == XT_ERROR_TARGET and begin >= ENTRIES_BYTES:
                return begin + size
        return -1

    def _entry(self, at: int) -> bytes:
        return self.entries[at:at + number(self.entries, at + TARGET_OFFSET[self.length] + 2, 2)]

    def _target_offset(self, entry: bytes) -> int:
        return number(entry, TARGET_OFFSET[self.length], 2)

    def _target(self, entry: bytes) -> tuple[str, bytes]:
        _, name, data = self._extension(entry, self._target_offset(entry))
        return name, data

    def _verdict(self, entry: bytes) -> int | None:
        """Return the offset that a rule jumps to, or its verdict, which is negative; None for an extension's target."""
        name, data = self._target(entry)
        return None if name else int.from_bytes(data[:4], sys.byteorder, signed=True)

    @staticmethod
    def _extension(data: bytes, at: int) -> tuple[int, str, bytes]:
        """Return (size, name, data) of struct xt_entry_match or xt_entry_target: u16 size, name[29], u8 revision."""
        size, begin = number(data, at, 2), at + 2
        name = text(data, begin, XT_EXTENSION_MAXNAMELEN)
        return size, name, data[begin + XT_EXTENSION_MAXNAMELEN + 1:at + size]
