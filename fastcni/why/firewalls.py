"""Describe the rule that dropped the packet: as its program prints the rule, with its owner, and with a command that
lets the packet pass."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace

from fastcni.kernel import nft, nft_rules, nft_trace, process, uapi, wire
from fastcni.kernel.nft_trace import Trace
from fastcni.kit.firewall import rulesets
from fastcni.kit.firewall.iptables import USUAL_PATH
from fastcni.node.attachments.iptables import comment_of, installed
from fastcni.spec import address as addresses
from fastcni.why import legacy, owners, queues, tracer
from fastcni.why.ends import End
from fastcni.why.path import Path
from fastcni.why.report import Fault
from fastcni.why.spy import ON_NODE, SOURCE, TARGET, Seen

TIMEOUT_S = 2.0
IPTABLES_TABLES = ("filter", "nat", "mangle", "raw", "security")
POLICY_TABLES = ("fastcni-policy", "fastcni-policy-guard")
EGRESS_TABLE = "fastcni-egress"
COMPAT = {nft.NFPROTO_IPV4: "iptables", nft.NFPROTO_IPV6: "ip6tables"}


@dataclass(frozen=True, slots=True)
class Text:
    """A rule as the report shows it. text: as the rule's program prints it. comment: the rule's comment. remove: the
    command that deletes the rule, "" for a policy. chains: names of all chains in the rule's table. program: "nft",
    "iptables-nft" or another variant of iptables."""

    text: str
    comment: str
    remove: str
    chains: tuple[str, ...]
    program: str


def by_trace(path: Path) -> Fault | None:
    """Return the Fault of the rule that dropped the packet or its answer, if the trace shows such a rule."""
    seen = path.spy.end() if path.spy else None
    return describe(path, seen) if seen else None


def describe(path: Path, seen: Seen) -> Fault:
    """Return the Fault of a rule or policy that dropped a packet. seen: the trace message of the drop."""
    end = {SOURCE: path.source, TARGET: path.target}.get(seen.where)
    event = seen.event
    family = nft.FAMILIES.get(event.family, "arp")
    rule = read_rule(end, seen)
    owner = owners.owner_of_policy(event.table, event.chain, rule.chains) if (
        event.kind == nft_trace.NFT_TRACETYPE_POLICY) else owners.owner_of(event.table, event.chain)
    name = hop_name(seen, event.table)
    comment = f', comment "{rule.comment}"' if rule.comment else ""
    where = f"table {family} {event.table}, chain {event.chain} of nftables"
    if rule.program != "nft":
        where = f"{rule.program}, table {event.table}, chain {event.chain}"
    does, then = queues.sentence(event.queue, end)
    what = (f"{'the answer' if seen.reply else 'the packet'} is {does} by "
            f"{'the policy' if event.kind == nft_trace.NFT_TRACETYPE_POLICY else 'a rule'} of chain {event.chain} "
            f"({family} {event.table}){f' inside of {end.name}' if end else ''}{then}")
    fault = Fault(name, what, rule.text, f"{owner} ({where}{comment})")
    return replace(fault, do=remedy(path, seen, rule, owner, end))


def hop_name(seen: Seen, table: str) -> str:
    """Return the name of a message's hop, as docs/why.md lists it."""
    if table in POLICY_TABLES:
        return "policy"
    if seen.where != ON_NODE:
        return "pod firewall" if seen.where == SOURCE else "target firewall"
    if seen.arp or seen.event.family == tracer.NFPROTO_ARP:
        return "ARP chains"
    if seen.event.family == nft.NFPROTO_NETDEV:
        return "netdev chains"
    if seen.event.family == nft.NFPROTO_BRIDGE:
        return "bridge chains"
    return f"{seen.hook or 'forward'} chains"


def remedy(path: Path, seen: Seen, rule: Text, owner: str, end: End | None) -> str:
    """Return the command that lets the packet pass, or a sentence about what to change."""
    enter = end.enter if end else ""
    source, destination = addresses.ip_text(path.sent_from), path.target.text
    if seen.event.table in POLICY_TABLES:
        return f"fastcni policy test {source} {destination} {path.port}/{path.protocol}"
    # The rule is fastcni's and intended, so the command explains why the rule drops the packet
    if owner == owners.OWN:
        return f"{enter}fastcni explain {source if seen.event.table == EGRESS_TABLE else seen.event.chain}"
    if known := owners.allow(owner, seen.hook, source, destination, path.protocol, path.port):
        return enter + known
    if owner != owners.HAND_WRITTEN:
        return f"change it in {owner}, which would write the rule again"
    if rule.remove:
        return enter + rule.remove
    return accepting(path, seen, rule, enter, source, destination)


def accepting(path: Path, seen: Seen, rule: Text, enter: str, source: str, destination: str) -> str:
    """Return a command that adds rules that accept the connection, in a chain whose policy drops it."""
    event, port = seen.event, f"{path.protocol} dport {path.port}"
    back = f"{path.protocol} sport {path.port}"
    if rule.program != "nft":
        table = f"-t {event.table} " if event.table != "filter" else ""
        first = f"{enter}{rule.program} {table}-I {event.chain} "
        ways = [f"-s {source} -d {destination} -p {path.protocol} --dport {path.port} -j ACCEPT",
                f"-s {destination} -d {source} -p {path.protocol} --sport {path.port} -j ACCEPT"]
        chosen = ways if seen.hook in ("forward", "prerouting", "postrouting") else [ways[seen.reply]]
        return " && ".join(first + way for way in chosen)
    family = "ip6" if path.v6 else "ip"
    where = f"insert rule {nft.FAMILIES.get(event.family, 'arp')} {event.table} {event.chain}"
    if seen.arp:
        return f"{enter}nft {where} accept"
    ways = [f"{where} {family} saddr {source} {family} daddr {destination} {port} accept",
            f"{where} {family} saddr {destination} {family} daddr {source} {back} accept"]
    chosen = [ways[seen.reply]] if seen.hook in ("input", "output", "ingress", "egress") else ways
    return f"{enter}nft {shlex.quote('; '.join(chosen))}"


