"""Write HAProxy's configuration file, which is the same for all policies, and its maps, which hold the HTTP rules.

    it = Configuration(state)
    it.maps                                     # {file: {key: value}}; process.py changes them in the running process
    text(listening)                             # the text of haproxy.cfg

A value of the maps pods and peers is a list of names, such as ":b4-1f:g4-2e:". The name "n4-3d@80" means that the
nftables set n4-3d, of a named port, contains the address with port 80.

    pods                a pod's address -> hashes of the chains that apply to the pod, and names of its named ports
    peers               address or network -> the nftables sets that contain it, and names of its named ports
    requests-egress     regular expression -> the id of an allowed request; also requests-ingress
    headers-egress      the same for requests with conditions on headers
    hosts-egress        the same for the server names in TLS handshakes
    listeners           0.0.0.0/0 and ::/0 while a listener wants a log of allowed requests; otherwise no entry

For each request HAProxy joins the values of pods and peers, the port and the request to one text, and searches the maps
of regular expressions for a match (patterns.py). HAProxy distinguishes TLS from HTTP by a connection's first bytes. A
TLS connection passes if a rule has a host as its only condition, and the name in the handshake is this host.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from ipaddress import ip_address, ip_network, summarize_address_range
from typing import TYPE_CHECKING

from fastcni.agent.policy import marks
from fastcni.agent.policy.http import patterns
from fastcni.agent.policy.objects import EGRESS, INGRESS
from fastcni.agent.policy.state import HTTP_CHAINS, PREFIXES, VERSIONS, short_hash
from fastcni.spec.address import ip_text, read_ip

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from fastcni.agent.policy.http.documents import Request
    from fastcni.agent.policy.state import Line, State

    Maps = Mapping[str, Mapping[str, str]]

PODS, PEERS, LISTENERS = "pods", "peers", "listeners"
REQUESTS, HEADERS, HOSTS = "requests-", "headers-", "hosts-"    # the maps of regular expressions: requests-egress, ...
SIDES = {"egress": (EGRESS,), "ingress": (INGRESS,), "both": (EGRESS, INGRESS)}
DIRECTIONS = {EGRESS: "egress", INGRESS: "ingress"}
ENDS_OF = {EGRESS: ("src", "dst"), INGRESS: ("dst", "src")}     # HAProxy's names of (the pod's, the peer's) address
RULES = tuple(f"{kind}{direction}" for kind in (REQUESTS, HEADERS, HOSTS) for direction in DIRECTIONS.values())
NOTHING = ":"                   # the list without names
# If no entry of its own family matches an address, HAProxy searches the entries of the other family, converted by
# ::ffff:0:0/96 or 6to4. These two networks always match, which prevents this search.
EVERYWHERE = ("0.0.0.0/0", "::/0")
MAX_NAMES = 200                 # names in a list: a line of a file and the joined text have at most 16 KiB
MAX_CONNECTIONS = 2000          # connections of one client at a time; HAProxy can have 10,000 of all clients
LOG, STATS = "log.sock", "stats.sock"           # sockets, in the directory of the configuration
WEBSOCKET, TLS = "websocket", "tls"     # the server and the backend whose connections are checked only at their start
MARKS = {"egress": marks.OUT, "ingress": marks.IN, "both": marks.EITHER}
# Paths that a server may read as another path than the policy does. They have dot segments (also before path parameters
# and spaces), empty segments, backslashes, fragments, broken percent-encoding, or percent-encoding of unreserved
# characters (RFC 3986, 2.3), control characters, slash, backslash, encoded characters, overlong UTF-8 or surrogates
# (RFC 3629)
ODD_PATH = (r"(^|/)[.]{1,2}(/|;|%3b|%20|$)|//|[\\#]|%(?![0-9a-f]{2})|%([01].|2[def]|3[0-9]|4[1-9a-f]|5[0-9acf]"
            r"|6[1-9a-f]|7[0-9aef]|25(25|2[ef]|5c)|c[01]|e0%[89]|ed%[ab]|f0%8|f[5-9a-f])")
GLOBAL = """global
    log unix@{log} len 8192 format raw local0
    stats socket unix@{stats} mode 600 level admin
    fd-hard-limit 20000

