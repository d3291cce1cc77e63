"""ingressPolicy by iptables, with the reference plugin's chains in table filter. What goes from a bridge of which there
is a policy to another one is dropped; of one that is isolated also what stays in it, which iptables sees only where
br_netfilter is loaded.

    -A FORWARD -j CNI-ISOLATION-STAGE-1                                 (at its head)
    -A CNI-ISOLATION-STAGE-1 -i cni1 -o cni1 -j DROP                    (isolated)
    -A CNI-ISOLATION-STAGE-1 -i cni0 ! -o cni0 -j CNI-ISOLATION-STAGE-2
    -A CNI-ISOLATION-STAGE-1 -j RETURN
    -A CNI-ISOLATION-STAGE-2 -o cni0 -j DROP
    -A CNI-ISOLATION-STAGE-2 -j RETURN

each with a comment. A bridge's policy lasts as long as the bridge.
"""

from fastcni.kit.firewall import iptables
from fastcni.kit.firewall.forward_iptables_chain import TABLE, leads
from fastcni.kit.links import find

STAGE_1, STAGE_2 = "CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"
WORDS = "CNI firewall plugin rules (ingressPolicy: {})"
SHARED = WORDS.format("same-bridge|isolated")


def stores():
    return []


def add(req, conf):
    """Put the policy of the conf's bridge in force, in the families of its addresses."""
    for length in sorted({len(packed) for packed in conf.ips}):
        iptables.settle(req, iptables.PROGRAMS[length], TABLE, lambda lines: commands(lines, conf))


restore = add                           # it adds what is missing


def delete(req, conf):
    """A policy is the bridge's, and the pod has nothing here."""


def commands(lines, conf):
    for chain in (STAGE_1, STAGE_2):
        if not iptables.has_line(lines, chain):
            yield f"-N {chain}"
    if not leads(lines, "FORWARD", STAGE_1):
        yield f'-I FORWARD 1 -m comment --comment "{SHARED}" -j {STAGE_1}'
    for chain, match, target in wanted(conf):
        if not has(lines, chain, match, target):
            words = WORDS.format(conf.policy) if chain == STAGE_1 else SHARED
            yield f'-I {chain} 1{match} -m comment --comment "{words}" -j {target}'
    for chain in (STAGE_1, STAGE_2):
        if not leads(lines, chain, "RETURN"):
            yield f'-A {chain} -m comment --comment "{SHARED}" -j RETURN'


def wanted(conf):
    """(chain, match, target) of the bridge's own rules; each goes to the head, the last one ends up first."""
    name = conf.bridge
    yield STAGE_1, f" -i {name} ! -o {name}", STAGE_2
    if conf.isolated:
        yield STAGE_1, f" -i {name} -o {name}", "DROP"
    yield STAGE_2, f" -o {name}", "DROP"


def has(lines, chain, match, target):
    return any(line.startswith(f"-A {chain}{match} -") and iptables.target(line) == target for line in lines)


def missing(req, conf):
    """For CHECK: what is not there, in words, or "" where all is."""
    for length in sorted({len(packed) for packed in conf.ips}):
        lines = iptables.read(req, iptables.PROGRAMS[length], TABLE)
        rules = [("FORWARD", "", STAGE_1), *wanted(conf)]
        for chain, match, target in rules:
            if not (has(lines, chain, match, target) if match else leads(lines, chain, target)):
                return f"expected {chain} rule [{match.strip()} -j {target}] not found"
    return ""


def gc(req):
    """Delete the rules of bridges that are no more."""
    if not iptables.has_chain(req, STAGE_1, TABLE):
        return
    for program in iptables.PROGRAMS.values():
        lines = iptables.read_if_there(req, program, TABLE)
        lost = [line for line in lines if (name := bridge_of(line)) and not find.host_link(req.mode, name)]
        iptables.remove(req, program, lines, lost, table=TABLE)
        for rule in lost:
            req.release(f"{program} rule {rule}")


def bridge_of(line):
    """The bridge that a rule of ours is about, "" for others."""
    if not line.startswith((f"-A {STAGE_1} ", f"-A {STAGE_2} ")):
        return ""
    return iptables.behind("-i", line) or iptables.behind("-o", line)
