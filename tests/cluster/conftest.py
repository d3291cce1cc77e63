"""Fixtures of `make test-cluster`: cluster IPAM, the agent and dhcp with real servers, on loopback and in
namespaces."""

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
    """Skip tests whose program, such as etcd, is missing. In `make test-cluster` a missing program is a failure."""
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
    """Yield the etcd that all tests of this process share. A test that kills etcd or needs all of its keys starts its
    own etcd."""
    with Etcd() as etcd:
        yield etcd


@pytest.fixture
def etcd(etcd_member):
    """Return the `store` of an IPAM configuration, with a key prefix of this test alone: {"type": "etcd", "endpoints":
    ...}"""
    return etcd_member.conf(prefix=f"/fastcni/{os.getpid()}-{next(NUMBERS)}")


@pytest.fixture
def etcd_alone():
    """Yield an Etcd with one member, for one test."""
    with Etcd() as etcd:
        yield etcd


@pytest.fixture(scope="module")
def etcd_three():
    """Yield an Etcd with three members."""
    with Etcd(3) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def etcd_tls():
    """Yield an Etcd that requires client certificates."""
    with Etcd(tls=True) as etcd:
        yield etcd


@pytest.fixture(scope="module")
def etcd_user():
    """Yield an Etcd that requires a user and a password."""
    with Etcd(user=True) as etcd:
        yield etcd
