"""The configuration of HAProxy, made of a State: which requests of which connections are allowed.

    it = Configuration(state)
    it.text(listening)                          # of haproxy.cfg
    it.lists                                    # {file: the addresses in it}

A Line with requests becomes `http-request` rules. Rules that depend on policies alone are in the text, and their change
needs another process. Addresses are in lists, which the running process changes (process.py):

    on-...              pods to which a request of a line applies. The name stands for all that the request demands: a
                        process that ends allows the requests that stay, and no other requests
    g4-..., n4-...      the sets of nftables with the same names: peers, and named ports as "10.0.0.1:80"
    b4-...              blocks, as networks
    listeners           EVERYWHERE, while somebody wants to know of requests that are allowed

The first bytes of a connection tell TLS from HTTP. TLS passes if a request of a line asks for a host and for nothing
else, and the name in the handshake is this host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network, summarize_address_range
from typing import TYPE_CHECKING

from fastcni.agent.policy.http import marks
from fastcni.agent.policy.objects import EGRESS, INGRESS
from fastcni.agent.policy.state import HTTP_CHAINS, PREFIXES, VERSIONS, short_hash
from fastcni.spec.address import ip_text

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from fastcni.agent.policy.http.documents import Request
    from fastcni.agent.policy.state import Line, State

LISTENERS, EVERYWHERE = "listeners", {"0.0.0.0/0", "::/0"}
MAX_CONNECTIONS = 2000          # of a client at a time, of the 10,000 that HAProxy can have
LOG, STATS = "log.sock", "stats-{generation}.sock"      # sockets, in the directory of the configuration
WEBSOCKET, TLS = "websocket", "tls"     # the server, and the backend, of connections that are judged once
SIDES = {"egress": (EGRESS,), "ingress": (INGRESS,), "both": (EGRESS, INGRESS)}
MARKS = {"egress": marks.OUT, "ingress": marks.IN, "both": marks.EITHER}
VARIABLES = {EGRESS: "txn.egress", INGRESS: "txn.ingress"}
# A path in which a server may see another path than the policy: dot segments, also before path parameters and spaces;
# empty segments; backslashes; fragments; broken percent-encoding; percent-encoding of unreserved characters (RFC 3986,
# 2.3), of control characters, slash and backslash, twice, or of overlong UTF-8 and surrogates (RFC 3629)
ODD_PATH = (r"(^|/)[.]{1,2}(/|;|%3b|%20|$)|//|[\\#]|%(?![0-9a-f]{2})|%([01].|2[def]|3[0-9]|4[1-9a-f]|5[0-9acf]"
            r"|6[1-9a-f]|7[0-9aef]|25(25|2[ef]|5c)|c[01]|e0%[89]|ed%[ab]|f0%8|f[5-9a-f])")
GLOBAL = """global
    log unix@{log} len 8192 format raw local0
    stats socket unix@{stats} mode 600 level admin
    fd-hard-limit 20000

defaults
    log global
    option disable-h2-upgrade
    option idle-close-on-response
    http-reuse never
    retries 0
    timeout connect 5s
    timeout client 1h
    timeout server 1h
    timeout tunnel 24h
    timeout http-request 30s
"""
LOG_FORMAT = ('{{"source":"%ci","source_port":%cp,"destination":"%fi","port":%fp,"status":%ST,'
              '"method":"%[capture.req.method,json(utf8s)]","path":"%[var(txn.path),json(utf8s)]",'
              '"host":"%[var(txn.host),json(utf8s)]","egress":"%[var(txn.egress)]","ingress":"%[var(txn.ingress)]",'
              '"why":"%[var(txn.why)]","tls":"%[var(sess.tls),json(utf8s)]","side":"{side}"}}')
FRONTEND = """
frontend {side}
    mode tcp
    log-format '{log_format}'
    stick-table type ipv6 size 10k expire 1m store conn_cur
    tcp-request connection reject if {{ dst 127.0.0.0/8 ::1 }}
    tcp-request connection track-sc0 src
    tcp-request connection reject if {{ sc0_conn_cur gt {most} }}
    tcp-request inspect-delay 5s
    acl tls req.ssl_hello_type 1
    tcp-request content set-var(txn.port) dst_port
    tcp-request content set-var(txn.to) dst,concat(:,txn.port)
    tcp-request content set-var(sess.tls) req.ssl_sni if tls
