"""Fixtures: the dhcp daemon, a DHCP server and a network, for each test."""

from unit.dhcp.fixtures import daemon, network, server  # noqa: F401
