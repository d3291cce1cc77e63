"""Errors of `_netlink`: misuse of a Batch, acknowledgements with errors, invalid lengths, and random bytes."""

import os
import struct
from errno import EINVAL

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fastcni._netlink import Batch, BatchFull, attribute_list, attributes, messages, read_ack
from fastcni._system import setns
from fastcni.kernel import nft, nft_elements, nft_rules, rtnl, uapi

NESTED = 0x8000
CAPACITY = 32768
ERROR, DONE = 2, 3
CAPPED, TLVS = 0x100, 0x200


# -- what a Batch refuses ----------------------------------------------------------------------------------

def test_an_open_nest_is_an_error():
    batch = Batch().begin(16, 0, b"").nest(18)
    with pytest.raises(ValueError, match="1 nested attributes still open"):
        batch.finish()
    with pytest.raises(ValueError, match="still open"):
        batch.begin(16, 0, b"")
    assert len(batch.end().finish()) == 20


def test_an_end_without_a_nest_is_an_error():
    with pytest.raises(ValueError, match="no nested attribute is open"):
        Batch().begin(16, 0, b"").end()


def test_sixteen_nests_fit_into_each_other_and_seventeen_do_not():
    batch = Batch().begin(16, 0, b"")
    for _ in range(16):
        batch.nest(1)
    with pytest.raises(ValueError, match="more than 16"):
        batch.nest(1)
    for _ in range(16):
        batch.end()
    assert len(batch.finish()) == 16 + 16 * 4


@pytest.mark.parametrize("write", [lambda b: b.u8(1, 1), lambda b: b.nest(1), lambda b: b.header(b"abcd")])
def test_an_attribute_needs_a_message(write):
    with pytest.raises(ValueError, match="call begin"):
        write(Batch())


def test_a_text_with_a_nul_is_refused():
    """The kernel stops at the NUL, so it would read "eth0\\0x" as eth0."""
    with pytest.raises(ValueError, match="NUL"):
        Batch().begin(16, 0, b"").text(3, "eth0\0x")


@pytest.mark.parametrize("write, error", [
    (lambda b: b.u8(1, 256), OverflowError), (lambda b: b.u32(1, -1), OverflowError),
    (lambda b: b.u16(1, 1 << 16), OverflowError), (lambda b: b.u32(1, "1"), TypeError),
    (lambda b: b.text(1, b"x"), TypeError), (lambda b: b.raw(1, None), TypeError), (lambda b: b.raw(1, "x"), TypeError),
    (lambda b: b.text(1, "\ud800"), ValueError),
])
def test_a_value_of_another_kind_or_size_is_refused(write, error):
    batch = Batch().begin(16, 0, b"")
    with pytest.raises(error):
        write(batch)
    assert len(batch.finish()) == 16


def fill(batch, left):
    """Add messages until `left` bytes are free."""
    batch.begin(16, uapi.NLM_F_ACK, b"", "fill").raw(1, bytes(CAPACITY - left - 16 - 4))


def test_a_full_batch_holds_the_complete_messages_before():
    """Once, a full batch kept half of the last message, or wrote a length after the end of its buffer."""
    batch = Batch()
    fill(batch, 40)
    with pytest.raises(BatchFull, match="32768"):
        batch.begin(17, uapi.NLM_F_ACK, b"", "too long").nest(1).raw(1, bytes(17))
    assert batch.asked == {1: "fill"}
    assert [len(payload) for *_, payload in messages(batch.finish())] == [CAPACITY - 40 - 16]
    batch.clear().begin(17, uapi.NLM_F_ACK, b"", "again").nest(1).raw(1, bytes(17)).end()
    assert batch.asked == {1: "again"}


@pytest.mark.parametrize("left", [0, 4, 8, 12, 16])
def test_a_header_that_does_not_fit_leaves_the_batch_as_it_was(left):
    batch = Batch()
    fill(batch, left)
    before = batch.finish()
    with pytest.raises(BatchFull):
        batch.begin(17, uapi.NLM_F_ACK, b"abcd", "too long")
    assert batch.finish() == before
    assert batch.asked == {1: "fill"}


