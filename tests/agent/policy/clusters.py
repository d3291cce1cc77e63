"""Pods, and random clusters for property tests."""

from fastcni.agent.policy.objects import PROTOCOLS, Pod
from fastcni.spec.address import read_ip


def make_pod(name, *addresses, namespace="default", labels=None, ports=None, node="here"):
    return Pod(namespace, name, labels or {}, tuple(read_ip(one) for one in addresses), node,
               {(name, PROTOCOLS["TCP"]): number for name, number in (ports or {}).items()})
