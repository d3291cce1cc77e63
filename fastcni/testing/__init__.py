"""The test kit for CNI plugins: a fake kernel, real network namespaces, and pytest fixtures for both.

    pytest_plugins = ["fastcni.testing"]        # in conftest.py: makes the fixtures available

Conformance       a class of tests that every plugin must pass; derive a test class from it
fake_runtime      a fixture that sends requests to plugins on a fake node (fake_node.Node), without root
real_runtime      a fixture that sends requests to plugins in a fresh namespace, which stands for the host; needs root
pod_netns         a fixture: a function that makes a namespace for a pod and returns its name; needs root
witnesses         a module that reads links, addresses and routes by ip(8)

The test kit needs pytest (pip install fastcni[testing]). No other module of fastcni imports it.
"""

# The docstring above is a page of the docs, so the map of the modules is here:
#
#    conformance      Conformance
#    fake_runtime     sends requests to plugins on a model of a node
#    real_runtime     sends requests to plugins in real namespaces
#    namespaces       makes namespaces
#    witnesses        reads a namespace by ip(8)
#    fake_node        the model of a node: a host and one pod, from the models below
#    fake_sockets     sockets that replace netlink sockets
#    fake_messages    netlink attributes, and the kernel's errors
#    fake_links       links
#    fake_routing     addresses, routes and rules
#    fake_neighbours  neighbours and FDBs
#    fake_shaping     traffic control
#    fake_firewall    nftables

import pytest

pytest.register_assert_rewrite("fastcni.testing.fake_runtime", "fastcni.testing.namespaces",
                               "fastcni.testing.real_runtime", "fastcni.testing.conformance")

from fastcni.testing.conformance import Conformance  # noqa: E402
from fastcni.testing.fake_runtime import FakeRuntime, fake_runtime, fake_sockets, third_party_plugins  # noqa: E402
from fastcni.testing.namespaces import host_netns, needs_root, pod_netns  # noqa: E402
from fastcni.testing.real_runtime import RealRuntime, real_runtime  # noqa: E402

__all__ = ["Conformance", "FakeRuntime", "RealRuntime", "fake_runtime", "fake_sockets", "host_netns", "needs_root",
           "pod_netns", "real_runtime", "third_party_plugins"]