def test_the_last_byte_of_a_batch_can_be_used():
    batch = Batch()
    fill(batch, 0)
    assert len(batch.finish()) == CAPACITY


def test_an_attribute_cannot_be_longer_than_its_length_field():
    with pytest.raises(BatchFull):
        Batch().begin(16, 0, b"").raw(1, bytes(0x10000))


# -- acknowledgements --------------------------------------------------------------------------------------

def tlvs(text=b"", offset=None):
    batch = Batch().begin(0, 0, b"")
    if text:
        batch.raw(1, text + b"\0")
    if offset is not None:
        batch.u32(2, offset)
    return batch.finish()[16:]


REQUEST = struct.pack("=IHHII", 28, 20, 5, 1, 0)


@pytest.mark.parametrize("flags, body", [
    (CAPPED | TLVS, REQUEST),                       # the acknowledgement has only the request's header
    (TLVS, REQUEST + b"x" * 12),                    # the acknowledgement has the complete request
], ids=["capped", "whole"])
def test_a_refusal_carries_the_kernels_text_and_the_offset(flags, body):
    payload = struct.pack("=i", -22) + body + tlvs(b"ipv4: Invalid prefix length", 17)
    assert read_ack(ERROR, flags, payload) == (22, "ipv4: Invalid prefix length", 17)


def test_an_ack_may_carry_a_warning():
    assert read_ack(ERROR, CAPPED | TLVS, bytes(4) + REQUEST + tlvs(b"deprecated")) == (0, "deprecated", 0)


def test_an_old_kernels_refusal_is_a_number():
    assert read_ack(ERROR, 0, struct.pack("=i", -17) + REQUEST + b"x" * 12) == (17, "", 0)


def test_the_end_of_a_dump_is_read_like_an_ack():
    assert read_ack(DONE, 2, bytes(4)) == (0, "", 0)
    assert read_ack(DONE, 2, b"") == (0, "", 0)
    assert read_ack(DONE, 2 | TLVS, struct.pack("=i", -22) + tlvs(b"Invalid header")) == (22, "Invalid header", 0)


@pytest.mark.parametrize("payload", [b"", b"abc", bytes(4), bytes(19)])
def test_an_ack_cut_short_is_never_taken_for_success(payload):
    with pytest.raises(ValueError, match="error message"):
        read_ack(ERROR, 0, payload)


def test_the_length_of_the_repeated_request_is_not_trusted():
    payload = bytes(4) + struct.pack("=IHHII", 0xFFFFFFFF, 20, 5, 1, 0) + tlvs(b"text")
    with pytest.raises(ValueError):
        read_ack(ERROR, TLVS, payload)


def test_the_smallest_number_is_a_refusal_too():
    assert read_ack(ERROR, CAPPED, struct.pack("=i", -(1 << 31)) + REQUEST)[0] == 1 << 31


# -- truncated and hostile input ---------------------------------------------------------------------------

@pytest.mark.parametrize("data, text", [
    (b"\x0f\0\0\0" + bytes(12), "message of 15 bytes at 0 in a datagram of 16"),        # shorter than a header
    (b"\x11\0\0\0" + bytes(12), "message of 17 bytes at 0 in a datagram of 16"),        # longer than the datagram
    (b"\xff\xff\xff\xff" + bytes(12), "message of 4294967295 bytes"),
    (bytes(16), "message of 0 bytes"),  # a reader that advances by 0 bytes would never end
    (b"\x10\0\0\0" + bytes(12) + b"xyz", "3 stray bytes"),
    (b"abc", "3 stray bytes"),
])
def test_a_datagram_with_a_wrong_length_is_refused(data, text):
    with pytest.raises(ValueError, match=text):
        messages(data)


@pytest.mark.parametrize("data, text", [
    (b"\x03\0\1\0", "attribute of 3 bytes at 0 in 4"),
    (b"\x05\0\1\0", "attribute of 5 bytes at 0 in 4"),
    (bytes(4), "attribute of 0 bytes"),
    (b"\x04\0\1\0\x09\0\1\0abcd", "attribute of 9 bytes at 4 in 12"),
    (b"\x04\0\1\0ab", "2 stray bytes"),
])
def test_an_attribute_with_a_wrong_length_is_refused(data, text):
    with pytest.raises(ValueError, match=text):
        attribute_list(data)
    with pytest.raises(ValueError, match=text):
        attributes(data)


