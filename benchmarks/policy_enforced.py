"""Measure how long forbidden packets pass after a change: a part of bench_policy.py.

The node has four pods with links; the other pods exist only in the source. The agent is a separate process. Flows of
each protocol send without a pause. A round forbids all flows by a policy, a label or a cluster policy. It measures the
time from the change of the file or object until an end of a flow receives the last packet.
"""

import contextlib
import json
import os
import random
import select
import sys
import tempfile
import time
import traceback
import uuid
from itertools import product
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from unit.agent.policy.flood import running
from unit.agent.policy.pods import ADDRESSES, Node
from unit.agent.policy.streams import PROTOCOLS, Stream, Streams

from fastcni.agent.policy.priority import raise_priority
from fastcni.agent.policy.service import Policies, Settings
from fastcni.agent.run import milliseconds
from fastcni.clients.kubernetes import open_api
from fastcni.daemon import garbage
from fastcni.kit import policies as policies_client
from fastcni.spec.errors import CniError
from fastcni.testing.namespaces import ip
from fastcni.testing.witnesses import eventually

PAIRS = ("a", "b"), ("d", "b")  # two pods on one bridge; a pod on a separate link and a pod on the bridge
QUIET_S, LIMIT_S = 0.2, 10.0  # a flow has ended if no packet arrives for QUIET_S; the limit of every wait
OPEN_S = 0.3                                    # pause after a round, in which the flows are allowed again
CLOSED = {"ingress": [], "policyTypes": ["Ingress"]}


def policy(name, labels, spec):
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {
        "name": name, "namespace": "default"}, "spec": {"podSelector": {"matchLabels": labels}, **spec}}


def cluster_policy(action):
    """Return a policy of tier Admin for the traffic to the pod b."""
    return {"apiVersion": "policy.networking.k8s.io/v1alpha2", "kind": "ClusterNetworkPolicy",
            "metadata": {"name": "edited"}, "spec": {
                "tier": "Admin", "priority": 5,
                "subject": {"pods": {"namespaceSelector": {}, "podSelector": {"matchLabels": {"app": "b"}}}},
                "ingress": [{"action": action, "from": [{"namespaces": {}}]}]}}


def pod(name, addresses, **labels):
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default", "labels": labels},
            "spec": {"nodeName": "here"}, "status": {"podIPs": [{"ip": address} for address in addresses]}}


class ByFiles:
    """A source whose objects are files in a directory, one file for each object."""

    def __init__(self, directory):
        self.directory = directory / "policies"
        self.directory.mkdir()
        self.settings = {"directory": str(self.directory)}

    def put(self, document):
        name = f"{document['kind']}-{document['metadata']['name']}.json"
        (self.directory / "new").write_text(json.dumps(document))
        (self.directory / "new").rename(self.directory / name)


class ByApi:
    """A source whose objects are in the mock of the Kubernetes API."""

    def __init__(self, directory, server):
        from cluster.kubernetes.api_server import kubeconfig

        self.server, path = server, directory / "kubeconfig"
        path.write_text(kubeconfig(server.url))
        self.settings = {"api": lambda: open_api(str(path)), "node": "here"}

    def put(self, document):
        plural = {"Pod": "pods", "NetworkPolicy": "networkpolicies",
                  "ClusterNetworkPolicy": "clusternetworkpolicies.policy.networking.k8s.io"}[document["kind"]]
        self.server.do(lambda api: api.put(plural, document, document["metadata"].get("namespace"),
                                           document["apiVersion"].rpartition("/")[2]))


def serve(settings):
    """Run the agent's policies."""
    try:
        it = Policies(settings, Silent())
        raise_priority()
        garbage.freeze()                        # the agent also freezes its objects
        poll = select.poll()
        poll.register(it.fileno(), select.POLLIN)
        while True:
            it.attend()
            poll.poll(milliseconds(it.due))
    except BaseException:
        traceback.print_exc()


class Silent:
    def info(self, *_, **__):
        return

    error = warning = info


