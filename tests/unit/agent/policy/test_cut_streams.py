"""The agent ends a forbidden flow of each protocol even if both ends of the flow never pause. Needs root."""

import itertools
import socket
import subprocess
import time
from types import SimpleNamespace

import pytest
from unit.agent.policy.pods import ADDRESSES, UDP
from unit.agent.policy.streams import HANDSHAKE, PROTOCOLS, Stream, Streams
from unit.agent.policy.test_cut import LABELS, policed  # noqa: F401 - a fixture

from fastcni.agent.policy import cut
from fastcni.agent.policy.attached import Attachment
from fastcni.kernel.nft_elements import concat, protocol
from fastcni.spec.address import read_ip
from fastcni.testing.witnesses import eventually

# both on one bridge; from the bridge to a separate link; from a separate link to the bridge
PAIRS = ("a", "b"), ("a", "d"), ("d", "b")
QUIET_S = 0.5                   # for so long no packet must arrive


def tighten(policed, direction, pods):  # noqa: F811
    """Close pods in one direction, and end the connections that this forbids."""
    spec = {"podSelector": {"matchLabels": {"end": "closed"}}, "policyTypes": [direction]}
    return policed.set(spec, labels=LABELS | {pod: LABELS.get(pod, {}) | {"end": "closed"} for pod in pods})


def await_all(streams):
    """Wait until both ends of each stream have received a packet."""
    def missing():
        return [str(one) for one in streams.streams if not min(streams.last(one))]

    assert eventually(lambda: not missing()), missing()


def await_none(streams):
    """Wait until no end of the streams receives a packet for QUIET_S."""
    assert eventually(lambda: not passed(streams, time.monotonic() - QUIET_S)), passed(streams, time.monotonic() - 0.1)


def passed(streams, since):
    """Return the streams of which an end has received a packet after `since`."""
    return [str(one) for one in streams.streams if max(streams.last(one)) > since]


@pytest.mark.parametrize("direction", ["Ingress", "Egress"])
@pytest.mark.parametrize("kind", PROTOCOLS)
def test_no_packet_of_a_forbidden_flow_passes_though_its_ends_never_pause(policed, kind, direction):  # noqa: F811
    """Once, a datagram in flight began the connection again, reversed, in the direction that is still open."""
    streams = Streams([Stream(policed.node, kind, *pair, ipv6)
                       for pair, ipv6 in itertools.product(PAIRS, (False, True))])
    with streams.running():
        await_all(streams)
        tighten(policed, direction, {server if direction == "Ingress" else client for client, server in PAIRS})
        await_none(streams)


@pytest.mark.parametrize("kind", ["tcp", "udp"])
def test_no_packet_passes_through_a_host_port_to_a_pod_that_was_closed(policed, kind):  # noqa: F811
    """The kernel masquerades the pod's answers to the node's address and the same port, where the client expects
    answers."""
    subprocess.run(["nft", "-f", "-"], check=True, text=True, input="""
        table inet nat {
            chain before {
                type nat hook prerouting priority dstnat;
                ip daddr 10.0.4.254 dnat ip to 10.0.0.2
                ip6 daddr fd00:4::fe dnat ip6 to fd00::2
            }
            chain behind {
                type nat hook postrouting priority srcnat;
                ip saddr 10.0.0.0/24 ip daddr != 10.0.0.0/24 masquerade
                ip6 saddr fd00::/64 ip6 daddr != fd00::/64 masquerade
            }
        }
        """)
    streams = Streams([Stream(policed.node, kind, "d", "b", ipv6, address)
                       for ipv6, address in ((False, "10.0.4.254"), (True, "fd00:4::fe"))])
    with streams.running():
        await_all(streams)
        tighten(policed, "Ingress", {"b"})
        await_none(streams)


def cut_one(policed, kind):  # noqa: F811
    """End a stream from pod a to pod b."""
    stream = Stream(policed.node, kind, "a", "b")
    streams = Streams([stream])
    with streams.running():
        await_all(streams)
        tighten(policed, "Ingress", {"b"})
        await_none(streams)
    return stream


def dropped(policed):  # noqa: F811
    """Return how many elements the sets of dropped answers have."""
    return sum(map(len, policed.engine.rules.cut_answers().values()))


@pytest.mark.parametrize("kind", ["udp", "sctp", "other"])
def test_an_answer_is_dropped_until_its_connection_is_allowed_again(policed, kind):  # noqa: F811
    """After the end of the connection only the server sends, like a video server."""
    stream = cut_one(policed, kind)
    streams = Streams([stream])
    policed.engine.load()                           # load() writes all tables, as after the agent's restart
    policed.cut()
    stream.count = HANDSHAKE
    answer = stream.packets()[1]
    stream.packets = lambda: (None, answer)
    with streams.running():
        began = time.monotonic()
        await_none(streams)
        assert not passed(streams, began)
        policed.set(labels={"b": {}})
        policed.engine.reopen()
        assert not dropped(policed)
        assert eventually(lambda: streams.last(stream)[0] > began)


def test_other_answers_pass(policed):  # noqa: F811
    """Packets of a connection that a closed pod itself begins are not answers on a cut connection."""
    cut_one(policed, "udp")
    streams = Streams([Stream(policed.node, "udp", "b", "a", ipv6) for ipv6 in (False, True)])
    with streams.running():
        await_all(streams)


def test_a_new_pod_is_free_of_what_was_cut_from_the_former_pod_at_its_address(policed):  # noqa: F811
    """Otherwise the kernel would drop all packets of the new pod to that peer by a protocol without ports."""
    cut_one(policed, "other")
    policed.engine.reopen()
    assert dropped(policed) == 1
    policed.engine.protect(Attachment(("net", "new", "eth0"), "default/new", {}, (read_ip(ADDRESSES["b"][0]),)))
    policed.engine.commit()
    policed.engine.reopen()
    assert not dropped(policed)


def test_more_answers_than_a_set_holds_are_dropped_by_their_addresses(policed, monkeypatch):  # noqa: F811
    """The kernel rejects the 65,536th element of a set of dropped answers."""
    def flows(_):
        for port in range(1, 1 << 16):
            yield flow("a", "b", port)
        yield from (flow("d", "b", port) for port in (1, 2))

    monkeypatch.setattr(cut.Listing, "take", flows)
    monkeypatch.setattr(cut, "delete", lambda *_: None)
    policed.set({"podSelector": {}}, labels=LABELS)
    found = policed.engine.rules.cut_answers()
    assert set(found.pop("cut-any4")) == {concat(read_ip(ADDRESSES["b"][0]), read_ip(ADDRESSES[name][0]), protocol(UDP))
                                          for name in "ad"}
    assert not any(found.values())


def flow(source, destination, port):
    """Return a UDP flow to port 80."""
    it = SimpleNamespace(family=socket.AF_INET, protocol=UDP, source_port=port, port=80, replier_port=80, mark=0)
    it.source, it.destination, it.replier = (read_ip(ADDRESSES[name][0]) for name in (source, destination, destination))
    return it
