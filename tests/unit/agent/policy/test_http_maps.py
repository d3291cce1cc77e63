"""The maps of HAProxy: their patterns, and what the maps allow during a change. Needs no root."""

import itertools
import re
from ipaddress import ip_address, ip_network
from types import SimpleNamespace

import pytest
from unit.agent.policy.http_pods import http, policy

from fastcni.agent.metrics import EVENTS
from fastcni.agent.policy.http import patterns
from fastcni.agent.policy.http.configuration import MAX_NAMES, PEERS, PODS, Configuration, by_element
from fastcni.agent.policy.http.documents import Request, read_cilium_policy
from fastcni.agent.policy.http.part import Proxy
from fastcni.agent.policy.http.process import Process, copied
from fastcni.agent.policy.objects import PolicyError
from fastcni.agent.policy.state import HTTP_CHAINS, Chain, Line, Set, State

PATTERNS = ("", "a", "[^x]*", ".*", r"\W*", r"\D+b?", r"[^a]*a", "^a$|b", "(a|ab)(c|bc)?", "a;b c#\"'<", r"a\ b\\")
LINES = ("", "a", "b", "abc", "x", "a/b", 'a;b c#"\'<', "a b\\", "/a?b=[c]", "a$", "A")


def matches(pattern, text):
    return re.search(pattern.replace(r"\z", r"\Z"), text) is not None


def test_a_joined_pattern_matches_if_each_part_matches_its_own_line():
    for asked in itertools.product(PATTERNS, repeat=3):
        it = Request(**dict(zip(("method", "host", "path"), asked, strict=True)))
        whole = re.compile(patterns.of_request(it).replace(r"\z", r"\Z"), re.MULTILINE)
        compared = [re.compile(f"^(?:{pattern or '.*'})$", flags) for pattern, flags in zip(
            asked, (0, re.IGNORECASE, 0), strict=True)]
        for method, host, path in itertools.product(LINES[:4], LINES[::2], LINES):
            expected = all(each.search(line) for each, line in zip(compared, (method, host, path), strict=True))
            assert bool(whole.match(f"\r\n{method}\n{host}\n{path}\n")) == expected, (asked, method, host, path)


def test_a_text_that_was_cut_or_has_more_lines_does_not_match():
    """HAProxy truncates a joined text that is longer than its buffer."""
    pattern, whole = patterns.of_request(Request(path="/a.*")), "\r\nGET\nhost\n/a/secret\n"
    assert matches(patterns.of_host("a"), "a\n") and not matches(patterns.of_host("a"), "a\nb\n")
    assert [length for length in range(len(whole) + 1) if matches(f"(?m)\\A{pattern}", whole[:length])] == [len(whole)]


@pytest.mark.parametrize("first, last", [(1, 65535), (80, 80), (8000, 9005), (99, 1001), (9, 10), (123, 60001)])
def test_the_pattern_of_ports_matches_the_numbers_of_its_ranges(first, last):
    pattern = re.compile(patterns.ports([(first, last), (7, 7)]))
    assert {number for number in range(70000) if pattern.fullmatch(str(number))} == {7, *range(first, last + 1)}


def test_conditions_that_haproxy_cannot_read_in_one_line_are_an_error():
    long = {"method": 500 * ";", "path": 500 * ";", "host": 500 * ";"}
    with pytest.raises(PolicyError, match="too long"):
        read_cilium_policy(policy(ingress=[http(long)]))
    with pytest.raises(PolicyError, match="at most 40"):
        read_cilium_policy(policy(ingress=[{"toPorts": [{"ports": [{"port": str(each)} for each in range(1, 42)],
                                                         "rules": {"http": [{}]}}]}]))


