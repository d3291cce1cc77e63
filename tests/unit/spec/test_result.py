"""Results: the rows R1 to R36 of the table for the CNI reference. Also, no document causes an exception in the reader
other than CniError."""

import json as stdlib
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcni.spec import json, result, version
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

NO_IPS = "cannot convert: no valid IP addresses"
ROUTE = '{"dst":"10.0.0.0/8","gw":"10.1.0.1","mtu":9,"advmss":8,"priority":7,"table":0,"scope":0}'
ROUTE_SORTED = '{"advmss":8,"dst":"10.0.0.0/8","gw":"10.1.0.1","mtu":9,"priority":7,"scope":0,"table":0}'
EXTRAS = '{"name":"eth0","mtu":1400,"socketPath":"/s","pciID":"0:1","mac":"m","sandbox":"/n"}'
IPS = '[{"address":"10.1.0.2/16","gateway":"10.1.0.1"},{"address":"fd00::2/64"},{"address":"10.2.0.2/16"}]'


def text_of(document, to=None, indent=0):
    """Read a document (JSON text) and print it in the version `to`, or in its own. Return the printed text, or the
    error's text."""
    try:
        made = result.create_any(json.read(document.encode()))
        return result.encode(result.to_version(made, to or made["cniVersion"]), indent).decode()
    except CniError as e:
        return f"error: {e.msg}"


def of(config_version, body):
    return f'{{"cniVersion":"{config_version}",{body}}}'


def v4(body):
    return of("0.4.0", body)


def v1(body):
    return of("1.0.0", body)


def v11(body):
    return of("1.1.0", body)


IP4_ONLY = of("0.2.0", '"ip4":{"ip":"10.1.0.2/16","routes":[{"dst":"0.0.0.0/0","mtu":9}]}')

