"""Map ports by iptables, with the reference plugin's chains in table nat. Each change is one run of iptables-save and
one of iptables-restore for each family. A pod has these rules:

    -A CNI-HOSTPORT-DNAT -m comment --comment "dnat name: \\"net1\\" id: \\"cid1\\"" -m multiport -p tcp
        --destination-ports 8080 -j CNI-DN-e8f6f419596f7f47b3468
    -A CNI-DN-e8f6f419596f7f47b3468 -s 10.22.0.0/24 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
    -A CNI-DN-e8f6f419596f7f47b3468 -s 127.0.0.1/32 -p tcp -m tcp --dport 8080 -j CNI-HOSTPORT-SETMARK
    -A CNI-DN-e8f6f419596f7f47b3468 -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.22.0.2:80

All pods share CNI-HOSTPORT-DNAT, CNI-HOSTPORT-SETMARK and CNI-HOSTPORT-MASQ, which DEL does not remove.
"""

from __future__ import annotations

from fastcni.kit.call import names
from fastcni.kit.firewall import iptables
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError
from fastcni.spec.json import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastcni.kit.call.request import Request
    from fastcni.kit.firewall.elements import Store
    from fastcni.kit.firewall.portmap.keys import Conf

DNAT, SETMARK, MASQ = "CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-SETMARK", "CNI-HOSTPORT-MASQ"
PREFIX = "CNI-DN-"                      # prefix of the name of a pod's chain
OLD_SNAT = "CNI-HOSTPORT-SNAT"          # the chain of reference plugins before 0.8
MAX_PORTS = 15                          # most ports of one rule with -m multiport
MAX_COMMENT = 255                       # most characters of a comment


def stores() -> list[Store]:
    return []


def chain_of(req: Request) -> str:
    return names.chain(PREFIX, req)


def comment_of(req: Request) -> str:
    text = f"dnat name: {quote(req.name)} id: {quote(req.container_id)}"
    return text if len(text) <= MAX_COMMENT else text[:MAX_COMMENT - 3] + "..."


def add(req: Request, conf: Conf) -> None:
    """Map the ports. Raises CniError, with code 11 and the port if another container has one of the ports."""
    for length in sorted(conf.pod):
        def wanted(lines: list[str], length: int = length) -> tuple[str, ...]:
            refuse_taken(req, conf, length, lines)
            return *shared_commands(conf, lines), *pod_commands(req, conf, length, lines)

        iptables.retry(req, iptables.PROGRAMS[length], "nat", wanted)


def restore(req: Request, conf: Conf) -> None:
    """Call add() if a chain or rule is missing. add() replaces existing rules in one run."""
    if missing(req, conf) or any([*shared_commands(conf, iptables.read(req, iptables.PROGRAMS[length]))]
                                 for length in conf.pod):
        add(req, conf)


def shared_commands(conf: Conf, lines: list[str]) -> Iterator[str]:
    """Yield commands for the missing chains and rules that all pods share, in the reference plugin's order."""
    mark = f"{1 << conf.mark_bit:#x}"
    own_mark = conf.snat and not conf.set_mark_chain
    for chain, wanted, rules in (
            (SETMARK, own_mark, [
                f'-A {SETMARK} -m comment --comment "CNI portfwd masquerade mark" -j MARK --set-xmark {mark}/{mark}']),
            (MASQ, own_mark, [
                f"-A {MASQ} -m mark --mark {mark}/{mark} -j MASQUERADE",
                f'-A POSTROUTING -m comment --comment "CNI portfwd requiring masquerade" -j {MASQ}']),
            (DNAT, True, [
                f"-A PREROUTING -m addrtype --dst-type LOCAL -j {DNAT}",
                f"-A OUTPUT -m addrtype --dst-type LOCAL -j {DNAT}"])):
        if not wanted:
            continue
        if not iptables.has_line(lines, chain):
            yield f"-N {chain}"
        for rule in rules:
            if rule not in lines:
                yield rule.replace("-A POSTROUTING", "-I POSTROUTING 1")        # before the rules of ipMasq


def pod_commands(req: Request, conf: Conf, length: int, lines: list[str]) -> Iterator[str]:
    """Yield commands for the pod's chain and the jumps to it. The first commands delete the rules of an earlier ADD."""
    chain = chain_of(req)
    if iptables.has_line(lines, chain):
        yield from ("-D" + rule[2:] for rule in entries(lines, chain))
        yield f"-F {chain}"
    else:
        yield f"-N {chain}"
    yield from rules(conf, length, chain)
    conditions = "".join(f"{quoted(word)} " for word in conf.conditions[length])
    for protocol in sorted({mapping.protocol for mapping in conf.mappings}):
        ports = [str(mapping.host_port) for mapping in conf.mappings if mapping.protocol == protocol]
        for at in range(0, len(ports), MAX_PORTS):
            yield (f"-A {DNAT} -m comment --comment {quote(comment_of(req))} -m multiport -p {protocol} "
                   f"--destination-ports {','.join(ports[at:at + MAX_PORTS])} {conditions}-j {chain}")