defaults
    log global
    option disable-h2-upgrade
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
    tcp-request content set-var(sess.port) dst_port
    tcp-request content set-var(sess.tls) req.ssl_sni if tls
"""
BACKEND = r"""
backend {side}
    mode http
    option http-no-delay
    source 0.0.0.0 usesrc clientip
    http-request set-var(txn.path) pathq
    http-request set-var(txn.host) req.fhdr(host)
    http-request set-var(txn.method) method
    acl origin url -m beg /
    acl odd path -m reg -i '{odd}'
    acl upgrade req.fhdr(upgrade) -m found
    acl websocket req.fhdr(upgrade) -m str -i websocket
    http-request set-var(txn.why) str(target) if !origin
    http-request set-var(txn.why) str(path) if odd
    http-request set-var(txn.why) str(upgrade) if upgrade !websocket
    http-request set-var(txn.why) str(upgrade) if {{ req.fhdr_cnt(upgrade) gt 1 }}
    http-request set-var(txn.why) str(host) if {{ req.fhdr_cnt(host) gt 1 }}
    acl why var(txn.why) -m found
    http-request {deny} "{form}\n" if why
    http-after-response set-header Connection close if {{ var(txn.why) -m found }}
"""
# own, peer: "src" or "dst". before: the headers or an empty line, before the lines of the request (patterns.py)
ENDS = r'{own},map_ip(pods),concat("\n",txn.peer,"\n"),concat(,sess.port,"\n")'
OF_REQUEST = ENDS + r'{before},concat(,txn.method,"\n"),concat(,txn.host,"\n"),concat(,txn.path,"\n")'
BY_HOST = r"""    tcp-request content set-var(txn.peer) {peer},map_ip(peers) if tls
    tcp-request content set-var(txn.{direction}) {ends},concat(,sess.tls,"\n"),map_reg(hosts-{direction}) if tls
    tcp-request content reject if tls !{{ var(txn.{direction}) -m found }}
"""
BY_REQUEST = r"""    acl {direction} var(txn.{direction}) -m found
    http-request set-var(txn.peer) {peer},map_ip(peers)
    http-request set-var(txn.{direction}) {without},map_reg(requests-{direction})
    http-request set-var(txn.headers) req.hdrs if !{direction}
    http-request set-var(txn.{direction}) {with},map_reg(headers-{direction}) if !{direction}
    http-request set-var(txn.why) str({direction}) if !{direction}
    http-request {deny} "no HTTP rule of the network policies for {direction} allows this request\n" if !{direction}
"""
DENY = "deny deny_status 403 content-type text/plain string"
FORM = ("a network policy refuses this form of request: expected one Host, a path without empty, dot or needlessly "
        "encoded parts, and no upgrade but to websocket")
# Without weight 0, HAProxy would balance: the server for websockets would get every second connection.
SERVERS = f"""    use-server {WEBSOCKET} if websocket
    server {WEBSOCKET} 0.0.0.0:0 weight 0
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
    """A request that a rule of a chain allows. id: a hash of the rule and the request. line: the rule. spans: (first,
    last) of each range of destination ports; (): any port."""

    id: str
    direction: str
    line: Line
    request: Request
    spans: tuple[tuple[int, int], ...]

    def pattern(self, chain: str) -> str:
        """Return the regular expression for the complete joined text. chain: the hash of the chain's rules."""
        return self.ends(chain) + patterns.of_request(self.request)

    def ends(self, chain: str) -> str:
        """Return the regular expression for the beginning of the joined text, which describes the connection."""
        return patterns.ends(chain, self.line.peer, self.line.named, self.direction == INGRESS, self.spans)


