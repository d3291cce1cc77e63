"""The index of held addresses. The tests compare it with a model, and use it from several threads and without a
file."""

import os
import subprocess
import sys
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from unit.kit.ipam.index import Directory, v4, v6

from fastcni import _ipam_bitmap

# -- what it answers --------------------------------------------------------------------------------------

def test_a_new_index_is_empty_and_not_fresh(directory):
    index = directory.open()
    assert not index.fresh
    assert len(index) == 0
    assert index.trouble == 0
    assert index.next_free(v4(1), v4(9)) == v4(1)


def test_the_next_free_address_skips_what_is_held_and_the_gateway(directory):
    index = directory.open()
    for n in range(1, 6):
        index.hold(v4(n), b"x")
    assert index.next_free(v4(1), v4(20)) == v4(6)
    assert index.next_free(v4(1), v4(20), v4(6)) == v4(7)
    assert index.next_free(v4(1), v4(6), v4(6)) is None
    assert index.next_free(v4(2), v4(5)) is None
    assert index.next_free(v4(9), v4(5)) is None


def test_a_full_16_is_full_and_one_free_address_is_found_from_everywhere(directory):
    index = directory.open()
    for n in range(65536):
        index.hold(v4(n), b"%d" % n)
    assert index.next_free(v4(0), v4(65535)) is None
    assert index.count(v4(0), v4(65535)) == 65536
    assert index.next_free(v4(0), v4(65536)) == v4(65536)
    index.drop(v4(40000), b"40000")
    for start in (0, 1, 4095, 4096, 39999, 40000):
        assert index.next_free(v4(start), v4(65535)) == v4(40000)
    assert index.next_free(v4(40001), v4(65535)) is None


@pytest.mark.parametrize("address", [v4, v6])
def test_the_oldest_free_address_is_the_first_with_the_least_time_that_is_not_held(directory, address):
    index = directory.open()
    for n in (4095, 4097):              # these two numbers are in different entries of the index
        index.hold(address(n), b"x")

    def oldest(*times, least=0xFFFFFFFF):
        return index.oldest_free(address(4094), array("I", times).tobytes(), least)

    assert oldest(9, 1, 7, 1, 7) == (7, 2)
    assert oldest(0, 0, 0) == (0, 0)
    assert oldest(9, 0, 8, least=8) is None and oldest(9, 0, 8, least=9) == (8, 2)
    assert oldest(0xFFFFFFFF, 1, 0xFFFFFFFF) is None and oldest() is None


def test_an_address_is_held_once(directory):
    index = directory.open()
    assert index.hold(v4(1), b"a")
    assert not index.hold(v4(1), b"b")
    assert index.addresses_of(b"a") == [v4(1)] and index.addresses_of(b"b") == []
    assert not index.drop(v4(1), b"b") and not index.drop(v4(2), b"a")
    assert index.drop(v4(1), b"a") and not index.drop(v4(1), b"a")
    assert len(index) == 0


def test_one_index_has_both_families(directory):
    index = directory.open()
    index.hold(v4(1), b"pod")
    index.hold(v6(1), b"pod")
    assert sorted(index.addresses_of(b"pod"), key=len) == [v4(1), v6(1)]
    mapped = b"\0" * 10 + b"\xff\xff" + v4(1)
    assert index.is_held(mapped) and not index.hold(mapped, b"pod")


def test_an_ipv6_64_needs_no_bitmap_of_its_size(directory):
    index = directory.open()
    first, last = v6(1), v6(2**64 - 1)
    far = v6(2**63)
    index.hold(far, b"far")
    index.hold(last, b"last")
    for n in range(1, 5000):
        index.hold(v6(n), b"%d" % n)
    assert index.next_free(first, last) == v6(5000)
    assert index.next_free(far, last) == v6(2**63 + 1)
    assert index.next_free(last, last) is None
    assert index.count(first, last) == 5001
    assert index.sign() and 4096 < os.path.getsize(directory.file()) < 1 << 20


def test_the_end_of_the_address_space_is_an_end(directory):
    index = directory.open()
    top = b"\xff" * 16
    index.hold(top, b"x")
    assert index.next_free(top, top) is None
    assert index.next_free(b"\xff" * 15 + b"\xfe", top, b"\xff" * 15 + b"\xfe") is None
    for n in range(256):
        index.hold(b"\xff" * 15 + bytes([n]), b"%d" % n)
    assert index.next_free(b"\xff" * 15 + b"\x00", top) is None


def test_only_complete_addresses_are_accepted(directory):
    index = directory.open()
    for wrong in (b"", b"123", b"12345", b"1" * 17):
        with pytest.raises(ValueError):
            index.hold(wrong, b"x")
    with pytest.raises(TypeError):
        index.hold("10.0.0.1", b"x")
    with pytest.raises(TypeError):
        index.hold(v4(1), "x")
    index.close()
    with pytest.raises(ValueError):
        index.next_free(v4(1), v4(2))
    index.close()