def rules(conf: Conf, length: int, chain: str) -> Iterator[str]:
    """Yield the rules of the pod's chain, as iptables-save prints them."""
    packed, prefix = conf.pod[length]
    subnet = f" -s {addresses.cidr_text(addresses.network(packed, prefix), prefix)}"
    sources = ["" if conf.masq_all else subnet] + ([" -s 127.0.0.1/32"] if length == 4 and not conf.masq_all else [])
    to = addresses.ip_text(packed)
    for mapping in conf.mappings_for(length):
        protocol = mapping.protocol
        at = f" -d {addresses.ip_text(mapping.host_ip)}/{8 * length}" if mapping.host_ip else ""
        port = f"{at} -p {protocol} -m {protocol} --dport {mapping.host_port}"
        for source in sources if conf.snat else ():
            yield f"-A {chain}{source}{port} -j {conf.set_mark_chain or SETMARK}"
        yield f"-A {chain}{port} -j DNAT --to-destination {f'[{to}]' if length == 16 else to}:{mapping.container_port}"


def quoted(word: str) -> str:
    """Return a word of the configuration, quoted for iptables-restore, so that the word cannot contain another
    command."""
    return word if word and word.isascii() and word.isprintable() and not set(word) & set(" \"'\\") else quote(word)


def entries(lines: list[str], chain: str) -> list[str]:
    return [line for line in lines if line.startswith(f"-A {DNAT} ") and iptables.target(line) == chain]


def refuse_taken(req: Request, conf: Conf, length: int, lines: list[str]) -> None:
    """Raise CniError 11 if a port is already mapped to another container."""
    owners = {iptables.target(line): line for line in lines if line.startswith(f"-A {DNAT} ")}
    owners.pop(chain_of(req), None)
    taken: dict[tuple[str, str], dict[str, str]] = {}           # {(protocol, port): {address or "": chain}}
    for line in lines:
        chain = iptables.behind("-A", line)
        if chain in owners and iptables.target(line) == "DNAT":
            key = iptables.behind("-p", line), iptables.behind("--dport", line)
            taken.setdefault(key, {})[iptables.behind("-d", line).partition("/")[0]] = chain
    for mapping in conf.mappings_for(length):
        others = taken.get((mapping.protocol, str(mapping.host_port)), {})
        at = addresses.ip_text(mapping.host_ip) if mapping.host_ip else ""
        chain = others.get(at) or others.get("") or ("" if at else next(iter(others.values()), ""))
        if chain:
            comment = owners[chain].partition('"dnat ')[2].partition('" -')[0].replace('\\"', '"')
            raise CniError(errors.TRY_AGAIN_LATER, f"host port {mapping} is already mapped ({comment})",
                           f"chain {chain} of table nat maps this port; DEL of that pod frees the port")


def delete(req: Request, conf: Conf) -> bool:
    """Delete the pod's chain and the jumps to it, in both families. Return whether a chain existed."""
    # For a pod without mappings, do not read the legacy table: kube-proxy may have 10,000 rules in it.
    if not iptables.has_chain(req, chain_of(req), legacy=bool(conf.mappings) or conf.iptables):
        return False
    found = False
    for program in iptables.PROGRAMS.values():
        lines = iptables.read_if_there(req, program)
        for shared, chain in ((DNAT, chain_of(req)), (OLD_SNAT, names.chain("CNI-SN-", req))):
            found = found or iptables.has_line(lines, chain)
            iptables.remove_chains(req, program, lines, shared, {chain})
    return found


def present(req: Request) -> bool:
    """Return whether iptables may have a chain of this container."""
    return iptables.has_chain(req, chain_of(req))


def missing(req: Request, conf: Conf) -> str:
    """For CHECK: return the first missing rule or element, in the reference plugin's text, or ""."""
    chain = chain_of(req)
    for length in conf.pod:
        prefix = f"could not check ipv{4 if length == 4 else 6} dnat: "
        lines = iptables.read(req, iptables.PROGRAMS[length])
        if not iptables.has_line(lines, chain):
            return f"{prefix}chain {chain} not found in iptables table nat"
        for rule in rules(conf, length, chain):
            if rule not in lines:
                return f"{prefix}rule {rule} in chain {chain} not found in table nat"
        if not entries(lines, chain):
            return f"{prefix}nothing in {DNAT} leads to chain {chain}"
    return ""


def gc(req: Request) -> None:
    """Delete the chains of containers of this network that have no valid attachment."""
    iptables.gc(req, DNAT, PREFIX, "dnat ")


def status(req: Request) -> None:
    """For STATUS: raise CniError 50 if neither iptables nor ip6tables works."""
    iptables.need_one(req)
