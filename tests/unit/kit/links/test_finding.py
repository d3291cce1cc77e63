"""Find links and their addresses in the real kernel."""

from lab.node import Inside

from fastcni.kernel import wire
from fastcni.kit.links import find


def test_a_link_that_has_vanished_has_no_addresses(pod):
    """An earlier DEL was killed while the kernel deleted the link. Once, the link vanished during the next DEL, and
    this DEL failed."""
    with Inside(pod):
        sock = wire.open_socket()
    try:
        assert find.addresses(sock, 4711) == []
    finally:
        sock.close()
