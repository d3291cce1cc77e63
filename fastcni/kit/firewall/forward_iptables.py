"""firewall by iptables, with the reference plugin's chains in table filter: one run of iptables-save and one of
iptables-restore a family. Of a pod there is

    -A CNI-FORWARD -d 10.22.0.5/32 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
    -A CNI-FORWARD -s 10.22.0.5/32 -j ACCEPT

and for all pods together CNI-FORWARD, at the head of FORWARD, and the administrator's chain at its own head. Whose an
address is these rules do not say: kit/firewall/notes.py does.
"""

from fastcni.kit.firewall import iptables
from fastcni.kit.firewall.notes import Notes
from fastcni.spec import address as addresses

TABLE, FORWARD = "filter", "CNI-FORWARD"


def notes():
    return Notes("iptables-forward")


def add(req, conf):
    notes().add(req, notes().items(conf.ips))
    put(req, conf)


def put(req, conf):
    """Add what iptables lacks of it. Raises CniError with what iptables said."""
    for program, ips in by_program(conf.ips):
        iptables.settle(req, program, TABLE, lambda lines, ips=ips: commands(lines, conf.admin_chain, ips))


def by_program(ips):
    """[(program, packed addresses of its family)], without those of which there are none."""
    found = [(program, [packed for packed in ips if len(packed) == length])
             for length, program in iptables.PROGRAMS.items()]
    return [each for each in found if each[1]]


def commands(lines, admin_chain, ips):
    for chain in dict.fromkeys((FORWARD, admin_chain)):
        if not iptables.has_line(lines, chain):
            yield f"-N {chain}"
    for chain, words, target in ((FORWARD, "admin overrides", admin_chain), ("FORWARD", "rules", FORWARD)):
        if not leads(lines, chain, target):
            yield f'-I {chain} 1 -m comment --comment "CNI firewall plugin {words}" -j {target}'
    yield from (rule for packed in ips for rule in rules(packed) if rule not in lines)


def leads(lines, chain, target):
    return any(line.startswith(f"-A {chain} ") and iptables.target(line) == target for line in lines)


def rules(packed):
    """The rules of an address, as iptables-save prints them."""
    text = addresses.cidr_text(packed, 8 * len(packed))
    return (f"-A {FORWARD} -d {text} -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT",
            f"-A {FORWARD} -s {text} -j ACCEPT")


def delete(req, conf, elsewhere):
    """Take back what ADD did, also by the reference plugin; `elsewhere`: another backend lets the pod through, so
    nothing is here but what is noted, and no program is run. Gone is fine."""
    take_back(req, *notes().to_take_back(req, [] if elsewhere else conf.ips))


def gc(req, conf):
    lost = notes().lost(req)
    take_back(req, [packed for _, packed in lost], lost)


def restore(req, conf):
    notes().restore(req, notes().items(conf.ips))
    put(req, conf)


def take_back(req, ips, noted):
    """Delete the rules of addresses, then their notes."""
    if ips and present(req):
        for program, some in by_program(ips):
            ours = [rule for packed in some for rule in rules(packed)]
            if not iptables.find(req, program + "-restore"):
                continue                    # a host without this family's program has no rules of ours in it
            if iptables.attempt(req, program, ["-D" + rule[2:] for rule in ours], TABLE).status:
                there = {*iptables.read(req, program, TABLE)}       # some are gone already
                iptables.remove(req, program, [], [rule for rule in ours if rule in there], table=TABLE)
    notes().remove(req, noted)


def present(req):
    """May iptables hold rules of pods?"""
    return iptables.has_chain(req, FORWARD, TABLE)


def filters_forwarded(req):
    """Does iptables filter what the node forwards? Then a packet that it drops is dropped, whatever nftables says."""
    return iptables.has_chain(req, "FORWARD", TABLE)


def missing(req, conf):
    """For CHECK: what is not there, in the reference's words, or "" where all is."""
    for program, ips in by_program(conf.ips):
        lines = iptables.read(req, program, TABLE)
        for chain, target in (("FORWARD", FORWARD), (FORWARD, conf.admin_chain)):
            if not leads(lines, chain, target):
                return f"expected {chain} rule [-j {target}] not found"
        for rule in (rule for packed in ips for rule in rules(packed)):
            if rule not in lines:
                return f"expected rule [{rule.partition(f'-A {FORWARD} ')[2]}] not found"
    return ""


def status(req):
    """Raises CniError 50 where neither family's iptables works."""
    iptables.need_one(req, TABLE)
