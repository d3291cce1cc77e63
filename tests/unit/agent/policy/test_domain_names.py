"""The key `domainNames` of ClusterNetworkPolicy, without packets: valid documents, and the addresses that a name stands
for."""

import shlex

import dns.message
import dns.rrset
import pytest
from click.testing import CliRunner
from unit.agent.policy.test_cluster_policies import WEB, decided, it, policy, rule  # noqa: F401 - fixture
from unit.agent.policy.test_content import ADDRESSES, put

from fastcni.agent.policy.chains import domain_set
from fastcni.agent.policy.cluster_policies import read_cluster_policy
from fastcni.agent.policy.names import addresses as answered
from fastcni.agent.policy.names.answers import Question, is_of_a_host, read_addresses, read_question
from fastcni.agent.policy.names.channel import read_answers, write_answers
from fastcni.agent.policy.names.resolvers import read_resolvers
from fastcni.agent.policy.objects import Domain, PolicyError
from fastcni.agent.policy.state import State
from fastcni.cli.agent import read_beside
from fastcni.cli.commands import cli
from fastcni.spec.address import read_ip

LONGEST = ".".join([63 * "a", 63 * "b", 63 * "c", 61 * "d"])      # 253 characters
NAMES = {"domainNames": ["a.test", "*.b.test"]}
POD, OTHER_POD, HOST = b"\n\0\0\1", b"\n\0\0\2", b"\xc0\0\2\1"


def names(*texts):
    return rule("Accept", {"domainNames": list(texts)}, key="to")


@pytest.mark.parametrize("text, name", [("A.Test", "a.test"), ("a.test.", "a.test"), ("*.A.test", "*.a.test"),
                                        ("_x.b-c.1", None), ("x_y.b-c.1", "x_y.b-c.1"), (f"{LONGEST}.", LONGEST)])
def test_a_name_is_read_as_the_crd_reads_it(text, name):
    if name is None:
        with pytest.raises(PolicyError, match=r"egress\[0\].to\[0\].domainNames: '_x.b-c.1' is no domain name"):
            read_cluster_policy(policy(egress=[names(text)]))
    else:
        assert read_cluster_policy(policy(egress=[names(text)])).egress[0].peers == (Domain(name),)


@pytest.mark.parametrize("texts", [[], ["a"], ["*"], ["*.a", "*.*.a.b"], ["a.*.b"], ["-a.b"], ["a..b"], ["*a.b"], [1],
                                   ["a.b/"], ["a." + 64 * "b"], [64 * "abc." + "test"], [f"{LONGEST}d"],
                                   26 * ["a.b"], "a.b"])
def test_what_is_no_list_of_names_is_refused(texts):
    with pytest.raises(PolicyError, match="domainNames: "):
        read_cluster_policy(policy(egress=[rule("Accept", {"domainNames": texts}, key="to")]))


@pytest.mark.parametrize("tier, key, action, opened", [
    ("Admin", "egress", "Deny", False), ("Admin", "egress", "Pass", False), ("Baseline", "egress", "Accept", True),
    ("Baseline", "egress", "Deny", False), ("Admin", "ingress", "Accept", True), ("Admin", "ingress", "Deny", False)])
def test_names_outside_of_an_accept_of_tier_admin_count_as_unknown(it, tier, key, action, opened):  # noqa: F811
    put(it, policy(tier=tier, **{key: [rule(action, NAMES, key="to" if key == "egress" else "from")]}))
    ends = ("db", "web") if key == "egress" else ("web", "db")
    assert decided(it, *ends).allowed is opened
    (note,) = it.notes["a.yaml"]
    assert "peers by 'domainNames' are not known here" in note
    assert not it.compiler.domains


def test_a_rule_opens_what_the_pod_was_told_and_nothing_for_another_pod(it):  # noqa: F811
    deny = rule("Deny", {"networks": ["0.0.0.0/0"]}, key="to")
    put(it, policy(subject={"namespaces": {}}, egress=[names("*.b.test"), deny]))
    db, web = (read_ip(ADDRESSES[name]) for name in ("db", "web"))
    assert not decided(it, "db", "192.0.2.1").allowed
    it.compiler.state.resolved[domain_set(Domain("*.b.test"), 4)] = {db: {HOST: 0.0}}
    it.compiler.cluster.resolved["*.b.test"] = {(db, HOST)}
    assert str(decided(it, "db", "192.0.2.1").egress) == "allowed by c egress[0]"
    assert not decided(it, "db", "192.0.2.2").allowed
    assert not decided(it, "web", "192.0.2.1").allowed and web != db
    put(it, policy(subject={"namespaces": {}}, egress=[names("*.b.test", "c.test"), deny]))
    assert decided(it, "db", "192.0.2.1").allowed  # a rule with one more name keeps the answers that pods got before
    put(it)
    assert it.compiler.state == State() and not it.compiler.domains


