"""`fastcni why` follows a connection through an HTTP proxy to the target behind the proxy."""

import contextlib
import socket

import pytest

from fastcni.testing.namespaces import Inside

pytestmark = pytest.mark.needs("root")
IP_TRANSPARENT = 19             # from linux/in.h
RULES = ("table inet fastcni-policy {{ chain proxy-divert {{ type filter hook prerouting priority -88; "
         "ip daddr {{ip_a}} tcp dport {{{{ 9, {{port_a}} }}}} meta mark set 0x4000000 "
         "tproxy ip to 127.0.0.1:{port} accept; }}; }}")


@pytest.fixture
def proxy(world, broken):
    """Yield the socket of a process on the node that is in the place of HAProxy. Rules like those of the agent divert
    connections to pod a to it."""
    with Inside(world.names["h"]), contextlib.closing(socket.socket()) as sock:
        sock.setsockopt(socket.SOL_IP, IP_TRANSPARENT, 1)
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        broken([f"echo '{RULES.format(port=sock.getsockname()[1])}' | nft -f -",
                "ip rule add fwmark 0x4000000/0x4000000 lookup 460", "ip route add local default dev lo table 460"],
               ["nft delete table inet fastcni-policy", "ip rule del fwmark 0x4000000/0x4000000 lookup 460",
                "ip route del local default dev lo table 460"])
        yield sock


def test_what_the_proxy_accepts_is_followed_to_the_target(why, world, proxy):
    """The proxy accepts a connection before it connects to the target. Once, `why` therefore reported that each port
    behind the proxy is reached."""
    found = why("pod-c", "{ip_a}:9").document
    hops = [hop["hop"] for hop in found["hops"]]
    assert {"hop": "HTTP proxy", "ok": True} in found["hops"]
    assert hops.index("policy") < hops.index("HTTP proxy") < hops.index("listening socket") == len(hops) - 1
    assert found["ends"]["what"].startswith("the HTTP proxy of the network policies accepts the connection")
    reached = why("pod-c", "{ip_a}:{port_a}", text=True)
    assert reached.status == 0 and "decides on each request" in reached.out
    world.faulty = False


def test_a_connection_past_the_proxy_has_no_hop_of_it(why, world, proxy):
    found = why("pod-c", "{ip_b}:{port_b}").document
    assert found["reaches"] and "HTTP proxy" not in {hop["hop"] for hop in found["hops"]}
    world.faulty = False
