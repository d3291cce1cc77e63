"""A pod gets its addresses from fastcni's dhcp daemon, and policies allow it no connection. Needs root."""


import pytest
from unit.agent.policy.pods import batch
from unit.agent.policy.test_ports import NO_EGRESS, NO_INGRESS, site  # noqa: F401
from unit.dhcp.process import Daemon, ok
from unit.dhcp.server import Network, Server

from fastcni.kit.dhcp import lease_path


@pytest.mark.parametrize("keys", [{"dhcp": True}, {}], ids=["key", "lease"])
def test_the_daemon_renews_and_rebinds_the_lease_of_a_pod_without_ingress_and_egress(site, keys, tmp_path,     # noqa: F811
                                                                                      monkeypatch):
    """The DHCP server is outside the node, because traffic between a pod and its own node always passes. Without the
    key `dhcp`, the daemon's lease shows that the pod's addresses come from DHCP."""
    (tmp_path / "dhcp").mkdir()
    monkeypatch.setattr(lease_path, "STATE_DIR", str(tmp_path / "dhcp" / "leases"))
    netns = site.node.names["a"]
    site.write(NO_INGRESS, NO_EGRESS)
    with Network() as network:
        batch(None, f"link add up0 master br0 type veth peer up0 netns {network.host}", "link set up0 up")
        batch(network.host, "link set up0 master br0 up")
        with (Server(network, seconds=16, o58=(1).to_bytes(4, "big"), o59=(3).to_bytes(4, "big")) as server,
              Daemon(tmp_path / "dhcp") as daemon):
            attachment = site.request("ADD", "a", "")
            conf = {**daemon.conf(), "name": attachment.name}
            result = ok("ADD", conf, f"/run/netns/{netns}", cid=attachment.container_id)
            address = result["ips"][0]["address"]
            batch(netns, "link set lo up", f"addr add {address} dev eth0")
            site.pod("a", **keys, runtimeConfig={"labels": {"app": "db", "egress": "none"}},
                     prevResult=previous(site, address))
            for words, way in ((None, ("10.77.1.0", "10.77.0.1")),
                               (f"addr del {address} dev eth0", ("0.0.0.0", "255.255.255.255"))):
                if words:
                    batch(netns, words)
                site.node.forget_flows()
                server.ways.clear()
                daemon.wait_for("lease_renewed", daemon.log().count("event=lease_renewed") + 2)
                assert way in server.ways
            ok("DEL", conf, f"/run/netns/{netns}", cid=attachment.container_id)


def previous(site, address):        # noqa: F811
    """Return a prevResult of the plugin bridge with this address."""
    result = site.request("ADD", "a", "").conf.raw("prevResult")
    return {**result, "ips": [{"address": address, "interface": 2}]}
