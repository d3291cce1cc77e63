"""Accept pods' traffic by iptables, with the reference plugin's chains in table filter, and an ipset of pods for each
family.

The number of rules does not depend on the number of pods, and an ADD or DEL changes only the ipset, without a program:

    -A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
    -A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
    -A CNI-FORWARD -m set --match-set fastcni-forward4 dst -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    -A CNI-FORWARD -m set --match-set fastcni-forward4 src -j ACCEPT

If the kernel or iptables does not support sets, each pod has its own copy of the last two rules, with the pod's address
in place of the set, as in the reference plugin. kit/firewall/owners.py records the attachment of each address.
"""

from __future__ import annotations

from errno import EEXIST, EINVAL, ENOENT

from fastcni._netlink import Batch
from fastcni.kernel import ipset, netns, wire
from fastcni.kit.firewall import iptables
from fastcni.kit.firewall.forward.iptables_chain import (
    FORWARD,
    TABLE,
    Rules,
    jumps,
    leads,
    look,
    rules,
    set_of,
    set_rules,
)
from fastcni.kit.firewall.owners import OwnerRecords, release
from fastcni.spec import address as addresses
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
    from typing import Any

    from fastcni.kernel.wire import NetlinkError, Socket
    from fastcni.kit.call.request import Request
    from fastcni.kit.firewall.elements import Store
    from fastcni.kit.firewall.forward.keys import Conf

MAX_MEMBERS = 1 << 20           # most members of a set; the default of ipset(8) is 65,536
# EINVAL: this kernel has no ipset. The other errnos: another program has made a set of this name, of another type
NO_SET = (ENOENT, EINVAL, EEXIST, ipset.IPSET_ERR_FIND_TYPE, ipset.IPSET_ERR_PROTOCOL)


def stores() -> list[Store]:
    return [records()]


def records() -> OwnerRecords:
    return OwnerRecords("iptables-forward")


def add(req: Request, conf: Conf) -> None:
    """Accept traffic of the addresses. Raises NetlinkError, and CniError with the message of iptables."""
    records().add(req, records().items(conf.ips))
    add_members(req, conf, recent=True)


def add_members(req: Request, conf: Conf, *, recent: bool) -> None:
    """Add the addresses to the sets; without sets, add rules for each address. recent: see iptables.read_legacy()."""
    members: dict[bytes, None] = {}
    for length, ips in by_length(conf.ips):
        for found in look(req, length, recent=recent):
            if ready_or_made(found, conf.admin_chain):
                members.update(dict.fromkeys(ips))
            else:
                add_rules(found, conf.admin_chain, [rule for packed in ips for rule in rules(packed)])
    for refused in in_sets(req, ipset.add, [*members]):
        raise refused


def by_length(ips: Iterable[bytes]) -> list[tuple[int, list[bytes]]]:
    """Return [(length, packed addresses of this length)] for each length that `ips` has."""
    found = [(length, [packed for packed in ips if len(packed) == length]) for length in iptables.PROGRAMS]
    return [each for each in found if each[1]]


def in_sets(req: Request, verb: Callable[..., Any], ips: Sequence[bytes], *fine: int) -> list[NetlinkError]:
    """Add, delete or test addresses in the ipsets: `verb` is add(), delete() or test() of kernel/ipset.py.

    fine: errnos that are no error. Return the kernel's other errors. Each message is about one address.
    """
    found: list[NetlinkError] = []
    for batch in wire.in_batches(ips, lambda batch, packed: verb(batch, set_of(len(packed)), packed)):
        found += [refused for refused in wire.attempt(req.mode.firewall, batch)[1] if refused.errno not in fine]
    return found


def ready_or_made(found: Rules, admin_chain: str) -> bool:
    """Add the set and the rules that use it, if they are missing. Return False if the kernel or iptables does not
    support sets."""
    if found.ready(admin_chain):
        return True
    req, length = found.req, found.length
    if not has_set(req.mode.firewall, length):
        return False
    fd = netns.open_own()
    try:
        # iptables cannot test and add a rule in one step. Without the lock, concurrent ADDs would add duplicates.
        with netns.locked(fd, lambda _: req.warn("another program has locked the node's network namespace; without the "
                                                 f"lock the rules about {set_of(length)} may be added twice")):
            add_rules(found, admin_chain, set_rules(length))
    except CniError:
        return False            # iptables has no libxt_set; after any other error, rules without sets fail, too
    finally:
        netns.close_file(fd)
    return True


def has_set(sock: Socket, length: int) -> bool:
    """Add the set if it is missing. Return False if the kernel has no sets that rules can use."""
    _, refused = wire.attempt(sock, ipset.get_match(Batch(), length))
    if refused:
        return False
    return wire.succeeds(sock, ipset.create(Batch(), set_of(length), length, MAX_MEMBERS), NO_SET)


