"""Give each test in this directory the fixtures daemon, network and server."""

from unit.dhcp.fixtures import daemon, network, server  # noqa: F401
