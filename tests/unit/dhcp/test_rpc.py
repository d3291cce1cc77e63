"""The protocol between plugin and daemon: Go's net/rpc in gob. Also the plugin's keys and DHCP options, and the
daemon's flags."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fastcni.dhcp import flags
from fastcni.kit.dhcp import dhcp_conf, gob, rpc
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

# An answer of the reference plugins' daemon to DHCP.Release, captured from its socket
RELEASED = bytes.fromhex(
    "397f03010108526573706f6e736501ff80000103010d536572766963654d6574686f64010c000103536571010600010545"
    "72726f72010c00000011ff80010c444843502e52656c65617365000aff95030102ff9600000003ff9600")


def values(data, step=1 << 20):
    decoder, found = gob.Decoder(), []
    for at in range(0, len(data), step):
        decoder.feed(data[at:at + step])
        while (value := decoder.next_value()) is not None:
            found.append(value)
    return found


@pytest.mark.parametrize("step", [1, 7, 1000])
def test_an_answer_of_the_reference_is_read_however_it_comes(step):
    assert values(RELEASED, step) == [{"ServiceMethod": "DHCP.Release"}, {}]


NUMBERS = st.integers(-(1 << 63), (1 << 63) - 1)


@given(st.lists(st.builds(dict, Dst=st.just({"IP": b"\x0a\0\0\0"}), MTU=NUMBERS.filter(bool)), max_size=5),
       st.text(max_size=300))
def test_what_is_written_is_read_again(routes, text):
    kind = rpc.struct(Text=gob.STRING, Routes=("list", rpc.ROUTE))
    value = {name: it for name, it in (("Text", text), ("Routes", routes)) if it}
    encoder = gob.Encoder()
    assert values(encoder.value(kind, value) + encoder.value(kind, value)) == [value, value]


@given(st.binary(max_size=200))
def test_no_bytes_but_gob_errors(data):
    for each in (data, RELEASED + data, RELEASED[:30] + data):
        try:
            values(each)
        except gob.GobError:
            continue


@given(st.integers(0, 90), st.integers(1, 255))
def test_no_changed_byte_but_gob_errors(at, change):
    data = bytearray(RELEASED)
    data[at] ^= change
    try:
        values(bytes(data))
    except gob.GobError:
        return


def test_a_list_of_lists_has_a_limit():
    wire = {"SliceT": {"CommonType": {"Id": 65}, "Elem": 65}}          # a list of such lists
    defined = gob.sized(gob.signed(-65) + gob.encoded(gob.WIRE_TYPE, wire))
    with pytest.raises(gob.GobError, match="unknown type 65"):
        values(defined + gob.sized(gob.signed(65) + b"\1" * 40 + b"\0"))


def test_a_result_travels_whole():
    result = {"ips": [{"address": "10.0.0.7/24", "gateway": "10.0.0.1"}],
              "routes": [{"dst": "0.0.0.0/0", "gw": "10.0.0.1", "mtu": 1400, "priority": 5},
                         {"dst": "10.1.0.0/16", "gw": "0.0.0.0", "scope": 253}],
              "dns": {"nameservers": ["10.0.0.1"], "domain": "a", "search": ["b", "c"]}}
    header = {"ServiceMethod": rpc.ALLOCATE, "Seq": 9}
    head, body = values(rpc.answer(gob.Encoder(), header, rpc.to_result(result)))
    assert head == header and rpc.from_result(body) == result


def test_addresses_of_16_bytes_are_those_of_ipv4():
    mapped = bytes(10) + b"\xff\xff\x0a\0\0\7"
    assert rpc.from_result({"IPs": [{"Address": {"IP": mapped, "Mask": b"\xff\xff\xff\0"}}]}) == {
        "ips": [{"address": "10.0.0.7/24"}]}


@pytest.mark.parametrize("network", [{}, {"IP": b"\1"}, {"IP": bytes(4), "Mask": b"\xff"},
                                     {"IP": bytes(4), "Mask": b"\xff\0\xff\0"}])
def test_an_address_that_is_none_is_an_error(network):
    with pytest.raises(ValueError):
        rpc.from_result({"IPs": [{"Address": network}]})


# Keys ------------------------------------------------------------------------------------------------

def read(**ipam):
    return dhcp_conf.read_keys(Section({"name": "net", "ipam": {"type": "dhcp", **ipam}}))


def test_the_defaults_are_the_references():
    keys = read()
    assert (keys.socket_path, keys.request, keys.provide, keys.priority) == ("/run/cni/dhcp.sock", (3, 1), [], 0)


@pytest.mark.parametrize("request_, codes", [
    ([{"option": "121"}], (121, 3, 1)), ([{"option": "routers"}], (3, 1)),
    ([{"option": "6", "skipDefault": True}, {"option": "15"}], (6, 15)),
    ([{"option": "interface-mtu", "skipDefault": True}], (26,))])
def test_the_defaults_are_requested_too_unless_one_says_skip_default(request_, codes):
    assert read(request=request_).request == codes


@pytest.mark.parametrize("name, code", [*dhcp_conf.OPTION_NAMES.items(), ("0", 0), ("255", 255), ("007", 7)])
def test_options_are_named_or_numbered(name, code):
    assert read(provide=[{"option": name, "value": "x"}]).provide == [(code, "x", "")]


@pytest.mark.parametrize("name, why", [("256", "value out of range"), ("", "invalid syntax"), ("-1", "invalid syntax"),
                                       ("router", "invalid syntax"), ("\u0663", "invalid syntax"),
                                       ("9" * 99, "value out of range")])
def test_another_option_is_refused_with_the_references_text(name, why):
    with pytest.raises(CniError, match=r"Can not parse option .*: strconv.ParseUint: parsing .*" + why) as caught:
        read(request=[{"option": name}])
    assert caught.value.code == 7


@pytest.mark.parametrize("args, sent", [
    ("", {12: b"web"}), ("NAME=db", {12: b"db"}), ("IgnoreUnknown=1;x;NAME=a=b;NAME2=c", {12: b"a=b"}),
    ("NAME=", {12: b""})])
def test_cni_args_win_over_the_value(args, sent):
    assert dhcp_conf.provided(read(provide=[{"option": "12", "value": "web", "fromArg": "NAME"}]), args) == sent


def test_a_value_that_does_not_fit_an_option_is_refused():
    with pytest.raises(CniError, match='value too long for option "12"'):
        read(provide=[{"option": "12", "value": "x" * 256}])
    keys = read(provide=[{"option": "12", "fromArg": "NAME"}])
    with pytest.raises(CniError, match='value too long for option "12" from CNI_ARGS "NAME"'):
        dhcp_conf.provided(keys, f"NAME={'x' * 256}")


def test_the_client_id_is_the_references():
    assert dhcp_conf.client_id("c1", "net", "eth0") == b"\0c1/net/eth0"
    assert len(dhcp_conf.client_id("c" * 300, "net", "eth0")) == 255


# Flags -----------------------------------------------------------------------------------------------

def test_flags_are_read_as_go_reads_them():
    found = flags.read(["-broadcast", "--pidfile=/run/x", "-timeout", "1m30s", "-resendmax=500ms", "--socketpath", "y"])
    assert (found.broadcast, found.pidfile, found.timeout, found.resendmax, found.socketpath) == (
        True, "/run/x", 90.0, 0.5, "y")
    assert flags.read(["-broadcast=false"]).broadcast is False
    assert vars(flags.read([])) == vars(flags.Flags())


@pytest.mark.parametrize("words, why", [
    (["-x"], "flag provided but not defined: -x"), (["-timeout"], "flag needs an argument: -timeout"),
    (["-timeout=5"], 'invalid value "5" for flag -timeout: parse error'), (["x"], "not a flag: x"),
    (["-pidfile", "x"], 'Error writing pidfile "x": path not absolute'),
    (["-broadcast=perhaps"], 'invalid value "perhaps" for flag -broadcast: parse error')])
def test_a_wrong_command_line_is_explained(words, why):
    with pytest.raises(flags.FlagError) as caught:
        flags.read(words)
    assert str(caught.value) == why


@pytest.mark.parametrize("text, seconds", [("1h", 3600), ("1m2s", 62), ("1.5s", 1.5), ("20us", 2e-5), ("3m28s", 208)])
def test_durations_of_go(text, seconds):
    assert flags.seconds_of(text) == pytest.approx(seconds)
