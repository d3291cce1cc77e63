"""Enforce ingressPolicy by iptables, with the reference plugin's chains in table filter.

The rules drop packets from one bridge with a policy to another such bridge. The rules also drop packets between ports
of an isolated bridge; iptables sees such packets only if br_netfilter is loaded.

    -A FORWARD -j CNI-ISOLATION-STAGE-1                                 (at its head)
    -A CNI-ISOLATION-STAGE-1 -i cni1 -o cni1 -j DROP                    (isolated)
    -A CNI-ISOLATION-STAGE-1 -i cni0 ! -o cni0 -j CNI-ISOLATION-STAGE-2
    -A CNI-ISOLATION-STAGE-1 -j RETURN
    -A CNI-ISOLATION-STAGE-2 -o cni0 -j DROP
    -A CNI-ISOLATION-STAGE-2 -j RETURN

Each rule has a comment. A bridge's policy lasts as long as the bridge.
"""

from __future__ import annotations

from fastcni.kit.firewall import iptables
from fastcni.kit.firewall.forward.iptables_chain import TABLE, leads
from fastcni.kit.links import find

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastcni.kit.call.request import Request
    from fastcni.kit.firewall.elements import Store
    from fastcni.kit.firewall.forward.keys import Conf

STAGE_1, STAGE_2 = "CNI-ISOLATION-STAGE-1", "CNI-ISOLATION-STAGE-2"
COMMENT = "CNI firewall plugin rules (ingressPolicy: {})"
SHARED = COMMENT.format("same-bridge|isolated")


def stores() -> list[Store]:
    return []


def add(req: Request, conf: Conf) -> None:
    """Enforce the policy of the bridge in `conf`, in the families of the pod's addresses. Raises CniError."""
    for length in sorted({len(packed) for packed in conf.ips}):
        iptables.retry(req, iptables.PROGRAMS[length], TABLE, lambda lines: commands(lines, conf))


restore = add                           # add() adds only missing rules


def delete(req: Request, conf: Conf) -> None:
    """Do nothing: all rules belong to the bridge."""


def commands(lines: list[str], conf: Conf) -> Iterator[str]:
    for chain in (STAGE_1, STAGE_2):
        if not iptables.has_line(lines, chain):
            yield f"-N {chain}"
    if not leads(lines, "FORWARD", STAGE_1):
        yield f'-I FORWARD 1 -m comment --comment "{SHARED}" -j {STAGE_1}'
    for chain, match, target in wanted(conf):
        if not has(lines, chain, match, target):
            comment = COMMENT.format(conf.policy) if chain == STAGE_1 else SHARED
            yield f'-I {chain} 1{match} -m comment --comment "{comment}" -j {target}'
    for chain in (STAGE_1, STAGE_2):
        if not leads(lines, chain, "RETURN"):
            yield f'-A {chain} -m comment --comment "{SHARED}" -j RETURN'


def wanted(conf: Conf) -> Iterator[tuple[str, str, str]]:
    """Yield (chain, match, target) of the bridge's rules. The caller inserts each rule at the head of its chain,
    so the last rule becomes the chain's first rule.
    """
    name = conf.bridge
    yield STAGE_1, f" -i {name} ! -o {name}", STAGE_2
    if conf.isolated:
        yield STAGE_1, f" -i {name} -o {name}", "DROP"
    yield STAGE_2, f" -o {name}", "DROP"


def has(lines: list[str], chain: str, match: str, target: str) -> bool:
    return any(line.startswith(f"-A {chain}{match} -") and iptables.target(line) == target for line in lines)


def missing(req: Request, conf: Conf) -> str:
    """For CHECK: return the first missing rule or element as text, or ""."""
    for length in sorted({len(packed) for packed in conf.ips}):
        lines = iptables.read(req, iptables.PROGRAMS[length], TABLE)
        rules = [("FORWARD", "", STAGE_1), *wanted(conf)]
        for chain, match, target in rules:
            if not (has(lines, chain, match, target) if match else leads(lines, chain, target)):
                return f"expected {chain} rule [{match.strip()} -j {target}] not found"
    return ""


def gc(req: Request) -> None:
    """Delete the rules of bridges that no longer exist."""
    if not iptables.has_chain(req, STAGE_1, TABLE, shared=True):
        return
    for program in iptables.PROGRAMS.values():
        lines = iptables.read_if_there(req, program, TABLE)
        stale = [line for line in lines if (name := bridge_of(line)) and not find.host_link(req.mode, name)]
        iptables.remove(req, program, lines, stale, table=TABLE)
        for rule in stale:
            req.release(f"{program} rule {rule}")


def bridge_of(line: str) -> str:
    """Return the bridge of a rule that fastcni added, "" for any other rule."""
    if not line.startswith((f"-A {STAGE_1} ", f"-A {STAGE_2} ")):
        return ""
    return iptables.behind("-i", line) or iptables.behind("-o", line)
