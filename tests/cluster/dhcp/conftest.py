"""The daemon, its server and a network, for each test."""

from dhcp.fixtures import daemon, network, server  # noqa: F401