def changes(source):
    """Yield pairs of functions (forbid, allow). forbid() forbids all traffic to the pod b, allow() allows the traffic
    again."""
    return [(lambda: source.put(policy("edited", {"app": "b"}, CLOSED)),
             lambda: source.put(policy("edited", {"app": "b"}, CLOSED | {"ingress": [{}]}))),
            (lambda: source.put(pod("b", ADDRESSES["b"], app="closed")),
             lambda: source.put(pod("b", ADDRESSES["b"], app="b"))),
            (lambda: source.put(cluster_policy("Deny")), lambda: source.put(cluster_policy("Pass")))]


def put_all(source, policies, pods):
    for name in ADDRESSES:
        source.put(pod(name, ADDRESSES[name], app=name))
    for number in range(len(ADDRESSES), pods):
        source.put(pod(f"pod-{number}", [f"10.9.{number >> 8}.{number & 255}", f"fd09::{number:x}"],
                       app=f"app-{number % 100}"))
    for number in range(policies):
        source.put(policy(f"policy-{number}", {"app": f"app-{number % 100}"}, {"ingress": [
            {"from": [{"podSelector": {"matchLabels": {"app": f"app-{(number + 20) % 100}"}}}]}]}))
    source.put(policy("closed", {"app": "closed"}, CLOSED))
    for _, allow in changes(source):
        allow()


def round_ms(node, forbid):
    """Start the flows and call forbid(). Return (ms from forbid() to the last packet, the flow that received this
    packet), or None if the flows did not begin."""
    streams = Streams([Stream(node, kind, *pair, ipv6) for kind, pair, ipv6 in product(
        PROTOCOLS, PAIRS, (False, True))])
    with contextlib.ExitStack() as ended, streams.running():
        for stream in streams.streams:
            for end in stream.ends:
                ended.callback(end.close)
        if not eventually(lambda: all(min(streams.last(one)) for one in streams.streams), LIMIT_S):
            return None
        time.sleep(random.random() / 20)
        began = time.monotonic()
        forbid()

        def last():
            return max((max(streams.last(one)), str(one)) for one in streams.streams)

        if not eventually(lambda: last()[0] < time.monotonic() - QUIET_S, LIMIT_S):
            return LIMIT_S * 1e3, f"{last()[1]}, and goes on"
        return max(0.0, last()[0] - began) * 1e3, last()[1]


@contextlib.contextmanager
def namespaces():
    names = []

    def make():
        names.append(f"fcni-bench-{uuid.uuid4().hex[:8]}")
        ip("netns", "add", names[-1])
        return names[-1]

    try:
        yield make
    finally:
        for name in names:
            ip("netns", "delete", name)


@contextlib.contextmanager
def source_of(kind, directory):
    if kind == "files":
        yield ByFiles(directory)
        return
    from cluster.kubernetes.api_server import Running

    with Running() as server:
        yield ByApi(directory, server)


def enforced(kind, policies, pods, rounds, load=0):
    """Return [(ms until the last forbidden packet, its flow)] of the changes. kind: "files" or "API". load: the number
    of other processes that use all processor time they can get. The caller must have entered a separate namespace."""
    ip("link", "set", "lo", "up")
    found = []
    with contextlib.ExitStack() as opened:
        directory = Path(opened.enter_context(tempfile.TemporaryDirectory(dir="/dev/shm")))
        node = Node(opened.enter_context(namespaces()))
        opened.callback(node.close)
        source = opened.enter_context(source_of(kind, directory))
        put_all(source, policies, pods)
        settings = Settings(state=f"{directory}/pods", socket=f"{directory}/agent/policy.sock", **source.settings)
        opened.enter_context(running(None, lambda: serve(settings)))
        for _ in range(load):
            opened.enter_context(running(None, spin))
        # Wait for the rules, because conntrack does not know the direction of flows that began before the rules.
        if not eventually(lambda: is_ready(settings.socket), pause=0.2):
            raise SystemExit("the agent has not written the policies")
        while len(found) < rounds:
            forbid, allow = changes(source)[len(found) % len(changes(source))]
            if (one := round_ms(node, forbid)) is not None:
                found.append(one)
            allow()
            time.sleep(OPEN_S)
    return found


def is_ready(path):
    try:
        policies_client.ask(path, {"do": "status"})
    except (CniError, policies_client.NoAgent):
        return False
    return True


def spin():
    while True:
        os.getppid()
