"""firewall by iptables, with the reference plugin's chains in table filter. Pods are in an ipset a family, so a packet
passes two rules, however many pods there are, and an ADD or DEL runs no program:

    -A FORWARD -m comment --comment "CNI firewall plugin rules" -j CNI-FORWARD
    -A CNI-FORWARD -m comment --comment "CNI firewall plugin admin overrides" -j CNI-ADMIN
    -A CNI-FORWARD -m set --match-set fastcni-forward4 dst -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    -A CNI-FORWARD -m set --match-set fastcni-forward4 src -j ACCEPT

Where the kernel or iptables has no sets, each pod has the last two rules of its own, with its address in the place of
the set, as in the reference plugin. Whose an address is neither says: kit/firewall/owners.py does.
"""

from errno import EEXIST, EINVAL, ENOENT

from fastcni._netlink import Batch
from fastcni.kernel import ipset, netns, wire
from fastcni.kit.firewall import iptables
from fastcni.kit.firewall.elements import AT_ONCE
from fastcni.kit.firewall.forward_iptables_chain import (
    FORWARD,
    TABLE,
    jumps,
    leads,
    look,
    ready,
    rules,
    set_of,
    set_rules,
)
from fastcni.kit.firewall.owners import Notes, release
from fastcni.spec import address as addresses
from fastcni.spec.errors import CniError

MOST = 1 << 20                  # members of a set; ipset(8) has 65,536 for it
# EINVAL: a kernel without ipset; the others: somebody else's set of this name, of another kind
NO_SET = (ENOENT, EINVAL, EEXIST, ipset.IPSET_ERR_FIND_TYPE, ipset.IPSET_ERR_PROTOCOL)


def stores():
    return [notes()]


def notes():
    return Notes("iptables-forward")


def add(req, conf):
    notes().add(req, notes().items(conf.ips))
    put(req, conf)


def put(req, conf):
    """Let the addresses through: members of the sets, or rules of their own. Raises CniError with what iptables said,
    NetlinkError."""
    members = []
    for length, ips in by_length(conf.ips):
        if ready_or_made(req, length, conf.admin_chain):
            members += ips
        else:
            settle(req, length, conf.admin_chain, [rule for packed in ips for rule in rules(packed)])
    for refused in in_sets(req, ipset.add, members):
        raise refused


def by_length(ips):
    """[(length, packed addresses of this length)], without those of which there are none."""
    found = [(length, [packed for packed in ips if len(packed) == length]) for length in iptables.PROGRAMS]
    return [each for each in found if each[1]]


def in_sets(req, verb, ips, *fine):
    """Add addresses to their sets, delete them or test them: the kernel's refusals, but for the errnos that are fine.
    Each address is a message of its own, many are one send."""
    found = []
    for at in range(0, len(ips), AT_ONCE):
        batch = Batch()
        for packed in ips[at:at + AT_ONCE]:
            verb(batch, set_of(len(packed)), packed)
        found += [refused for refused in wire.attempt(req.mode.firewall, batch)[1] if refused.errno not in fine]
    return found


def ready_or_made(req, length, admin_chain):
    """Have the set and the rules that look into it. False where there can be none."""
    if ready(req, length, admin_chain):
        return True
    if not has_set(req.mode.firewall, length):
        return False
    fd = netns.open_own()
    try:
        # iptables has no way to add a rule unless it is there: of ADDs at once each would add its own two.
        with netns.locked(fd, lambda _: req.warn("somebody else has locked the node's network namespace; without the "
                                                 f"lock the rules about {set_of(length)} may be added twice")):
            settle(req, length, admin_chain, set_rules(length))
    except CniError:
        return False            # an iptables without libxt_set; what else is wrong the other way fails with, too
    finally:
        netns.close_file(fd)
    return True


def has_set(sock, length):
    """Make the set, if it is not there. False where the kernel has no sets that rules can look into."""
    _, refused = wire.attempt(sock, ipset.get_match(Batch(), length))
    if refused:
        return False
    _, refused = wire.attempt(sock, ipset.create(Batch(), set_of(length), length, MOST))
    if refused and refused[0].errno not in NO_SET:
        raise refused[0]
    return not refused


