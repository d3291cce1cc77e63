"""Masquerade pods by iptables, with the reference plugins' chains. Each change is one run of iptables-restore.

    -A POSTROUTING -s 10.22.0.5 -j CNI-e8f6f419596f7f47b3468487
    -A CNI-e8f6f419596f7f47b3468487 -d 10.22.0.0/16 -j ACCEPT
    -A CNI-e8f6f419596f7f47b3468487 ! -d 224.0.0.0/4 -j MASQUERADE

each with the comment  name: "<network>" id: "<container>".
"""

from __future__ import annotations

from fastcni.kit.call import names
from fastcni.kit.firewall import iptables
from fastcni.spec import address as addresses
from fastcni.spec.json import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from fastcni.kit.call.request import Request
    from fastcni.kit.firewall.elements import Store

PREFIX = "CNI-"                 # prefix of the name of a pod's chain
MULTICAST = {4: "224.0.0.0/4", 16: "ff00::/8"}         # keys: address length in bytes


def stores() -> list[Store]:
    return []


def chain_of(req: Request) -> str:
    return names.chain(PREFIX, req)


def comment_of(req: Request) -> str:
    return f"name: {quote(req.name)} id: {quote(req.container_id)}"


def add(req: Request, ips: Sequence[tuple[bytes, int]]) -> None:
    """Masquerade the addresses, [(packed, prefix length)]. Raises CniError with the message of iptables."""
    for program, rules in rules_of(req, ips):
        # The chain may exist, for another interface of this container on this network. -N of an existing chain makes
        # all commands fail, so repeat the commands without -N.
        if iptables.attempt(req, program, [f"-N {chain_of(req)}", *rules]).status:
            iptables.change(req, program, rules)


def restore(req: Request, ips: Sequence[tuple[bytes, int]]) -> None:
    """Add the missing rules. A missing ACCEPT goes in front of the chain's other rules."""
    chain = chain_of(req)
    for program, rules in rules_of(req, ips):
        lines = iptables.read(req, program)
        missing = [rule.replace("-A", "-I", 1) if iptables.target(rule) == "ACCEPT" else rule
                   for rule in dict.fromkeys(rules) if rule not in lines]
        if missing:
            iptables.change(req, program, [*([] if iptables.has_line(lines, chain) else [f"-N {chain}"]), *missing])


def rules_of(req: Request, ips: Sequence[tuple[bytes, int]]) -> Iterator[tuple[str, list[str]]]:
    """Yield (program, rules as iptables-save prints them) for each family that has addresses."""
    chain, comment = chain_of(req), f"-m comment --comment {quote(comment_of(req))}"
    for length, program in iptables.PROGRAMS.items():
        rules = []
        for packed, prefix in [(packed, prefix) for packed, prefix in ips if len(packed) == length]:
            network = addresses.cidr_text(addresses.network(packed, prefix), prefix)
            rules.append(f"-A {chain} -d {network} {comment} -j ACCEPT")
            rules.append(f"-A {chain} ! -d {MULTICAST[length]} {comment} -j MASQUERADE")
            rules.append(f"-A POSTROUTING -s {addresses.cidr_text(packed, 8 * length)} {comment} -j {chain}")
        if rules:
            yield program, rules


def delete(req: Request, given: Collection[bytes], found: Collection[bytes]) -> None:
    """Delete the jumps to the container's chain, in both families. With the last jump, delete the chain. A missing
    chain is no error.

    Jumps for addresses that are neither in `given` nor in `found` stay: they belong to another interface of the
    container. If no jump is for one of these addresses, delete all jumps to the chain.
    """
    chain = chain_of(req)
    if not iptables.has_chain(req, chain):
        return
    sources = {addresses.ip_text(packed) for packed in (*given, *found)}
    for program in iptables.PROGRAMS.values():
        lines = iptables.read_if_there(req, program)
        jumps = [line for line in lines if line.startswith("-A ") and iptables.target(line) == chain]
        ours = [line for line in jumps if not sources or iptables.behind("-s", line).split("/")[0] in sources] or jumps
        iptables.remove(req, program, lines, ours, {chain} if len(ours) == len(jumps) else ())


def gc(req: Request) -> None:
    """Delete the chains of containers of this network that have no valid attachment."""
    iptables.gc(req, "POSTROUTING", PREFIX, "")
