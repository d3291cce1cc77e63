"""Configuration: typed keys, and the rows S7 to S10 and S13 (validators) and A1 to A5 (CNI_ARGS) of the table for the
CNI reference."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcni.spec import config
from fastcni.spec.config import Section, check_container_id, check_ifname, check_network_name, read_args
from fastcni.spec.errors import CniError

TOO_LONG = (4, "interface name is too long", "interface name should be less than 16 characters")
DOTS = (4, "interface name is . or ..", "")
CHARACTERS = (4, "interface name contains / or : or whitespace characters", "")


def bad_id(text):
    return (4, "invalid characters in containerID", text)


def bad_network(text):
    return (7, "invalid characters found in network name", text)


# (row, validator, its input, the error's (code, msg, details) or None)
NAMES = [
    ("S7", check_container_id, "-bad", bad_id("-bad")),
    ("S8", check_container_id, "a\n", bad_id("a\n")),
    ("id-empty", check_container_id, "", (3, "missing containerID", "")),
    ("id-one", check_container_id, "a", None),
    ("id-trailing", check_container_id, "a.-_", None),
    ("id-long", check_container_id, "a" * 1000, None),
    *((f"id-{text}", check_container_id, text, bad_id(text)) for text in
      (".", "..", "../x", "a/b", "_a", "é", "aé", "²", "a b", "a\0")),
    ("S9-15", check_ifname, "a" * 15, None),
    ("S9-16", check_ifname, "a" * 16, TOO_LONG),
    ("ifname-7-of-2-bytes", check_ifname, "é" * 7, None),
    ("ifname-8-of-2-bytes", check_ifname, "é" * 8, TOO_LONG),
    ("ifname-empty", check_ifname, "", (4, "interface name is empty", "")),
    *((f"S10-{text!r}", check_ifname, text, CHARACTERS) for text in
      ("a/b", "a:b", "a b", "a\tb", "a\n", "a\u2003", "a\x85", "a\0b")),
    ("S10-%d", check_ifname, "eth%d", (4, "interface name contains %d", "the kernel would put a number there")),
    ("S10-surrogate", check_ifname, "a\udcff", (4, "interface name is not UTF-8",
                                                "a result, which is JSON, cannot name it")),
    ("S10-.", check_ifname, ".", DOTS),
    ("S10-..", check_ifname, "..", DOTS),
    *((f"S10-{text!r}", check_ifname, text, None) for text in
      ("...", "a%b", "a\\b", "a\x1c", "a\u200b")),
    ("S13", check_network_name, "a b", bad_network("a b")),
    ("network-empty", check_network_name, "", (7, "missing network name:", "")),
    ("network-dots", check_network_name, "..", bad_network("..")),
    ("network-fine", check_network_name, "my-net_1.0", None),
]


@pytest.mark.parametrize("check,text,error", [row[1:] for row in NAMES], ids=[row[0] for row in NAMES])
def test_names_are_refused_with_the_reference_s_text(check, text, error):
    if error is None:
        check(text)
        return
    with pytest.raises(CniError) as caught:
        check(text)
    assert (caught.value.code, caught.value.msg, caught.value.details) == error


ARGS = [
    ("A1", "FOO=bar;BAZ=q", 'ARGS: unknown args ["FOO=bar" "BAZ=q"]'),
    ("A2", "IgnoreUnknown=TRUE;X=1", {}),
    ("A2-last-wins", "IgnoreUnknown=1;X=1;IgnoreUnknown=0", 'ARGS: unknown args ["X=1"]'),
    ("A3", "IgnoreUnknown=yes", 'ARGS: error parsing value of pair "IgnoreUnknown=yes": '
                                "boolean unmarshal error: invalid input yes"),
    ("A3-lower", "IgnoreUnknown=YES", 'ARGS: error parsing value of pair "IgnoreUnknown=YES": '
                                      "boolean unmarshal error: invalid input yes"),
    ("A4-name", "a", 'ARGS: invalid pair "a"'),
    ("A4-equals", "a=b=c", 'ARGS: invalid pair "a=b=c"'),
    ("A4-trailing", "IP=1.2.3.4;", 'ARGS: invalid pair ""'),
    ("A5", "ip=10.0.0.1", 'ARGS: unknown args ["ip=10.0.0.1"]'),
    ("none", "", {}),
    ("known", "IP=10.0.0.1;IgnoreUnknown=1;K8S_POD=x", {"IP": "10.0.0.1"}),
    ("empty-value", "IP=", {"IP": ""}),
    ("repeated", "IP=1;IP=2", {"IP": "2"}),
]


@pytest.mark.parametrize("text,outcome", [row[1:] for row in ARGS], ids=[row[0] for row in ARGS])
def test_cni_args_are_read_as_the_reference_reads_them(text, outcome):
    if isinstance(outcome, dict):
        assert read_args(text, ("IP",)) == outcome
        return
    with pytest.raises(CniError) as caught:
        read_args(text, ("IP",))
    assert (caught.value.code, caught.value.msg) == (4, outcome)


@given(st.text("aIP=;\n1", max_size=30))
def test_no_args_raise_anything_but_a_cni_error(text):
    try:
        read_args(text, ("IP",))
    except CniError:
        pass


def test_keys_match_in_any_case_and_the_exact_spelling_wins():
    section = Section({"MTU": 1, "mtu": 2, "NAME": "n", "Type": None, "TYPE": "t"})
    assert (section.integer("mtu"), section.text("name"), section.text("type")) == (2, "n", "t")


def test_null_is_absent():
    section = Section(dict.fromkeys(("text", "flag", "integer", "texts", "section", "ip", "cidr"), None))
    assert (section.text("text", "d"), section.flag("flag"), section.integer("integer", 7)) == ("d", False, 7)
    assert (section.texts("texts"), section.sections("texts")) == ([], [])
    assert section.section("section").values == {}
    assert (section.ip("ip"), section.cidr("cidr"), section.has("ip")) == (None, None, False)


# (method, the key's value, the end of the message, which begins with "failed to load netconf: ipam.key")
WRONG = [
    (Section.text, 5, ": expected a string, got number 5"),
    (Section.flag, "true", ': expected true or false, got string "true"'),
    (Section.flag, 1, ": expected true or false, got number 1"),
    (Section.integer, "x", ': expected an integer, got string "x"'),
    (Section.integer, 1500.0, ": expected an integer, got number 1500"),
    (Section.integer, True, ": expected an integer, got true"),
    (Section.integer, 1 << 63, ": expected an integer, got number 9223372036854775808"),
    (Section.texts, "x", ': expected a list, got string "x"'),
    (Section.texts, ["a", 1], "[1]: expected a string, got number 1"),
    (Section.section, [], ": expected an object, got list []"),
    (Section.sections, [{}, 1], "[1]: expected an object, got number 1"),
    (Section.ip, "x", ": invalid IP address: x"),
    (Section.ip, "10.0.0.1/8", ": invalid IP address: 10.0.0.1/8"),
    (Section.cidr, "", ": invalid CIDR address: "),
    (Section.cidr, "10.0.0.1", ": invalid CIDR address: 10.0.0.1"),
]


@pytest.mark.parametrize("read,value,message", WRONG, ids=[f"{row[0].__name__}-{row[1]!r}" for row in WRONG])
def test_a_wrong_value_is_named_with_its_key(read, value, message):
    section = Section({"ipam": {"key": value}}).section("ipam")
    with pytest.raises(CniError) as caught:
        read(section, "key")
    assert (caught.value.code, caught.value.msg) == (7, f"failed to load netconf: ipam.key{message}")


def test_the_error_of_a_number_out_of_bounds_has_the_bounds():
    with pytest.raises(CniError, match="mtu: expected an integer from 0 up to 65535, got number 70000"):
        Section({"mtu": 70000}).integer("mtu", low=0, high=65535)


def test_a_long_value_is_cut():
    with pytest.raises(CniError) as caught:
        Section({"mtu": "x" * 1000}).integer("mtu")
    assert caught.value.msg.endswith("xxx...")
    assert len(caught.value.msg) < 2 * config.MAX_SHOWN + 20


def test_sections_in_lists_know_their_index():
    inner, = Section({"ipam": {"ranges": [{"subnet": 1}]}}).section("ipam").sections("ranges")
    with pytest.raises(CniError, match=r"ipam\.ranges\[0\]\.subnet: expected a string"):
        inner.text("subnet")


def test_addresses_are_packed():
    section = Section({"ip": "::ffff:10.0.0.1", "cidr": "10.1.2.3/024", "empty": ""})
    assert (section.ip("ip"), section.cidr("cidr")) == (bytes([10, 0, 0, 1]), (bytes([10, 1, 2, 3]), 24))
    assert section.ip("empty") is None