def test_no_argument_of_none_reaches_memory(directory):
    index = directory.open()
    for call, *arguments in ((index.hold, None, b"x"), (index.hold, v4(1), None), (index.drop, v4(1), None),
                             (index.drop, None, b"x"), (index.addresses_of, None), (index.is_held, None),
                             (index.next_free, None, None), (index.count, v4(1), None),
                             (index.oldest_free, None, b"", 9), (index.oldest_free, v4(1), None, 9)):
        with pytest.raises(TypeError):
            call(*arguments)


addresses = st.one_of(
    st.integers(0, 40).map(v4), st.integers(4080, 4120).map(v4), st.binary(min_size=4, max_size=4),
    st.integers(0, 40).map(v6), st.integers(0, 2**64 - 1).map(v6), st.binary(min_size=16, max_size=16))
owners = st.sampled_from([b"a", b"b", b"c\r\neth0", b"", b"d" * 200])
steps = st.lists(st.tuples(st.sampled_from(["hold", "hold", "drop", "free", "reopen", "reread", "clear"]),
                           addresses, addresses, owners), max_size=300)


def plain(address):
    """Return an address as the index returns it. The index returns an IPv4-mapped address as IPv4."""
    return address[12:] if address.startswith(b"\0" * 10 + b"\xff\xff") else address


def number(address):
    return int.from_bytes(address if len(address) == 16 else b"\0" * 10 + b"\xff\xff" + address, "big")


@settings(max_examples=150, deadline=None)
@given(steps)
def test_it_agrees_with_a_dict(tmp_path_factory, script):
    d = Directory(tmp_path_factory.mktemp("model"))
    index, model = d.open(), {}
    try:
        for what, address, other, owner in script:
            address = plain(address)
            if what == "hold":
                assert index.hold(address, owner) == (address not in model)
                model.setdefault(address, owner)
            elif what == "drop":
                assert index.drop(address, owner) == (model.get(address) == owner)
                if model.get(address) == owner:
                    del model[address]
            elif what == "free" and len(address) == len(plain(other)):
                first, last = sorted((number(address), number(other)))
                held = {number(a) for a in model}
                near = range(first, min(last, first + len(held)) + 1)
                expected = next((n for n in near if n not in held), None)
                found = index.next_free(first.to_bytes(16, "big"), last.to_bytes(16, "big"))
                assert (found and number(found)) == expected
                assert index.count(first.to_bytes(16, "big"), last.to_bytes(16, "big")) == \
                    sum(first <= n <= last for n in held)
            elif what in ("reopen", "reread"):
                assert index.sign()
                index.close()
                if what == "reread":
                    _ipam_bitmap.forget()
                index = d.open()
                assert index.fresh
            elif what == "clear":
                index.clear()
                model.clear()
            assert len(index) == len(model)
            assert sorted(index.addresses_of(owner)) == sorted(a for a, o in model.items() if o == owner)
            assert index.is_held(address) == (address in model)
    finally:
        index.close()
        os.close(d.fd)


def test_it_grows_and_keeps_everything(directory):
    count = 5000
    directory.filled(count)
    index = directory.open()
    assert index.fresh and len(index) == count
    for n in range(0, count, 7):
        assert index.addresses_of(b"owner %d" % n) == [v4(n)]
    for n in range(count):
        assert index.drop(v4(n), b"owner %d" % n)
    assert len(index) == 0 and index.next_free(v4(0), v4(9)) == v4(0)
    index.clear()
    assert index.sign() and os.path.getsize(directory.file()) <= 8192


def test_scattered_addresses_take_a_block_each_and_free_it(directory):
    index = directory.open()
    strewn = [(0xFD << 120 | n << 20).to_bytes(16, "big") for n in range(3000)]
    for a in strewn:
        index.hold(a, a)
    assert index.sign()
    size = os.path.getsize(directory.file())
    assert 3000 * 544 < size < 4096 * (544 + 48) * 1.1
    for a in strewn:
        assert index.drop(a, a)
    for n in range(3000):
        index.hold((0xFE << 120 | n << 20).to_bytes(16, "big"), b"x%d" % n)
    assert index.sign() and os.path.getsize(directory.file()) == size


def test_importing_it_loads_nothing_else():
    root = os.path.dirname(os.path.dirname(_ipam_bitmap.__file__))
    code = (f"import sys; sys.path.append({root!r}); import fastcni; before = set(sys.modules)\n"
            "import fastcni._ipam_bitmap; print(*sorted(set(sys.modules) - before))")
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    loaded = {name for name in done.stdout.split() if not name.startswith(("_cython", "cython_runtime"))}
    assert loaded == {"fastcni._ipam_bitmap"}
