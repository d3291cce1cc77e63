"""The differential test: make random clusters on a node, send real packets as probes, and compare with an oracle that
follows the documentation.

Each cluster has events: labels and policies change, one by one and in bursts, pods are deleted and added with the same
addresses, the agent is restarted and killed, tables are flushed. After each event exactly the probes that the oracle
allows must arrive. During an event, a probe that is denied before and after the event must not arrive.
"""

import itertools
import json
import threading
import time

from policy_attacks.node import NODE, Node
from policy_attacks.random_cluster import PODS, RandomCluster

from fastcni.agent.policy.evaluate import Connection
from fastcni.agent.policy.in_kernel import decisions
from fastcni.spec.address import read_ip
from fastcni.testing.namespaces import Inside, enter

EVENTS = 6
SETTLED_S = 30.0                # on a busy machine
SHRINK_S = 3.0                  # for each smaller cluster of shrink()
SWEEP = 3000                    # random probes in one sweep
ASKED = 200                     # connections that are also given to `fastcni policy test`
WATCHED = 150                   # probes that are sent repeatedly during an event
UNWATCHED = {"burst", "reuse_address"}  # events during which connections may pass that are denied before and after


def campaign(row, options):
    """Run clusters until the row's time is over, alternately with files and with the API."""
    with Node("files") as files, Node("api") as api:
        nodes = [files, api]
        for node in nodes:
            with Inside(node.name):
                node.start_agent()
        numbers, count = [options.cluster] if options.cluster is not None else itertools.count(), 0
        for number in numbers:
            if not row.running:
                break
            node = nodes[number % 2]
            with Inside(node.name):
                one_cluster(row, node, number)
            count += 1
        row.note(f"{count} clusters")


def one_cluster(row, node, number):
    """Make a random cluster, and run its events."""
    it = RandomCluster(node, f"{row.seed} {number}", PODS)
    try:
        it.make()
        probed, problem = settle(it, "made")
        row.attempt(probed)
        for _ in range(EVENTS):
            if problem or not row.running:
                break
            event = it.event()
            it.history.append(event.__name__)
            probed, problem = live_through(it, event)
            row.attempt(probed)
        if problem:
            row.failed(describe(it, row, number, shrink(it) or problem))
    finally:
        it.clean_up()


def shrink(it):
    """Remove policies as long as the oracle and the kernel still differ without them. Return the remaining difference,
    or "" if the difference disappeared."""
    if not (problem := settle(it, "another look", SHRINK_S)[1]):
        return ""
    for each in list(it.policies):
        it.policies.remove(each)
        it.node.drop_policy(each)
        it.node.publish()
        if smaller := settle(it, "fewer policies", SHRINK_S)[1]:
            problem = smaller
        else:
            it.policies.append(each)
            it.node.put(each)
            it.node.publish()
    return problem


def settle(it, event, seconds=None):
    """Send probes until exactly those arrive that the oracle allows, at most for SETTLED_S. Return (probes, problem or
    "")."""
    seconds = seconds or SETTLED_S
    until, probed = time.monotonic() + seconds, 0
    it.prober.forget()
    it.node.forget_flows()
    probes = it.probes()[:SWEEP]
    verdicts = it.verdicts(probes)
    expected = {probe for probe in probes if verdicts[probe]}
    wrong = "?"
    while wrong and time.monotonic() < until:
        arrived, answered = it.prober.sweep(probes, expected, seconds)
        probed += len(probes)
        wrong = mismatch(expected, arrived, answered)
        wrong = wrong or wrong_answers(it, verdicts)
        if wrong:
            it.prober.forget()
            time.sleep(0.05)
    return probed, wrong and f"after {event}: {wrong}"


def wrong_answers(it, verdicts):
    """Compare what `fastcni policy test` reads from the kernel with the oracle, for some of the probes."""
    tables, wrong = decisions.read(), []
    numbers = {"TCP": 6, "UDP": 17, "SCTP": 132, "ICMP": 58}
    asked = [probe for probe in verdicts if it.host not in (probe.source, probe.receiver) and probe.to not in NODE]
    for probe in asked[:ASKED]:
        connection = Connection(read_ip(probe.address), read_ip(probe.to),
                                1 if probe.protocol == "ICMP" and ":" not in probe.to else numbers[probe.protocol],
                                probe.port)
        found = decisions.decide(tables, connection)
        known = [each.allowed for each in found.values()]
        if None in known or all(known) is not verdicts[probe]:
            wrong.append(f"{probe}: {'; '.join(each.text for each in found.values())}")
    return f"{len(wrong)} wrong answers of policy test: {'; '.join(wrong[:3])}" if wrong else ""


def mismatch(expected, arrived, answered):
    opened, closed = arrived - expected, expected - arrived
    silent = {probe for probe in expected - answered if probe.protocol in ("TCP", "ICMP") and probe in arrived}
    texts = [f"{len(found)} {what}: {'; '.join(map(str, sorted(found, key=str)[:3]))}" for found, what in (
        (opened, "denied arrived"), (closed, "allowed did not arrive"), (silent, "allowed were not answered")) if found]
    return ", ".join(texts)


def live_through(it, event):
    """Run an event. During the event, send probes that are denied before and after it. Return (probes, problem or
    "")."""
    before = it.verdicts(it.probes())
    denied = [probe for probe, verdict in before.items() if not verdict][:WATCHED * 4]
    ended, failure = threading.Event(), []

    def run_event():
        try:
            enter(f"/run/netns/{it.node.name}")
            event()
        except Exception as e:
            failure.append(f"{type(e).__name__}: {e}")
        finally:
            ended.set()

    if event.__name__ in UNWATCHED or (event.__name__ == "flush" and not it.node.owns_table()):
        event()
        return settle(it, event.__name__)
    it.prober.forget()
    thread = threading.Thread(target=run_event)
    thread.start()
    watched, arrived, count = denied[:WATCHED], {}, 0
    while not ended.is_set():
        for probe in watched:
            it.prober.send(probe)
            count += 1
        for probe, answer in it.prober.receive(0.002):
            if not answer:
                arrived.setdefault(probe, time.monotonic())
    thread.join()
    if failure:
        return count, f"{event.__name__}: {failure[0]}"
    after = it.verdicts(watched)
    opened = [probe for probe in arrived if not after[probe]]
    if opened:
        return count, (f"during {event.__name__} arrived {len(opened)} that are denied before and after it: "
                       f"{'; '.join(map(str, opened[:3]))}")
    more, problem = settle(it, event.__name__)
    return count + more, problem


def describe(it, row, number, problem):
    pods = {pod.key: {"labels": pod.labels, "addresses": pod.addresses,
                      "network": it.networks.get(pod.key, ("remote",))[0]}
            for pod in (*it.node.pods.values(), *it.remote)}
    return (f"cluster {number} ({it.node.source}), events {', '.join(it.history) or 'none'}: {problem}\n"
            f"    again: make test-policy POLICY='differential --seed {row.seed} --cluster {number}'\n"
            f"    pods {json.dumps(pods)}\n    namespaces {json.dumps(it.namespaces)}\n"
            f"    nodes {json.dumps(it.nodes)}\n"
            f"    policies {json.dumps([[each['metadata'], each['spec']] for each in it.policies])}")