def test_a_list_has_the_sets_of_all_networks_that_contain_its_element():
    sets = {"a": ["10.0.0.0/8", "10.1.0.1", "::/0"], "b": ["10.1.0.0/16"], "c": ["fd00::1", "10.0.0.0/8"]}
    assert by_element(sets) == {
        "10.0.0.0/8": ":a:c:", "10.1.0.0/16": ":a:b:c:", "10.1.0.1": ":a:b:c:", "::/0": ":a:", "fd00::1": ":a:c:"}


def test_an_address_in_more_sets_than_a_list_can_have_keeps_some_of_them_and_is_named():
    lines = [(f"p{number:03}", "", "/a") for number in range(MAX_NAMES + 50)]
    it = Configuration(state({"10.0.0.1": ["x"]}, {name: ["10.1.0.1"] for name, _, _ in lines}, {}, {"x": lines}))
    kept = ":".join(name for name, _, _ in lines[:MAX_NAMES])
    assert it.cut == {"10.1.0.1"} and it.maps[PEERS]["10.1.0.1"] == f":{kept}:"


def test_the_log_names_such_an_address_once_until_it_is_in_fewer_sets():
    proxy, seen = object.__new__(Proxy), []
    proxy._cut, proxy.log = set(), SimpleNamespace(error=lambda event, address, **_: seen.append((event, address)))
    for cut in ({"10.1.0.1"}, {"10.1.0.1", "10.1.0.2"}, {"10.1.0.2"}, {"10.1.0.1"}):
        proxy._name_cut(SimpleNamespace(cut=cut))
    assert seen == [("http_rules_cut", f"10.1.0.{each}") for each in (1, 2, 1)] and seen[0][0] in EVENTS


class Maps:
    """A model of HAProxy's maps. seen: the model calls this function after each command."""

    def __init__(self, maps, seen):
        self.maps, self.versions, self.seen = copied(maps), {}, seen

    def ask(self, line):
        if line.startswith("prepare map"):
            self.versions[line.split()[2]] = {}
            return "New version created: 7"
        for command in re.split(r"; (?=add|del|set|commit)", line) if line != "show sess" else ():
            self.run(*command.split(" "))
            self.seen(self)
        return ""

    def run(self, verb, _, *words):
        version, name, *words = words if words[0] == "@7" else ("", *words)
        key = words[0].replace("\\\\", "\\") if words else ""
        if verb == "commit":
            self.maps[name] = self.versions.pop(name)
        elif verb == "del":
            del self.maps[name][key]
        else:
            to = self.versions[name] if version else self.maps[name]
            assert (key in to) == (verb == "set")
            to[key] = words[1]

    def allows(self, own, peer, port, asked, direction="ingress"):
        ends = f"{self.found(PODS, own)}\n{self.found(PEERS, peer)}\n{port}\n"
        return any(matches(pattern, f"{ends}\r\n{asked}\n") for pattern in self.maps[f"requests-{direction}"])

    def found(self, name, address):
        containing = [key for key in self.maps[name] if ip_address(address) in ip_network(key)]
        return self.maps[name][max(containing, key=lambda key: ip_network(key).prefixlen)]


def state(members, peers, named, chains, direction="Ingress"):
    """Return a State. members: {address: chains}. peers, named: {set: elements}. chains: {chain: [(peer, named,
    path)]}"""
    it = State()
    for name, lines in chains.items():
        it.chains[HTTP_CHAINS + name] = Chain(direction, tuple(
            Line(peer=peer, named=named, requests=(Request(path=path),)) for peer, named, path in lines))
    for number, (text, names) in enumerate(members.items()):
        it.chains[f"all-{number}"] = Chain(direction, jumps=tuple(HTTP_CHAINS + name for name in names))
        it.elements["in4" if direction == "Ingress" else "out4"][ip_address(text).packed] = f"all-{number}"
    for name, texts in peers.items():
        networks = [ip_network(text) for text in texts]
        it.sets[name] = Set("block", 4, tuple((each[0].packed, each[-1].packed) for each in networks))
    for name, texts in named.items():
        it.sets[name] = Set("named", 4)
        it.elements[name] = {ip_address(text).packed + (80).to_bytes(2, "big") + bytes(2): "" for text in texts}
    return it