"""
BACKEND = """
backend {side}
    mode http
    option http-no-delay
    source 0.0.0.0 usesrc clientip
    http-request set-var(txn.path) pathq
    http-request set-var(txn.host) req.fhdr(host)
    http-request set-var(txn.port) dst_port
    http-request set-var(txn.to) dst,concat(:,txn.port)
    acl origin url -m beg /
    acl odd path -m reg -i {odd}
    acl upgrade req.fhdr(upgrade) -m found
    acl websocket req.fhdr(upgrade) -m str -i websocket
    http-request set-var(txn.why) str(target) if !origin
    http-request set-var(txn.why) str(path) if odd
    http-request set-var(txn.why) str(upgrade) if upgrade !websocket
    http-request set-var(txn.why) str(upgrade) if {{ req.fhdr_cnt(upgrade) gt 1 }}
    http-request set-var(txn.why) str(host) if {{ req.fhdr_cnt(host) gt 1 }}
    acl why var(txn.why) -m found
    http-request {deny} "{form}\\n" if why
    http-after-response set-header Connection close if {{ var(txn.why) -m found }}
"""
REFUSE = """    acl {direction} var({variable}) -m found
    http-request set-var(txn.why) str({direction}) if !{direction}
    http-request {deny} "no HTTP rule of the network policies for {direction} allows this request\\n" if !{direction}
"""
DENY = "deny deny_status 403 content-type text/plain string"
FORM = ("a network policy refuses this form of request: expected one Host, a path without empty, dot or needlessly "
        "encoded parts, and no upgrade but to websocket")
SERVERS = f"""    use-server {WEBSOCKET} if websocket
    server {WEBSOCKET} 0.0.0.0:0
    server original 0.0.0.0:0
"""
TLS_BACKEND = f"""
backend {TLS}
    mode tcp
    source 0.0.0.0 usesrc clientip
    server original 0.0.0.0:0