# (row, document, the version in which it is printed or None for its own, the printed text)
PRINTED = [
    ("R1", '{"cniVersion":"1.0.0"}', "1.1.0", '{"cniVersion":"1.1.0"}'),
    ("R2", '{"cniVersion":"1.0.0"}', "0.4.0", '{"cniVersion":"0.4.0","dns":{}}'),
    ("R3", '{"cniVersion":"1.0.0"}', "0.2.0", f"error: {NO_IPS}"),
    ("R4-own", "{}", None, '{"cniVersion":"0.1.0","dns":{}}'),
    ("R4-null", "null", None, '{"cniVersion":"0.1.0","dns":{}}'),
    ("R4-up", "{}", "1.1.0", '{"cniVersion":"1.1.0"}'),
    ("R5", v11(f'"interfaces":[{EXTRAS}]'), "1.0.0",
     v1('"interfaces":[{"mac":"m","mtu":1400,"name":"eth0","pciID":"0:1","sandbox":"/n","socketPath":"/s"}]')),
    ("R6", v11(f'"interfaces":[{EXTRAS}]'), "0.4.0",
     v4('"interfaces":[{"name":"eth0","mac":"m","sandbox":"/n"}],"dns":{}')),
    ("R7", v11(f'"routes":[{ROUTE}]'), "0.3.0", of("0.3.0", f'"routes":[{ROUTE}],"dns":{{}}')),
    ("R7-own", v11(f'"routes":[{ROUTE}]'), None, v11(f'"routes":[{ROUTE_SORTED}]')),
    ("R8", v11(f'"ips":[{{"address":"10.1.0.2/16"}}],"routes":[{ROUTE}]'), "0.2.0",
     of("0.2.0", '"ip4":{"ip":"10.1.0.2/16","routes":[{"dst":"10.0.0.0/8","gw":"10.1.0.1"}]},"dns":{}')),
    ("R9", v11(f'"ips":{IPS}'), "0.1.0",
     of("0.1.0", '"ip4":{"ip":"10.1.0.2/16","gateway":"10.1.0.1"},"ip6":{"ip":"fd00::2/64"},"dns":{}')),
    ("R10", v11('"ips":[{"address":"fd00::2/64"}],"routes":[{"dst":"0.0.0.0/0"},{"dst":"::/0"}]'), "0.2.0",
     of("0.2.0", '"ip6":{"ip":"fd00::2/64","routes":[{"dst":"::/0"}]},"dns":{}')),
    ("R11", v4('"ips":[{"address":"10.1.0.2/16"}]'), None,
     v4('"ips":[{"version":"","address":"10.1.0.2/16"}],"dns":{}')),
    ("R12", v4('"ips":[{"address":"10.1.0.2/16"}]'), "0.2.0", f"error: {NO_IPS}"),
    ("R13", IP4_ONLY, "0.3.1", of("0.3.1", '"ips":[{"version":"4","address":"10.1.0.2/16"}],'
                                           '"routes":[{"dst":"0.0.0.0/0","mtu":9}],"dns":{}')),
    ("R14", IP4_ONLY.replace("0.2.0", "0.1.0"), "0.2.0", IP4_ONLY[:-1] + ',"dns":{}}'),
    *((f"R15{given}", v1(f'"ips":[{{"address":"10.1.0.2/16"{given}}}]'), None,
       v1(f'"ips":[{{"address":"10.1.0.2/16"{shown}}}]'))
      for given, shown in ((',"interface":0', ',"interface":0'), (',"interface":-1', ',"interface":-1'),
                           (',"interface":null', ""), ("", ""))),
    *((f"R17-{given}", v1(f'"ips":[{{"address":{given}}}]'), None,
       f"error: invalid CIDR address: {stdlib.loads(given) or ''}")
      for given in ('"10.1.2.3"', '""', "null", '"010.1.2.3/24"', '"10.1.2.3/33"', '"fe80::1%eth0/64"',
                    '"10.1.2.3/255.255.255.0"')),
    ("R18-4", v1('"ips":[{"address":"10.1.2.3/024"}]'), None, v1('"ips":[{"address":"10.1.2.3/24"}]')),
    ("R18-6", v1('"ips":[{"address":"2001:DB8:0:0::1/64"}]'), None,
     v1('"ips":[{"address":"2001:db8::1/64"}]')),
    ("R19", v1('"ips":[{"address":"::ffff:1.2.3.4/120"}]'), "0.4.0",
     v4('"ips":[{"version":"4","address":"1.2.3.4/24"}],"dns":{}')),
    ("R20", v1('"ips":[{}]'), None, v1(r'"ips":[{"address":"\u003cnil\u003e"}]')),
    ("R20-down", v1('"ips":[{}]'), "0.4.0",
     v4(r'"ips":[{"version":"6","address":"\u003cnil\u003e"}],"dns":{}')),
    ("R21-empty", v1('"ips":[{"address":"10.1.0.2/16","gateway":""}]'), None,
     v1('"ips":[{"address":"10.1.0.2/16"}]')),
    ("R21-null", v1('"ips":[{"address":"10.1.0.2/16","gateway":null}]'), None,
     v1('"ips":[{"address":"10.1.0.2/16"}]')),
    ("R21-bad", v1('"ips":[{"address":"10.1.0.2/16","gateway":"foo"}]'), None,
     "error: invalid IP address: foo"),
    ("R22", v1('"interfaces":[],"dns":{"nameservers":[]}'), None, '{"cniVersion":"1.0.0"}'),
    ("R23", v4('"interfaces":[{}]'), None, v4('"interfaces":[{"name":""}],"dns":{}')),
    ("R24", '{"CNIVERSION":"1.0.0","IPS":[{"ADDRESS":"10.1.0.2/16"}]}', None,
     v1('"ips":[{"address":"10.1.0.2/16"}]')),
    ("R25", '{"cniVersion":"0.2.0","cniVersion":"1.0.0"}', None, '{"cniVersion":"1.0.0"}'),
    ("R26", v1('"interfaces":[{"name":"a<b>&"}]'), None,
     v1(r'"interfaces":[{"name":"a\u003cb\u003e\u0026"}]')),
    ("R27", v1('"interfaces":[{"name":"a","mtu":9007199254740993}]'), None,
     v1('"interfaces":[{"mtu":9007199254740992,"name":"a"}]')),
    ("R31", v11('"dns":{}'), "1.2.0", "error: no converter for CNI result version 1.1.0 to 1.2.0"),
    ("R35", v1('"extra":1,"ips":[{"address":"10.1.0.2/16","extra":1}]'), None,
     v1('"ips":[{"address":"10.1.0.2/16"}]')),
]