STATES = (
    state({"10.0.0.1": ["x"], "10.0.0.2": ["x"]}, {"p": ["10.1.0.0/16"], "q": ["10.1.0.1"]}, {"n": ["10.0.0.1"]},
          {"x": [("p", "", "/a"), ("q", "n", "/b")]}),
    state({"10.0.0.1": ["x"], "10.0.0.2": ["y"]}, {"p": ["10.1.0.2"], "q": ["10.1.0.0/16"]}, {"n": ["10.0.0.2"]},
          {"x": [("p", "", "/a"), ("q", "", "/c")], "y": [("q", "n", "/b")]}),
    state({"10.0.0.2": ["x", "y"]}, {"p": ["10.0.0.0/8"], "q": ["10.1.0.1", "10.1.0.2"]}, {"n": []},
          {"x": [("p", "", "/c")], "y": [("q", "", "/a"), ("q", "n", "/b")]}),
    state({}, {}, {}, {}))


def changed(before, after, seen):
    """Let a Process change its maps from `before` to `after`. After each command, call `seen` with a model of the
    maps."""
    it = Maps(before.maps, seen)
    process = object.__new__(Process)
    process.wanted, process.maps, process._ask = before, copied(before.maps), it.ask
    process.put(after)
    assert it.maps == after.maps


@pytest.mark.parametrize("direction, own, peer, opened", [
    ("Ingress", "10.0.0.1", "10.1.0.1", True), ("Ingress", "10.0.0.2", "10.1.0.1", False),
    ("Egress", "10.0.0.2", "10.0.0.1", True), ("Egress", "10.0.0.1", "10.0.0.2", False)])
def test_a_named_port_is_of_the_pod_for_ingress_and_of_the_peer_for_egress(direction, own, peer, opened):
    pods = {"10.0.0.1": ["x"], "10.0.0.2": ["x"]}
    it = Maps(Configuration(state(pods, {}, {"n": ["10.0.0.1"]}, {"x": [("", "n", "/a")]}, direction)).maps, None)
    found = [it.allows(own, peer, port, "GET\n\n/a", direction.lower()) for port in (80, 8080, 8)]
    assert found == [opened, False, False]


def test_a_change_allows_at_no_time_what_neither_the_former_nor_the_new_rules_allow():
    requests = list(itertools.product(("10.0.0.1", "10.0.0.2"), ("10.1.0.1", "10.1.0.2", "10.2.0.1"), (80,), (
        f"GET\n\n{path}" for path in ("/a", "/b", "/c"))))
    allowed = [{each for each in requests if Maps(Configuration(it).maps, None).allows(*each)} for it in STATES]
    assert len({frozenset(each) for each in allowed}) == len(STATES)
    for old, new in itertools.permutations(range(len(STATES)), 2):
        states = []
        changed(Configuration(STATES[old]), Configuration(STATES[new]),
                lambda it, states=states: states.append({each for each in requests if it.allows(*each)}))
        assert states and states[-1] == allowed[new]
        assert all(each <= allowed[old] | allowed[new] for each in states), (old, new)


def test_requests_that_two_policies_allow_stay_allowed_during_a_change_of_rules():
    old = state({"10.0.0.1": ["x"]}, {"p": ["10.1.0.0/16"]}, {}, {"x": [("p", "", "/a"), ("p", "", "/b")]})
    new = state({"10.0.0.1": ["x"]}, {"p": ["10.1.0.0/16"]}, {}, {"x": [("p", "", "/a"), ("p", "", "/c")]})
    seen = []
    changed(Configuration(old), Configuration(new), lambda it: seen.append(
        it.allows("10.0.0.1", "10.1.0.1", 80, "GET\n\n/a")))
    assert seen and all(seen)