class Configuration:
    """HAProxy's maps for the HTTP rules of a State. labels: {request id: name of the rule}. maps: {file: {key: value}}.
    cut: the addresses and networks whose lists had more than MAX_NAMES names."""

    def __init__(self, state: State) -> None:
        self.labels: dict[str, str] = {}
        self.maps: dict[str, dict[str, str]] = {name: {} for name in (*RULES, LISTENERS)}
        self._allowed: dict[str, list[tuple[str, Allowed]]] = {EGRESS: [], INGRESS: []}
        pods, names = members_of(state), dict[str, str]()
        sets: dict[str, set[str]] = {}
        for name, chain in sorted(state.chains.items()):
            if name.startswith(HTTP_CHAINS):
                found = list(allowed(state, name))
                names[name] = short_hash(*(it.id for it in found))
                self._allowed[chain.direction] += ((name, it) for it in found)
                for it in found:
                    self._add_patterns(it, names[name], DIRECTIONS[chain.direction])
                used = {each for line in chain.lines for each in (line.peer, line.named) if each}
                sets |= {each: texts_of(state, each) for each in used - sets.keys()}
        self._pods, self._sets = pods, sets
        named = self._named_ports()
        own = set().union(*pods.values())
        self.maps[PODS] = by_element({names[name]: texts for name, texts in pods.items()} | {
            name: texts & own for name, texts in named[INGRESS].items()})
        self.maps[PEERS] = by_element({name: texts for name, texts in sets.items()
                                       if state.sets[name].kind != "named"} | named[EGRESS])
        self.cut = {key for name in (PODS, PEERS) for key in shorten(self.maps[name])}
        for each in EVERYWHERE:
            self.maps[PODS].setdefault(each, NOTHING)
            self.maps[PEERS].setdefault(each, NOTHING)

    def _named_ports(self) -> dict[str, dict[str, set[str]]]:
        """Return {direction: {"set@port": addresses}} for the nftables sets of named ports."""
        found: dict[str, dict[str, set[str]]] = {EGRESS: {}, INGRESS: {}}
        for direction, each in self._allowed.items():
            for name in {it.line.named for _, it in each if it.line.named}:
                for text in self._sets[name]:
                    address, _, port = text.rpartition(":")
                    found[direction].setdefault(f"{name}@{port}", set()).add(address)
        return found

    def _add_patterns(self, allowed: Allowed, chain: str, direction: str) -> None:
        self.labels[allowed.id] = allowed.line.comment
        self.maps[f"{HEADERS if allowed.request.headers else REQUESTS}{direction}"][allowed.pattern(chain)] = allowed.id
        if allowed.request.by_host_only:
            pattern = f"{allowed.ends(chain)}{patterns.of_host(allowed.request.host)}"
            self.maps[f"{HOSTS}{direction}"][pattern] = allowed.id

    def that_apply(self, source: str, destination: str, port: int, tls: bool) -> set[str]:
        """Return the ids of the allowed requests whose rules match a connection's addresses and port.

        tls: whether the connection is TLS; only requests with a host as their only condition match TLS."""
        found = set()
        for direction, each in self._allowed.items():
            own, peer = (source, destination) if direction == EGRESS else (destination, source)
            found |= {it.id for chain, it in each if (it.request.by_host_only or not tls)
                      and own in self._pods.get(chain, ())
                      and (not it.line.peer or has_address(self._sets[it.line.peer], peer))
                      and (not it.line.named or f"{destination}:{port}" in self._sets[it.line.named])
                      and (not it.spans or any(first <= port <= last for first, last in it.spans))}
        return found


def prefix(text: str) -> tuple[int, int, int]:
    """Return (32 or 128, prefix length, prefix as a number) of an address or network."""
    address, _, length = text.partition("/")
    packed = read_ip(address)
    bits = 8 * len(packed)
    found = int(length or bits)
    return bits, found, int.from_bytes(packed, "big") >> bits - found


def shorten(lists: dict[str, str]) -> list[str]:
    """Cut each list to MAX_NAMES names. Return the keys of the lists that had more names."""
    found = [key for key, value in lists.items() if value.count(":") > MAX_NAMES + 1]
    for key in found:
        lists[key] = f":{':'.join(lists[key].split(':')[1:MAX_NAMES + 1])}:"
    return found


def text(listening: Mapping[str, tuple[int, ...]]) -> str:
    """Return the text of haproxy.cfg. listening: {name in SIDES: descriptors of the listening sockets}."""
    return GLOBAL.format(log=LOG, stats=STATS) + "".join(
        part for side in SIDES for part in (*frontend(side, listening[side]), *backend(side))) + TLS_BACKEND