@pytest.mark.parametrize("document,to,printed", [row[1:] for row in PRINTED], ids=[row[0] for row in PRINTED])
def test_a_result_is_printed_as_the_reference_prints_it(document, to, printed):
    assert text_of(document, to) == printed


@pytest.mark.parametrize("literal", ["1.5", '"0"', "1500.0", "1e3", "true", "[]"],
                         ids=lambda text: f"R16-{text}")
def test_only_an_integral_literal_is_an_interface_index(literal):
    shown = text_of(v1(f'"ips":[{{"address":"10.1.0.2/16","interface":{literal}}}]'))
    assert shown.startswith("error: result.ips[0].interface: expected an integer, got ")


def test_a_number_that_is_printed_as_a_float_was_read_as_it_stands():
    """Only encode() prints the number as a float does. create() keeps the integer, because a program may read a result,
    print it, and read it again."""
    document = {"cniVersion": "1.0.0", "interfaces": [{"name": "a", "mtu": 9007199254740993}]}
    once = result.create("1.0.0", document)
    assert once == document and result.create("1.0.0", once) == once
    assert b"9007199254740992" in result.encode(once)


def test_an_integer_that_a_float_holds_is_exact_in_the_older_families():
    assert '"mtu":9007199254740993' in text_of(v4('"routes":[{"dst":"0.0.0.0/0","mtu":9007199254740993}]'))


def test_a_version_that_is_a_number_is_an_error_R28():
    assert text_of('{"cniVersion":5}').startswith("error: decoding version from network config: ")


CREATED = [
    ("R29", "1.0.0", "0.4.0",
     'result type supports [1.0.0 1.1.0] but unmarshalled CNIVersion is "0.4.0"'),
    ("R30", "0.1.0", "1.0.0",
     'result type supports [ 0.1.0 0.2.0] but unmarshalled CNIVersion is "1.0.0"'),
    ("unknown", "9.0.0", "9.0.0", 'unsupported CNI result version "9.0.0"'),
]


@pytest.mark.parametrize("asked,own,message", [row[1:] for row in CREATED], ids=[row[0] for row in CREATED])
def test_a_result_of_another_family_is_refused(asked, own, message):
    with pytest.raises(CniError) as caught:
        result.create(asked, {"cniVersion": own})
    assert (caught.value.code, caught.value.msg) == (6, message)


def test_a_result_without_version_is_0_1_0_even_where_0_2_0_is_asked_for():
    assert result.create("0.2.0", {})["cniVersion"] == "0.1.0"


def test_a_new_result_is_pretty_with_every_key_in_order_R32():
    shuffled = v11('"routes":[{"dst":"0.0.0.0/0"}],"ips":[{"interface":0,"gateway":"10.1.0.1",'
                   '"address":"10.1.0.2/16"}],"interfaces":[{"sandbox":"/n","name":"eth0"}],'
                   '"dns":{"search":["s"],"nameservers":["n"],"domain":"d","options":["o"]}')
    assert text_of(shuffled, indent=4) == """\
{
    "cniVersion": "1.1.0",
    "dns": {
        "domain": "d",
        "nameservers": [
            "n"
        ],
        "options": [
            "o"
        ],
        "search": [
            "s"
        ]
    },
    "interfaces": [
        {
            "name": "eth0",
            "sandbox": "/n"
        }
    ],
    "ips": [
        {
            "address": "10.1.0.2/16",
            "gateway": "10.1.0.1",
            "interface": 0
        }
    ],
    "routes": [
        {
            "dst": "0.0.0.0/0"
        }
    ]
}"""