def test_each_pod_keeps_a_hundred_addresses_of_a_name_and_the_newest_push_out_the_oldest():
    kept = answered.AnsweredAddresses(State())
    for number in range(120):
        kept.put("d4-x", POD, {bytes((10, 1, 0, number)): 0}, number / 10)
    kept.put("d4-x", OTHER_POD, {HOST: 0}, 0.0)
    kept.put("d4-y", POD, {HOST: 0}, 0.0)
    assert sorted(kept.resolved["d4-x"][POD]) == [bytes((10, 1, 0, number)) for number in range(20, 120)]
    added, removed = kept.take()
    assert len(added["d4-x"]) == 101 and len(added["d4-y"]) == 1
    assert len(removed["d4-x"]) == 20
    kept.put("d4-x", POD, {bytes((10, 1, 0, 20)): 0, HOST: 0}, 12.0)        # a new answer contains the oldest address
    assert [pair for pair, _ in kept.take()[1]["d4-x"]] == [POD + bytes((10, 1, 0, 21))]
    assert kept.take() == ({}, {})


def test_an_element_lives_for_the_ttl_within_bounds_and_is_prolonged_only_if_it_ends_earlier():
    kept = answered.AnsweredAddresses(State())
    for ttl, ms in ((0, 65_000), (60, 65_000), (300, 305_000), (1 << 31, 604_805_000)):
        kept.put("d4-x", POD, {HOST: ttl}, 0.0)
        assert kept.take()[0].get("d4-x") == (None if ttl == 60 else [(POD + HOST, ms)])
    kept.put("d4-x", POD, {HOST: 300}, 100.0)
    assert kept.take() == ({}, {})


def test_an_address_in_two_answers_is_written_once():
    """The second answer, with a longer TTL, came before the agent had written the first answer. The transaction deleted
    the element twice, so the kernel rejected it. The pod waited until the agent had written the complete table."""
    kept = answered.AnsweredAddresses(State())
    for ttl in (60, 300):
        kept.put("d4-x", POD, {HOST: ttl}, 0.0)
    assert kept.take() == ({"d4-x": [(POD + HOST, 305_000)]}, {})


def test_what_a_pod_that_is_gone_was_told_is_removed():
    kept = answered.AnsweredAddresses(State())
    kept.put("d4-x", POD, {HOST: 0}, 0.0)
    kept.put("d4-x", OTHER_POD, {HOST: 0}, 0.0)
    kept.take()
    kept.forget_pods(POD.__eq__)
    assert kept.take() == ({}, {"d4-x": [(POD + HOST, 1000)]})
    assert kept.resolved == {"d4-x": {OTHER_POD: {HOST: 65.0}}}


# -- answers -----------------------------------------------------------------------------------------------------------

def answer(*records, name="a.test", kind="A", **fields):
    found = dns.message.make_response(dns.message.make_query(name, kind))
    found.answer += [dns.rrset.from_text(*record) for record in records]
    for key, value in fields.items():
        setattr(found, key, value)
    return found.to_wire()


QUESTION = Question("a.test", 1)
A = ("a.test.", 300, "IN", "A", "192.0.2.1")


def test_the_least_ttl_along_a_chain_counts():
    data = answer(("a.test.", 90, "IN", "CNAME", "b.test."), ("B.TEST.", 70, "IN", "CNAME", "c.test."),
                  ("c.test.", 80, "IN", "A", "192.0.2.1", "192.0.2.2"))
    assert read_addresses(QUESTION, data) == {HOST: 70, b"\xc0\0\2\2": 70}