def read_rule(end: End | None, seen: Seen) -> Text:
    """Read the rule of a trace message. end: the rule is in this end's namespace; None: on the node. Raises OSError."""
    def read() -> Text:
        event = seen.event
        with wire.open_socket(uapi.NETLINK_NETFILTER) as sock:
            found = rulesets.rules_of(sock, event.family, event.table, event.chain)
            chains = tuple(name for name, _ in rulesets.chains_of(sock, event.family, event.table, ""))
        handles = [nft_rules.read_rule(payload)[0] for payload in found]
        at = handles.index(event.handle) if event.handle in handles else -1
        comment = nft_rules.read_rule(found[at])[1] if at >= 0 else ""
        if event.table in IPTABLES_TABLES and event.family in COMPAT and (
                text := of_iptables(event, at, len(handles), chains)):
            return text
        return of_nft(event, comment, chains)

    return end.inside(read) if end else read()


def of_nft(event: Trace, comment: str, chains: tuple[str, ...]) -> Text:
    """Return the Text of a rule as nft prints it. Without the program nft, the text has only the rule's handle."""
    family = nft.FAMILIES.get(event.family, "arp")
    where = f"{family} {event.table} {event.chain}"
    if event.kind == nft_trace.NFT_TRACETYPE_POLICY:
        return Text(f"chain {where}: policy drop", "", "", chains, "nft")
    text = f"rule handle {event.handle} of chain {where}"
    for line in output("nft", "-a", "list", "chain", *where.split(" ")):
        body, _, handle = line.strip().rpartition(" # handle ")
        if handle == str(event.handle):
            text = body
    return Text(text, comment, f"nft delete rule {where} handle {event.handle}", chains, "nft")


def of_iptables(event: Trace, at: int, count: int, chains: tuple[str, ...]) -> Text | None:
    """Return the Text of a rule as iptables-nft prints it; None if iptables-nft did not make the table. at: the
    position of the rule in its chain, which has `count` rules."""
    program = f"{COMPAT[event.family]}-nft"
    lines = output(f"{program}-save", "-t", event.table)
    rules = [line for line in lines if line.startswith(f"-A {event.chain} ")]
    if not any(line.startswith(f":{event.chain} ") for line in lines) or len(rules) != count:
        return None
    if event.kind == nft_trace.NFT_TRACETYPE_POLICY:
        return Text(f"-P {event.chain} DROP", "", "", chains, program)
    if at < 0:
        return None
    return Text(rules[at], comment_of(rules[at]), removal(program, event.table, rules[at]), chains, program)


def removal(program: str, table: str, line: str) -> str:
    return f"{program} {f'-t {table} ' if table != 'filter' else ''}-D {line.removeprefix('-A ')}"


def output(program: str, *words: str) -> list[str]:
    """Return the lines that a program prints; [] if the program is not installed or fails."""
    paths = installed([program])
    if not paths:
        return []
    try:
        done = process.run(paths[0], {"PATH": USUAL_PATH}, b"", [paths[0], *words], timeout=TIMEOUT_S)
    except OSError:
        return []
    return [] if done.status else done.stdout.decode("utf-8", "replace").splitlines()


def by_counters(path: Path, hook: str, *, reply: bool) -> Fault | None:
    """Return the Fault of a rule of legacy iptables on the node that dropped the packet at a hook; None if no counter
    shows such a rule. reply: examine the answer instead of the packet."""
    ends = addresses.ip_text(path.sent_from), path.target.text
    source, destination = reversed(ends) if reply else ends
    arrives, leaves = path.arrives_by, path.leaves_by()
    links = [link.name if link else "" for link in (arrives, leaves)]
    iif, oif = reversed(links) if reply else links
    packet = legacy.Packet(source, destination, path.protocol, 0 if reply else path.port,
                           iif if hook != "output" else "", oif if hook not in ("input", "prerouting") else "")
    program = legacy.PROGRAMS[path.v6]
    for table, line in legacy.dropped(path.before, path.after, hook, packet):
        chains = [rule.split(" ")[1] for where, rule in path.after if where == table] + [
            rule[1:].split(" ")[0] for where, rule in path.after if where == table]
        policy = line.startswith(":")
        chain = line[1:].split(" ")[0] if policy else line.split(" ")[1]
        owner = owners.owner_of_policy(table, chain, chains) if policy else owners.owner_of(table, chain)
        comment = f', comment "{found}"' if (found := comment_of(line)) else ""
        seen = legacy_seen(table, chain, hook, reply)
        text = Text(f"-P {chain} DROP" if policy else line, found, "" if policy else removal(program, table, line),
                    tuple(chains), program)
        does, then = queues.sentence(legacy.queue_of(line), None)
        return Fault(f"{hook} chains", f"{'the answer' if reply else 'the packet'} is {does} by "
                     f"{'the policy' if policy else 'a rule'} of chain {chain} (table {table} of {program}){then}: "
                     "its counter grew", text.text, f"{owner} ({program}, table {table}, chain {chain}{comment})",
                     remedy(path, seen, text, owner, None))
    return None


def legacy_seen(table: str, chain: str, hook: str, reply: bool) -> Seen:
    """Return a drop by legacy iptables in the form of a trace message, for remedy()."""
    event = Trace(bytes((nft.NFPROTO_IPV4, 0, 0, 0)))
    event.table, event.chain = table, chain
    return Seen(ON_NODE, reply, hook, event)