def test_an_old_result_is_pretty_with_dns_last_R33():
    shuffled = v4('"dns":{},"ips":[{"gateway":"10.1.0.1","address":"10.1.0.2/16","version":"4",'
                  '"interface":0}]')
    assert text_of(shuffled, indent=4) == """\
{
    "cniVersion": "0.4.0",
    "ips": [
        {
            "version": "4",
            "interface": 0,
            "address": "10.1.0.2/16",
            "gateway": "10.1.0.1"
        }
    ],
    "dns": {}
}"""


WRONG_FAMILY = ("could not parse prevResult: result type supports [1.0.0 1.1.0] "
                "but unmarshalled CNIVersion is ")
# (the configuration's version, its prevResult, the version of the read result or the error)
PREVIOUS = [
    ("1.0.0", "{}", "1.0.0"),
    ("1.0.0", '{"cniVersion":"1.1.0"}', "1.1.0"),
    ("1.0.0", '{"cniVersion":"0.4.0"}', f'{WRONG_FAMILY}"0.4.0"'),
    ("1.0.0", '{"cniVersion":""}', f'{WRONG_FAMILY}""'),
    ("0.2.0", '{"cniVersion":""}', "0.1.0"),
    ("0.4.0", '{"cniVersion":"0.3.0"}', "0.3.0"),
    ("0.1.0", "{}", "0.1.0"),
    ("7.0.0", "{}", 'could not parse prevResult: unsupported CNI result version "7.0.0"'),
    ("1.0.0", '{"cniVersion":null}', "1.0.0"),
    ("1.0.0", '{"CNIVersion":"1.1.0"}', "1.1.0"),
    ("1.0.0", '{"CNIVERSION":"0.4.0"}', "1.0.0"),  # in sorted order, this key is before the CNIVersion that is added
]


@pytest.mark.parametrize("config_version,previous,outcome", PREVIOUS,
                         ids=[f"R34-{version}-{previous}" for version, previous, _ in PREVIOUS])
def test_prev_result_has_the_version_of_its_configuration_or_its_family(
        config_version, previous, outcome, monkeypatch):
    seen = []
    create = result.create
    monkeypatch.setattr(result, "create", lambda *args: seen.append(create(*args)) or seen[-1])
    section = Section({"prevResult": stdlib.loads(previous)})
    if " " in outcome:
        with pytest.raises(CniError) as caught:
            result.read_prev_result(section, config_version)
        assert caught.value.msg == outcome
    else:
        assert result.read_prev_result(section, config_version)["cniVersion"] == version.CURRENT
        assert seen[0]["cniVersion"] == outcome


@pytest.mark.parametrize("values", [{}, {"prevResult": None}])
def test_no_prev_result_is_none(values):
    assert result.read_prev_result(Section(values), "1.1.0") is None


def test_a_prev_result_that_is_no_object_is_refused():
    with pytest.raises(CniError, match="prevResult: expected an object, got string"):
        result.read_prev_result(Section({"prevResult": "x"}), "1.1.0")


@pytest.mark.parametrize("own,to", list(product(version.ALL, repeat=2)), ids=lambda text: f"R36-{text}")
def test_each_version_becomes_each_other(own, to):
    made = result.to_version({"cniVersion": "1.1.0", "ips": stdlib.loads(IPS),
                              "routes": [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]}, own)
    there = stdlib.loads(result.encode(result.to_version(made, to)))
    assert there["cniVersion"] == to
    back = result.to_version(result.create(to, there), "1.1.0")
    assert [one["address"] for one in back["ips"]][:2] == ["10.1.0.2/16", "fd00::2/64"]
    assert back["routes"] == [{"dst": "0.0.0.0/0", "gw": "10.1.0.1"}]


@pytest.mark.parametrize("to", version.ALL)
def test_conversion_leaves_the_original_as_it_was(to):
    document = v11(f'"ips":{IPS},"interfaces":[{EXTRAS}],"routes":[{ROUTE}]')
    made = result.create("1.1.0", stdlib.loads(document))
    before = stdlib.dumps(made)
    result.to_version(made, to)
    assert stdlib.dumps(made) == before


@pytest.mark.parametrize("key", ["interfaces", "ips", "routes"])
def test_a_null_in_a_list_is_refused(key):
    with pytest.raises(CniError, match=rf"result\.{key}\[0\]: expected an object, got null"):
        result.create("1.1.0", {"cniVersion": "1.1.0", key: [None]})


