"""Cluster IPAM and dhcp against real servers, on loopback and in namespaces. `make test-cluster`."""

import itertools
import os
import shutil

import pytest
from cluster.etcd import Etcd

PROGRAMS = {"etcd": "etcd-server", "etcdctl": "etcd-client", "ping": "iputils-ping", "openssl": "openssl",
            "dnsmasq": "dnsmasq-base", "kea-dhcp4": "kea-dhcp4-server",
            "vtysh": "frr", "faketime": "faketime"}
NUMBERS = itertools.count()


def pytest_collection_modifyitems(items):
    """In the lane, a missing program is a failure. Elsewhere it is a reason to skip."""
    missing = sorted({package for name, package in PROGRAMS.items() if not shutil.which(name)})
    if not missing:
        return
    reason = f"needs the packages {', '.join(missing)}"
    if os.environ.get("LANE") == "cluster":
        raise pytest.UsageError(f"`make test-cluster` {reason}")
    for item in items:
        if "cluster" in item.path.parent.parts:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def etcd_member():
    """One etcd for all tests of a process. Tests that kill etcd, or need its whole key space, start their own."""
    with Etcd() as etcd:
        yield etcd


@pytest.fixture
def etcd(etcd_member):
    """The store of a configuration, with a prefix that no other test has: {"type": "etcd", "endpoints": ...}"""
    return etcd_member.conf(prefix=f"/fastcni/{os.getpid()}-{next(NUMBERS)}")


@pytest.fixture
def etcd_alone():
    """An Etcd with one member for one test."""
    with Etcd() as etcd:
        yield etcd


@pytest.fixture(scope="module")
def etcd_three():
    """An Etcd with three members."""
    with Etcd(3) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def etcd_tls():
    """An Etcd that requires client certificates."""
    with Etcd(tls=True) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def etcd_user():
    """An Etcd that requires a user and a password."""
    with Etcd(user=True) as etcd:
        yield etcd