@pytest.mark.parametrize("offset", [5, -1, 1 << 40, (1 << 63) - 1])
def test_attributes_begin_within_the_bytes(offset):
    with pytest.raises(ValueError, match="in 4 bytes"):
        attributes(b"\x04\0\1\0", offset)


def test_the_last_attribute_may_lack_its_padding():
    assert attribute_list(b"\x05\0\1\0x") == [(1, b"x")]
    assert messages(b"\x11\0\0\0" + bytes(12) + b"x") == [(0, 0, 0, 0, b"x")]


def test_flags_are_stripped_and_the_last_of_equal_attributes_counts():
    data = b"\x05\0\1\x80x\0\0\0\x05\0\1\x40y\0\0\0"
    assert attribute_list(data) == [(1, b"x"), (1, b"y")]
    assert attributes(data) == {1: b"y"}


@pytest.mark.parametrize("function", [messages, attributes, attribute_list])
def test_only_bytes_are_read(function):
    for wrong in (None, "text", bytearray(16), memoryview(b"")):
        with pytest.raises(TypeError):
            function(wrong)


ATTRIBUTE = st.builds(lambda kind, value, short: struct.pack("=HH", len(value) + 4 - short, kind) + value
                      + bytes(-len(value) % 4), st.integers(0, 50) | st.integers(0, 0xFFFF),
                      st.binary(max_size=40), st.sampled_from([0, 0, 0, 0, 1, -1]))
NESTS = st.recursive(ATTRIBUTE, lambda inner: st.builds(
    lambda kind, items: struct.pack("=HH", 4 + len(b"".join(items)), kind | NESTED) + b"".join(items),
    st.integers(0, 50), st.lists(inner, max_size=5)), max_leaves=12)
# Random bytes, and data that resembles a message, so that the reader continues after the first length.
HOSTILE = st.binary(max_size=200) | st.builds(lambda head, items: head + b"".join(items), st.binary(max_size=20),
                                              st.lists(NESTS, max_size=8))


@settings(max_examples=200, deadline=None)
@given(HOSTILE, st.integers(-5, 300))
def test_readers_of_the_leaf_refuse_garbage_with_a_value_error_or_read_it(data, offset):
    for function in (lambda: messages(data), lambda: attributes(data, offset), lambda: attribute_list(data, offset),
                     lambda: attribute_list(data)):
        try:
            function()
        except ValueError:
            pass


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 0xFFFF), st.sampled_from([0, CAPPED, TLVS, CAPPED | TLVS, 2]), HOSTILE)
def test_acks_of_garbage_are_a_value_error_or_three_plain_values(kind, flags, payload):
    for kind_of in (kind, ERROR, DONE):
        try:
            code, text, offset = read_ack(kind_of, flags, payload)
        except ValueError:
            continue
        assert isinstance(code, int)
        assert isinstance(text, str)
        assert isinstance(offset, int)


@pytest.mark.parametrize("read, header", [
    (rtnl.read_link, 16), (rtnl.Address, 8), (rtnl.read_route, 12),
    (nft_elements.read_elements, 4), (nft_rules.read_rule, 4), (nft.read_chain, 4),
], ids=lambda value: getattr(value, "__name__", None))
def test_readers_of_verbs_refuse_garbage_with_a_value_error_or_read_it(read, header):
    @settings(max_examples=100, deadline=None)
    @given(st.binary(min_size=header, max_size=header), st.lists(NESTS, max_size=8), HOSTILE)
    def fuzz(head, items, garbage):
        for payload in (head + b"".join(items), garbage, head[1:]):
            try:
                read(payload)
            except ValueError:
                pass

    fuzz()


# -- setns -------------------------------------------------------------------------------------------------

def test_setns_says_why_it_cannot():
    fd = os.open("/dev/null", os.O_RDONLY)
    with pytest.raises(OSError) as caught:
        setns(fd)
    os.close(fd)
    assert caught.value.errno == EINVAL
