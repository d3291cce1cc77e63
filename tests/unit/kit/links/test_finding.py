"""Finding links and their addresses (real kernel)."""

from lab.node import Inside

from fastcni.kernel import wire
from fastcni.kit.links import find


def test_a_link_that_has_vanished_has_no_addresses(pod):
    """A DEL met the end of the link that an earlier, killed DEL had begun to delete, and failed."""
    with Inside(pod):
        sock = wire.open_socket()
    try:
        assert find.addresses(sock, 4711) == []
    finally:
        sock.close()