def test_an_error_names_the_place():
    with pytest.raises(CniError) as caught:
        result.create("1.1.0", {"cniVersion": "1.1.0", "ips": [{"address": "x"}]})
    assert (caught.value.msg, caught.value.details) == ("invalid CIDR address: x", "result.ips[0].address")


TABLES = (*result.SHAPES, result.IP_OF_A, result.IP_OF_B, result.INTERFACE_C, result.ROUTE, result.DNS)
KEYS = st.sampled_from(sorted({key for shape in TABLES for key in shape.rows}))
LEAVES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False),
                   st.text(max_size=20),
                   st.sampled_from(["10.1.0.2/16", "::1/64", "10.0.0.1", "1.0.0", "4", "6"]))
ANYTHING = st.recursive(LEAVES, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(
    KEYS | st.text(max_size=5), inner, max_size=6), max_leaves=25)


@given(st.sampled_from(["", *version.ALL, "9.9.9"]), ANYTHING, st.sampled_from([*version.ALL, "9.9.9"]))
def test_no_document_breaks_the_reader_or_the_conversions(own, document, to):
    if isinstance(document, dict) and own:
        document = {**document, "cniVersion": own}
    try:
        made = result.create(own, document)
        stdlib.loads(result.encode(result.to_version(made, to)))
    except CniError:
        pass


@given(ANYTHING, st.sampled_from([*version.ALL, "9.9.9"]))
def test_no_prev_result_breaks_the_reader(previous, config_version):
    try:
        result.read_prev_result(Section({"prevResult": previous}), config_version)
    except CniError:
        pass


IP = st.ip_addresses().map(str)


def cidrs():
    return st.builds(lambda ip, cut: f"{ip}/{cut * (128 if ':' in str(ip) else 32) // 128}",
                     st.ip_addresses(), st.integers(0, 128))


def of_shape(kind):
    """Return a strategy for documents with the keys of this shape. Most of these documents are valid."""
    if isinstance(kind, result.Shape):
        return st.fixed_dictionaries({}, optional={key: of_shape(inner) for key, inner, _ in kind.rows.values()})
    if isinstance(kind, list):
        return st.lists(of_shape(kind[0]), max_size=2)
    return {result.text: st.text(max_size=5) | st.sampled_from(["4", "6"]), result.index: st.integers(-1, 9),
            result.real_index: st.integers(-1, 9), result.integer: st.integers(-9, 1 << 60),
            result.real: st.integers(-9, 1 << 60), result.cidr: cidrs(), result.ip: IP}[kind]


@given(st.data(), st.sampled_from(version.ALL), st.sampled_from(version.ALL))
def test_a_document_of_a_valid_shape_is_converted_or_refused_with_the_reason(data, own, to):
    document = data.draw(of_shape(result.SHAPES[result.FAMILY[own]])) | {"cniVersion": own}
    made = result.create(own, document)
    assert result.create(own, stdlib.loads(stdlib.dumps(made).replace(result.UNSET_CIDR, "::/0")))
    try:
        assert stdlib.loads(result.encode(result.to_version(made, to)))["cniVersion"] == to
    except CniError as e:
        message = e.msg
    else:
        message = NO_IPS
    assert message == NO_IPS


@given(st.fixed_dictionaries({
    "cniVersion": st.just("1.1.0"),
    "ips": st.lists(st.fixed_dictionaries(
        {"address": cidrs()}, optional={"gateway": IP, "interface": st.integers(0, 9)}), max_size=3),
    "routes": st.lists(st.fixed_dictionaries(
        {"dst": cidrs()}, optional={"gw": IP, "table": st.integers(0, 9)}), max_size=3)}))
def test_a_printed_result_is_read_back_unchanged_in_versions_that_can_hold_it(document):
    made = result.create("1.1.0", document)
    for to in version.ALL[2:]:
        shaped = result.to_version(made, to)
        again = result.create(to, stdlib.loads(result.encode(shaped)))
        assert result.encode(result.to_version(again, "1.1.0")) == result.encode(made)