def add_rules(found: Rules, admin_chain: str, wanted: Sequence[str]) -> None:
    """Run iptables to add the missing chains, the missing jumps and the missing rules of `wanted`."""
    iptables.retry(found.req, found.program or iptables.PROGRAMS[found.length], TABLE,
                   lambda lines: commands(lines, admin_chain, wanted))


def commands(lines: list[str], admin_chain: str, wanted: Sequence[str]) -> Iterator[str]:
    for chain in dict.fromkeys((FORWARD, admin_chain)):
        if not iptables.has_line(lines, chain):
            yield f"-N {chain}"
    for chain, text, target in jumps(admin_chain):
        if not leads(lines, chain, target):
            yield f'-I {chain} 1 -m comment --comment "CNI firewall plugin {text}" -j {target}'
    yield from (rule for rule in wanted if rule not in lines)


def delete(req: Request, conf: Conf) -> None:
    """Remove the set members and rules that an ADD of fastcni or of the reference plugin added. A missing member or
    rule is no error.

    The reference plugin may have added rules for a pod of another backend. No program runs if no rule names the pod.
    """
    ips, recorded = records().to_delete(req, conf.ips)
    remove(req, ips, recorded, ips)


def gc(req: Request, conf: Conf) -> None:
    stale = records().stale(req)
    ips = [packed for _, packed, _ in stale]
    # If the set has an address, fastcni added no rules with the address. Rules with the address then belong to a later
    # pod of the reference plugin.
    remove(req, ips, stale, [packed for packed in ips if in_sets(req, ipset.test, [packed])])
    release(req, "iptables", stale)


def restore(req: Request, conf: Conf) -> None:
    """Add the missing records and rules. Raises CniError 11 if another attachment now has one of the addresses."""
    records().restore(req, records().items(conf.ips))
    add_members(req, conf, recent=False)


def remove(req: Request, ips: Sequence[bytes], recorded: Sequence[tuple[Any, ...]],
           with_rules: Collection[bytes]) -> None:
    """Delete addresses from the sets, then the rules for the addresses in `with_rules`, then the owner records."""
    members = []
    for length, some in by_length(ips):
        # The reference plugin may have added rules for an address without a record.
        kinds = look(req, length, shared=bool(recorded), recent=bool(recorded))
        for found in kinds:
            if named := [packed for packed in some if packed in with_rules and found.may_have_rules_of(packed)]:
                delete_rules(found, [rule for packed in named for rule in rules(packed)])
        if recorded or any(found.looks_into_set() for found in kinds):
            members += some
    for refused in in_sets(req, ipset.delete, members, *NO_SET):
        raise refused
    records().remove(req, recorded)


def delete_rules(found: Rules, ours: Sequence[str]) -> None:
    req, program = found.req, found.program
    if not iptables.find(req, program + "-restore"):
        return                  # the host lacks this family's program, so it has no rules of fastcni
    if iptables.attempt(req, program, ["-D" + rule[2:] for rule in ours], TABLE).status:
        there = {*iptables.read(req, program, TABLE)}       # some rules may no longer exist
        iptables.remove(req, program, [], [rule for rule in ours if rule in there], table=TABLE)


def filters(req: Request) -> bool:
    """Return whether iptables filters the packets that the node forwards. iptables can drop a packet that
    nftables accepts.
    """
    return iptables.legacy(req, TABLE) or iptables.has_chain(req, "FORWARD", TABLE, legacy=False)


def recorded(req: Request, conf: Conf) -> bool:
    """Return whether the owner records show that ADD used this backend for the attachment."""
    return records().knows(req, conf.ips)


def missing(req: Request, conf: Conf) -> str:
    """For CHECK: return the first missing rule or element, in the reference plugin's text, or ""."""
    for length, ips in by_length(conf.ips):
        for found in look(req, length):
            for chain, _, target in reversed(jumps(conf.admin_chain)):
                if not found.leads(chain, target):
                    return f"expected {chain} rule [-j {target}] not found"
            for packed in ips:
                in_set = found.looks_into_set() and not in_sets(req, ipset.test, [packed])
                if not in_set and (wrong := missing_rule(found, packed)):
                    return wrong
    return ""


def missing_rule(found: Rules, packed: bytes) -> str:
    """Return the first missing rule of an address that is not in the set, or ""."""
    length = len(packed)
    if not found.may_have_rules_of(packed):
        return f"neither ipset {set_of(length)} nor {FORWARD} has {addresses.ip_text(packed)}"
    lines = iptables.read(found.req, found.program, TABLE)
    return next((f"expected rule [{rule.partition(f'-A {FORWARD} ')[2]}] not found" for rule in rules(packed)
                 if rule not in lines), "")


def status(req: Request) -> None:
    """For STATUS: raise CniError 50 if neither iptables nor ip6tables works."""
    iptables.need_one(req, TABLE)