@pytest.mark.parametrize("data", [
    answer(A, name="b.test"), answer(A, kind="AAAA"), answer(A)[:2] + b"\0" + answer(A)[3:], answer(A)[:-1], b"",
    answer(A)[:3] + b"\3" + answer(A)[4:], answer(("b.test.", 300, "IN", "A", "192.0.2.1")),
    answer(("a.test.", 9, "IN", "CNAME", "b.test."), ("b.test.", 9, "IN", "CNAME", "a.test."), A[:0] or (
        "c.test.", 9, "IN", "A", "192.0.2.1"))],
    ids=["name", "type", "query", "cut off", "empty", "NXDOMAIN", "other record", "loop"])
def test_what_is_no_answer_to_the_question_gives_no_address(data):
    assert read_addresses(QUESTION, data) == {}


def test_a_dot_within_a_label_makes_no_name_below_another_one():
    query = dns.message.make_query(r"x\.b.test", "A").to_wire()
    assert read_question(query) is None
    assert read_question(dns.message.make_query("X.b.Test", "AAAA").to_wire()) == Question("x.b.test", 28)


@pytest.mark.parametrize("text, there", [
    ("192.0.2.1", True), ("127.0.0.1", False), ("0.0.0.0", False), ("169.254.169.254", False), ("224.0.0.1", False),
    ("255.255.255.255", False), ("::1", False), ("fe80::1", False), ("ff02::1", False), ("fd00::1", True),
    ("64:ff9b::1", True), ("10.0.0.1", True)])
def test_addresses_that_no_other_host_has_are_left_out(text, there):
    assert is_of_a_host(read_ip(text)) == there


def test_an_ipv4_address_in_ipv6_counts_for_nothing():
    data = answer(("a.test.", 300, "IN", "AAAA", "::ffff:10.0.0.1", "fd00::1"), kind="AAAA")
    assert read_addresses(Question("a.test", 28), data) == {read_ip("fd00::1"): 300}


def test_many_answers_go_to_the_agent_in_messages_that_its_socket_takes():
    addresses = {number.to_bytes(16, "big"): 300 for number in range(1 << 120, (1 << 120) + 100)}
    each = list(write_answers((number, "fd00::1%eth0", "a.test", addresses) for number in range(100)))
    assert [number for numbers, _ in each for number in numbers] == list(range(100))
    assert max(len(data) for _, data in each) < 1 << 17
    found = [answer for _, data in each for answer in read_answers(data)]
    assert found[99] == (99, read_ip("fd00::1"), "a.test", addresses)


def test_resolvers_are_those_of_resolv_conf_that_pods_can_ask(tmp_path):
    path = tmp_path / "resolv.conf"
    path.write_text("# nameserver 192.0.2.1\nnameserver 127.0.0.53\nnameserver  192.0.2.2 x\nnameserver fe80::1%eth0\n"
                    "nameserver fd00::5\nnameserver\nnameserver nobody\nnameserver 192.0.2.2\noptions a\n")
    assert read_resolvers((), str(path)) == [b"\xc0\0\2\2", read_ip("fd00::5")]
    assert read_resolvers(("fd00::35", "::1"), str(path)) == [read_ip("fd00::35")]
    assert read_resolvers((), str(tmp_path / "none")) == []


# -- --dns-server ------------------------------------------------------------------------------------------------------

COMMAND = "--nodes n.json --node-name a --policies p"


def test_the_option_may_be_repeated_and_takes_both_families():
    more = "--dns-server 192.0.2.53 --dns-server fd00::35 --dns-server 169.254.169.253"
    assert read_beside(f"{COMMAND} {more}").policies.dns_servers == ("192.0.2.53", "fd00::35", "169.254.169.253")
    assert read_beside(COMMAND).policies.dns_servers == ()


@pytest.mark.parametrize("text", ["dns.example", "192.0.2.0/24", "192.0.2.53:53", "fe80::53%eth0", "''", "127.0.0.53",
                                  "::1", "0.0.0.0", "::", "fe80::53", "224.0.0.251", "ff02::fb", "255.255.255.255",
                                  "::ffff:127.0.0.1"])
def test_an_option_that_is_no_address_or_one_that_no_pod_can_ask_is_refused_at_the_start(text):
    """Once, an option with a zone or a name ended the agent later, in the policies' thread."""
    done = CliRunner().invoke(cli, shlex.split(f"agent {COMMAND} --dns-server 192.0.2.53 --dns-server {text}"))
    assert done.exit_code == 2
    assert "--dns-server" in done.output and text.strip("'") in done.output
