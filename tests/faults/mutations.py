"""The child process of sanitized.py: `python -m faults.mutations SECONDS SEED DIRECTORY`. It prints how many inputs it
has read."""

import marshal
import os
import random
import socket
import struct
import sys
import time

from unit.kit.ipam.index import BOOT, FILE, Directory, v4
from unit.server.client import packed

from fastcni import _acceptor, _netlink, _rtnetlink
from fastcni.kernel import nft, nft_elements, nft_rules, rtnl

NUMBERS = (0, 1, 3, 4, 15, 16, 17, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
REFUSED = (ValueError, OSError, UnicodeError, OverflowError)    # errors by which a reader rejects its input


def mutated(rng, data):
    """Return `data` with some bytes changed, with a number inserted, or with a piece removed, doubled or cut off."""
    data = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at, kind = rng.randrange(len(data) + 1), rng.randrange(5)
        if kind == 0 and at < len(data):
            data[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            size = rng.choice((2, 4))
            data[at & ~3:(at & ~3) + size] = (rng.choice(NUMBERS) & (1 << 8 * size) - 1).to_bytes(size, "little")
        elif kind == 2:
            del data[at:at + rng.randrange(40)]
        elif kind == 3:
            data[at:at] = data[at:at + rng.randrange(200)]
        else:
            del data[at:]
    return bytes(data)


READERS = (rtnl.read_link, rtnl.Address, rtnl.read_route, nft_elements.read_elements, nft_rules.read_rule,
           nft.read_chain, _netlink.attributes, _netlink.attribute_list, _rtnetlink.read_link)


def attempt(reader, *arguments):
    try:
        return reader(*arguments)
    except REFUSED:
        return None


def read_netlink(rng, data, pair):
    pair[1].send(data)
    attempt(_netlink.receive, pair[0].fileno(), 0)
    for kind, flags, _, _, payload in attempt(_netlink.messages, data) or ():
        attempt(_netlink.read_ack, kind, flags, payload)
        for reader in READERS:
            attempt(reader, payload)
            attempt(reader, mutated(rng, payload))


def read_request(rng, pair):
    environment = {"CNI_COMMAND": "ADD", "CNI_CONTAINERID": "x" * rng.randrange(200), "A": "\xe9"}
    data = mutated(rng, packed("bridge", environment, b'{"a": 1}', rng.randrange(4)))
    fds = [1] * rng.randrange(8)
    if data:
        pair[1].sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"{len(fds)}i", *fds))])
        come = attempt(_acceptor.receive, pair[0].fileno())
        for fd in come[1] if come else ():
            os.close(fd)
    attempt(_acceptor.read_strings, data)


def read_index(rng, directory, good):
    """Use a damaged index file: open it, call the functions of the index, change it, and sign it. good: the content of
    an intact index."""
    with open(directory.file(), "wb") as file:
        file.write(mutated(rng, good) if rng.random() < 0.9 else good[:rng.randrange(len(good))])
    index = attempt(directory.open)
    if index is None:
        return
    for number in range(40):
        attempt(index.hold, v4(rng.randrange(600)), b"owner %d" % number)
        attempt(index.addresses_of, b"owner %d" % rng.randrange(600))
        attempt(index.next_free, v4(rng.randrange(600)), v4(600))
        attempt(index.drop, v4(rng.randrange(600)), b"owner %d" % rng.randrange(600))
    attempt(index.count, v4(0), v4(600))
    attempt(index.sign)
    index.close()


def main(seconds, seed, work):
    assert "/sanitized/" in _netlink.__file__, f"{_netlink.__file__} is not the sanitized build"
    rng, count, until = random.Random(seed), 0, time.monotonic() + float(seconds)
    with open(f"{work}/datagrams", "rb") as file:
        datagrams = marshal.load(file)
    # A name for this seed: another child may have left a valid index with these addresses
    path = f"{work}/index-{seed}"
    os.mkdir(path)
    directory = Directory(path)
    directory.open(BOOT).close()
    directory.filled(300)
    with open(os.path.join(directory.path, FILE), "rb") as file:
        good = file.read()
    netlink = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    requests = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    while time.monotonic() < until:
        for _ in range(20):
            read_netlink(rng, mutated(rng, rng.choice(datagrams)), netlink)
            read_request(rng, requests)
        read_index(rng, directory, good)
        count += 41
    print(count)


if __name__ == "__main__":
    main(*sys.argv[1:])