def frontend(side: str, descriptors: tuple[int, ...]) -> Iterator[str]:
    yield FRONTEND.format(side=side, log_format=LOG_FORMAT.format(side=side), most=MAX_CONNECTIONS)
    yield from (f"    bind fd@{descriptor}\n" for descriptor in descriptors)
    for direction in SIDES[side]:
        own, peer = ENDS_OF[direction]
        yield BY_HOST.format(direction=DIRECTIONS[direction], peer=peer, ends=ENDS.format(own=own))
    yield f"    tcp-request content switch-mode http if !tls\n    use_backend {TLS} if tls\n"
    yield f"    default_backend {side}\n"


def backend(side: str) -> Iterator[str]:
    yield BACKEND.format(side=side, odd=ODD_PATH, deny=DENY, form=FORM)
    for direction in SIDES[side]:
        own, peer = ENDS_OF[direction]
        with_, without = (OF_REQUEST.format(own=own, before=before) for before in (
            ",concat(,txn.headers)", r',concat("\r\n")'))
        yield BY_REQUEST.format_map({"deny": DENY, "direction": DIRECTIONS[direction], "peer": peer, "with": with_,
                                     "without": without})
    yield f"    http-request set-log-level silent if !{{ src,map_ip({LISTENERS}) -m found }}\n{SERVERS}"


def allowed(state: State, name: str) -> Iterator[Allowed]:
    """Yield the requests that the chain `name` allows."""
    for line in state.chains[name].lines:
        for request in line.requests:
            id = short_hash(name, replace(line, requests=(), comment=""), request)
            yield Allowed(id, state.chains[name].direction, line, request, spans_of(state, line))


def by_element(sets: Mapping[str, Iterable[str]]) -> dict[str, str]:
    """Return {element: the names of all sets that contain the element}. An element may be a network."""
    found: dict[str, str] = {}
    for name, texts in sorted(sets.items()):
        for each in texts:
            found[each] = f"{found.get(each, NOTHING)}{name}:"
    networks = {prefix(each): names for each, names in found.items() if "/" in each}
    lengths = {(bits, length) for bits, length, _ in networks}
    for each in found if networks else ():
        bits, own, number = prefix(each)
        more = "".join(networks.get((bits, length, number >> own - length), "") for of, length in lengths
                       if of == bits and length < own)
        if more:
            found[each] = f":{':'.join(sorted({*found[each].split(':'), *more.split(':')} - {''}))}:"
    return found


def spans_of(state: State, line: Line) -> tuple[tuple[int, int], ...]:
    """Return the ranges (first, last) of destination ports of a chain's rule; () for any port."""
    ranges = state.sets[line.ports].ranges if line.ports else ()
    return tuple((int.from_bytes(first, "big"), int.from_bytes(last, "big")) for first, last in ranges) or (
        ((line.first, line.last),) if line.first else ())


def has_address(texts: set[str], address: str) -> bool:
    """Return whether `texts` has the address, or a network that contains the address."""
    return address in texts or any(ip_address(address) in ip_network(text) for text in texts if "/" in text)


def members_of(state: State) -> dict[str, set[str]]:
    """Return {name of a chain of HTTP rules: addresses of the pods to which the chain applies}."""
    found: dict[str, set[str]] = {}
    for direction in PREFIXES.values():
        for version in VERSIONS.values():
            for packed, chain in state.elements[f"{direction}{version}"].items():
                for jump in state.chains[chain].jumps:
                    if jump.startswith(HTTP_CHAINS):
                        found.setdefault(jump, set()).add(ip_text(packed))
    return found


def texts_of(state: State, name: str) -> set[str]:
    """Return the elements of the nftables set `name` as HAProxy reads them: addresses, networks, or "address:port"."""
    one = state.sets[name]
    if one.ranges:
        networks = (network for first, last in one.ranges
                    for network in summarize_address_range(ip_address(first), ip_address(last)))
        return {ip_text(network.network_address.packed) if network.num_addresses == 1 else str(network)
                for network in networks}
    if one.kind == "named":
        return {f"{ip_text(key[:one.length])}:{int.from_bytes(key[one.length:one.length + 2], 'big')}"
                for key in state.elements[name]}
    return {ip_text(key) for key in state.elements[name]}