"""


@dataclass(frozen=True, slots=True)
class Allowed:
    """A request that a line allows. id: a hash of the line and the request. spans: (first, last) of each range of
    destination ports; (): any port."""

    id: str
    line: Line
    request: Request
    spans: tuple[tuple[int, int], ...]


class Configuration:
    """labels: {id: name of the rule}. lists: {file: its lines}. allowed: by direction."""

    def __init__(self, state: State) -> None:
        self.labels: dict[str, str] = {}
        self.lists: dict[str, set[str]] = {LISTENERS: set()}
        self.allowed: dict[str, list[Allowed]] = {EGRESS: [], INGRESS: []}
        members = members_of(state)
        for name, chain in sorted(state.chains.items()):
            for line in chain.lines if name.startswith(HTTP_CHAINS) else ():
                for request in line.requests:
                    id = short_hash(name, replace(line, requests=(), comment=""), request)
                    self.labels[id] = line.comment
                    self.allowed[chain.direction].append(Allowed(id, line, request, spans_of(state, line)))
                    self.lists[f"on-{id}"] = members.get(name, set())
                for each in (line.peer, line.named):
                    if each:
                        self.lists[each] = texts_of(state, each)

    def text(self, generation: int, listening: Mapping[str, tuple[int, ...]]) -> str:
        """The file. listening: {side: descriptors}."""
        return GLOBAL.format(log=LOG, stats=STATS.format(generation=generation)) + "".join(
            part for side in SIDES for part in (*self._frontend(side, listening[side]), *self._backend(side))
        ) + TLS_BACKEND

    def _frontend(self, side: str, descriptors: tuple[int, ...]) -> Iterator[str]:
        yield FRONTEND.format(side=side, log_format=LOG_FORMAT.format(side=side), most=MAX_CONNECTIONS)
        yield from (f"    bind fd@{descriptor}\n" for descriptor in descriptors)
        for direction in SIDES[side]:
            for it in self.allowed[direction]:
                if it.request.by_host_only:
                    yield f"    acl {it.id} req.ssl_sni -m reg -i -- {whole(it.request.host)}\n"
                    yield (f"    tcp-request content set-var({VARIABLES[direction]}) str({it.id}) if tls "
                           f"{conditions(it, direction)} {it.id}\n")
            yield f"    tcp-request content reject if tls !{{ var({VARIABLES[direction]}) -m found }}\n"
        yield f"    tcp-request content switch-mode http if !tls\n    use_backend {TLS} if tls\n"
        yield f"    default_backend {side}\n"

    def _backend(self, side: str) -> Iterator[str]:
        yield BACKEND.format(side=side, odd=quoted(ODD_PATH), deny=DENY, form=FORM)
        for direction in SIDES[side]:
            for it in self.allowed[direction]:
                names = []
                for name, acl in acls(it.id, it.request):
                    names.append(name)
                    yield f"    acl {name} {acl}\n"
                yield (f"    http-request set-var({VARIABLES[direction]}) str({it.id}) if "
                       f"{' '.join((conditions(it, direction), *names))}\n")
            yield REFUSE.format(deny=DENY, direction=direction.lower(), variable=VARIABLES[direction])
        yield f"    http-request set-log-level silent if !{{ src -f {LISTENERS} }}\n{SERVERS}"

    def that_apply(self, lists: Mapping[str, set[str]], source: str, destination: str, port: int,
                   tls: bool) -> set[str]:
        """Return the ids of the requests that may be allowed on a connection. lists: the contents of `self.lists`."""
        found = set()
        for direction, each in self.allowed.items():
            own, peer = (source, destination) if direction == EGRESS else (destination, source)
            found |= {it.id for it in each if (it.request.by_host_only or not tls) and own in lists[f"on-{it.id}"]
                      and (not it.line.peer or has_address(lists[it.line.peer], peer))
                      and (not it.line.named or f"{destination}:{port}" in lists[it.line.named])
                      and (not it.spans or any(first <= port <= last for first, last in it.spans))}
        return found


def conditions(it: Allowed, direction: str) -> str:
    """Return the conditions on a connection's ends. nftables has compared them, but another line may have allowed the
    connection."""
    own, peer = ("src", "dst") if direction == EGRESS else ("dst", "src")
    found = [f"{{ {own} -f on-{it.id} }}"]
    if it.line.peer:
        found.append(f"{{ {peer} -f {it.line.peer} }}")
    if it.line.named:
        found.append(f"{{ var(txn.to) -m str -f {it.line.named} }}")
    if it.spans:
        found.append(f"{{ dst_port {' '.join(f'{first}:{last}' for first, last in it.spans)} }}")
    return " ".join(found)


def spans_of(state: State, line: Line) -> tuple[tuple[int, int], ...]:
    """Return the ranges of destination ports of a line."""
    ranges = state.sets[line.ports].ranges if line.ports else ()
    return tuple((int.from_bytes(first, "big"), int.from_bytes(last, "big")) for first, last in ranges) or (
        ((line.first, line.last),) if line.first else ())


def has_address(texts: set[str], address: str) -> bool:
    """Return whether a list has an address, or a network that contains it."""
    return address in texts or any(ip_address(address) in ip_network(text) for text in texts if "/" in text)


def members_of(state: State) -> dict[str, set[str]]:
    """{chain of rules by requests: addresses of the pods that it applies to}"""
    found: dict[str, set[str]] = {}
    for direction in PREFIXES.values():
        for version in VERSIONS.values():
            for packed, chain in state.elements[f"{direction}{version}"].items():
                for jump in state.chains[chain].jumps:
                    if jump.startswith(HTTP_CHAINS):
                        found.setdefault(jump, set()).add(ip_text(packed))
    return found


def texts_of(state: State, name: str) -> set[str]:
    """The elements of a set as HAProxy reads them."""
    one = state.sets[name]
    if one.ranges:
        return {str(network) for first, last in one.ranges
                for network in summarize_address_range(ip_address(first), ip_address(last))}
    if one.kind == "named":
        return {f"{ip_text(key[:one.length])}:{int.from_bytes(key[one.length:one.length + 2], 'big')}"
                for key in state.elements[name]}
    return {ip_text(key) for key in state.elements[name]}


def acls(id: str, request: Request) -> Iterator[tuple[str, str]]:
    """(name, text) of the conditions on a request."""
    for key, sample in (("method", "method -m reg"), ("path", "pathq -m reg"), ("host", "req.fhdr(host) -m reg -i")):
        if pattern := getattr(request, key):
            yield f"{id}-{key}", f"{sample} -- {whole(pattern)}"
    if request.headers:
        name = "|".join(("[^,_]*", *sorted({name for name, _ in request.headers if "_" in name})))
        yield f"{id}-names", f"req.hdr_names -m reg -- {quoted(f'^({name})(,({name}))*$')}"
    for number, (name, value) in enumerate(request.headers):
        yield f"{id}-n{number}", f"req.fhdr_cnt({name}) eq 1"
        if value:
            yield f"{id}-v{number}", f"req.fhdr({name}) -m str -- {quoted(value)}"


def whole(pattern: str) -> str:
    """A regular expression for a complete value."""
    return quoted(f"^(?:{pattern})$")


def quoted(text: str) -> str:
    """A word of the configuration, in which nothing has a meaning."""
    return "'" + text.replace("'", "'\"'\"'") + "'"