def settle(req, length, admin_chain, wanted):
    """Run iptables for the chains, their jumps and the `wanted` rules that are not there."""
    iptables.settle(req, iptables.PROGRAMS[length], TABLE, lambda lines: commands(lines, admin_chain, wanted))


def commands(lines, admin_chain, wanted):
    for chain in dict.fromkeys((FORWARD, admin_chain)):
        if not iptables.has_line(lines, chain):
            yield f"-N {chain}"
    for chain, words, target in jumps(admin_chain):
        if not leads(lines, chain, target):
            yield f'-I {chain} 1 -m comment --comment "CNI firewall plugin {words}" -j {target}'
    yield from (rule for rule in wanted if rule not in lines)


def delete(req, conf):
    """Remove what ADD did, also by the reference plugin, and also where another backend knows the pod, too: the
    reference may have added it again. No program is run where no rule names the pod. Gone is fine."""
    # The reference has no backend nftables, so there it made no rules that only a program could show.
    possible = [packed for packed in conf.ips
                if conf.backend != "nftables" or not iptables.legacy(req, TABLE, len(packed))]
    ips, noted = notes().to_take_back(req, possible)
    take_back(req, ips, noted, ips)


def gc(req, conf):
    lost = notes().lost(req)
    ips = [packed for _, packed, _ in lost]
    # The rules of an address in the set are of a pod that the reference plugin added since, after a DEL of its own.
    take_back(req, ips, lost, [packed for packed in ips if in_sets(req, ipset.test, [packed])])
    release(req, "iptables", lost)


def restore(req, conf):
    notes().restore(req, notes().items(conf.ips))
    put(req, conf)


def take_back(req, ips, noted, with_rules):
    """Take addresses from the sets, delete the rules that some of them have of their own, then the notes."""
    members = []
    for length, some in by_length(ips):
        there = look(req, length)
        if noted or there.looks_into_set(length):
            members += some
        if some := [packed for packed in some if packed in with_rules and there.may_have_rules_of(packed)]:
            delete_rules(req, iptables.PROGRAMS[length], [rule for packed in some for rule in rules(packed)])
    for refused in in_sets(req, ipset.delete, members, *NO_SET):
        raise refused
    notes().remove(req, noted)


def delete_rules(req, program, ours):
    if not iptables.find(req, program + "-restore"):
        return                  # a host without this family's program has no rules of ours in it
    if iptables.attempt(req, program, ["-D" + rule[2:] for rule in ours], TABLE).status:
        there = {*iptables.read(req, program, TABLE)}       # some are gone already
        iptables.remove(req, program, [], [rule for rule in ours if rule in there], table=TABLE)


def filters(req):
    """Does iptables filter what the node forwards? Then a packet that it drops is dropped, whatever nftables says."""
    return iptables.has_chain(req, "FORWARD", TABLE)


def missing(req, conf):
    """For CHECK: what is not there, in the reference's words, or "" where all is."""
    for length, ips in by_length(conf.ips):
        there = look(req, length)
        for chain, _, target in reversed(jumps(conf.admin_chain)):
            if not there.leads(chain, target):
                return f"expected {chain} rule [-j {target}] not found"
        for packed in ips:
            in_set = there.looks_into_set(length) and not in_sets(req, ipset.test, [packed])
            if not in_set and (wrong := missing_rule(req, there, packed)):
                return wrong
    return ""


def missing_rule(req, there, packed):
    """What a pod lacks that is not in the set."""
    length = len(packed)
    if not there.may_have_rules_of(packed):
        return f"neither ipset {set_of(length)} nor {FORWARD} has {addresses.ip_text(packed)}"
    lines = iptables.read(req, iptables.PROGRAMS[length], TABLE)
    return next((f"expected rule [{rule.partition(f'-A {FORWARD} ')[2]}] not found" for rule in rules(packed)
                 if rule not in lines), "")


def status(req):
    """Raises CniError 50 where neither family's iptables works."""
    iptables.need_one(req, TABLE)
