"""Run complete plugins on a model of a node. The tests check their netlink requests, and the state after a failed
request."""

import pytest

from fastcni.kernel import nft, sysctl, uapi
from fastcni.kit.ipam import host_local_conf
from fastcni.server.requests.configurations import Configurations
from fastcni.testing.fake_messages import HOST, POD
from fastcni.testing.fake_runtime import POD_PATH, AtOnceMode

pytestmark = pytest.mark.usefixtures("fake_sockets")
NETWORKS = {
    "loopback": ("loopback", {}),
    "bridge": ("bridge", {}),
    "bridge-gateway": ("bridge", {"isGateway": True, "hairpinMode": True, "enabledad": True}),
    "bridge-masq-macspoofchk": ("bridge", {"isGateway": True, "ipMasq": True, "macspoofchk": True, "mtu": 1400}),
    "bridge-unflooded": ("bridge", {"isGateway": True, "disableFlooding": True}),
    "bridge-layer-2": ("bridge", {"ipam": {}, "promiscMode": True}),
    "ptp": ("ptp", {}),
    "ptp-masq": ("ptp", {"ipMasq": True}),
}
BEGIN, END = nft.NFNL_MSG_BATCH_BEGIN, nft.NFNL_MSG_BATCH_END


@pytest.fixture(params=NETWORKS)
def network(request, calls):
    """Return a function that returns the configuration of one network on the current model of a node."""
    kind, keys = NETWORKS[request.param]
    return lambda: calls.conf(kind, **keys)


def links_of(result):
    return [(entry["name"], entry.get("sandbox", "")) for entry in result["interfaces"]]


# -- ADD and DEL ------------------------------------------------------------------------------------

def test_add_and_del_of_a_bridge_pod(calls):
    conf = calls.conf("bridge", isGateway=True, ipMasq=True)
    status, result = calls("ADD", conf)
    assert status == 0
    node, inside = calls.node, calls.node.link("eth0", POD)
    bridge, host = node.link("cni0"), inside.peer[1]
    assert links_of(result) == [("cni0", ""), (host.name, ""), ("eth0", POD_PATH)]
    assert result["ips"] == [{"address": "10.22.0.2/16", "gateway": "10.22.0.1", "interface": 2}]
    assert host.master == bridge.index
    assert host.flags & inside.flags & uapi.IFF_UP
    assert node.addresses == [(POD, inside.index, b"\x0a\x16\0\2", 16), (HOST, bridge.index, b"\x0a\x16\0\1", 16)]
    assert (POD, inside.index, bytes(4), 0, b"\x0a\x16\0\1") in node.routes
    assert node.sysctls[HOST, "net/ipv4/ip_forward"] == "1"
    assert list(node.firewall.sets[1, "fastcni", "pods4"]) == [b"\x0a\x16\0\2"]
    assert calls.held() == ["10.22.0.2"]

    assert calls("DEL", conf) == (0, None)
    assert node.link("eth0", POD) is None
    assert node.link(host.name) is None
    assert calls.held() == []
    assert not node.firewall.sets[1, "fastcni", "pods4"]
    assert node.link("cni0"), "the bridge stays for the next pod"


def test_accept_ra_of_a_bridge_is_written_once(calls, monkeypatch):
    """Once, each ADD wrote the sysctl again, although the bridge already existed."""
    written, write_at = [], sysctl.write_at
    monkeypatch.setattr(sysctl, "write_at", lambda directory, name, value: written.append((name, value))
                        or write_at(directory, name, value))
    conf = calls.conf("bridge")
    calls.pods["/run/netns/first"] = "first"
    calls.node.links["first"] = {}
    assert calls("ADD", conf, CNI_CONTAINERID="c0", CNI_NETNS="/run/netns/first")[0] == 0
    assert calls("ADD", conf)[0] == 0
    assert [item for item in written if item[0].startswith("cni0/")] == [("cni0/accept_ra", "0")]


def test_add_and_del_of_a_ptp_pod(calls):
    conf = calls.conf("ptp")
    status, result = calls("ADD", conf)
    assert status == 0
    inside = calls.node.link("eth0", POD)
    host = inside.peer[1]
    assert links_of(result) == [(host.name, ""), ("eth0", POD_PATH)]
    gateway, subnet = b"\x0a\x16\0\1", b"\x0a\x16\0\0"
    routes = {item[2:] for item in calls.node.routes if item[:2] == (POD, inside.index)}
    assert routes == {(gateway, 32, b""), (subnet, 16, gateway), (bytes(4), 0, gateway)}
    assert (HOST, host.index, b"\x0a\x16\0\2", 32, b"") in calls.node.routes
    assert calls("DEL", conf) == (0, None)
    assert calls.node.addresses == calls.node.routes == calls.held() == []


def test_loopback_sets_lo_up_and_down(calls):
    conf = calls.conf("loopback")
    assert calls("ADD", conf)[0] == 0
    assert calls.node.link("lo", POD).flags & uapi.IFF_UP
    assert calls("DEL", conf) == (0, None)
    assert not calls.node.link("lo", POD).flags & uapi.IFF_UP
    assert not any(namespace == HOST for namespace, _ in calls.node.batches)


@pytest.mark.parametrize("kind, keys", [("bridge", {"isDefaultGateway": True, "ipMasq": True}), ("ptp", {})])
def test_no_pod_changes_the_shared_configuration(calls, kind, keys):
    """A server decodes a configuration once for all pods. ADD must not change it: for example, isDefaultGateway adds a
    route to each result."""
    configurations = Configurations()

    class Shares(AtOnceMode):
        def decode(self, stdin):
            return configurations.decode(stdin)

    calls.mode = Shares
    conf = calls.conf(kind, **keys, dns={"nameservers": ["10.22.0.1"]})
    conf["ipam"]["routes"] = [{"dst": "10.0.0.0/8"}]
    results = []
    for number in range(3):
        pod = {"CNI_CONTAINERID": f"c{number}", "CNI_IFNAME": f"eth{number}"}
        status, result = calls("ADD", conf, **pod)
        assert calls("DEL", conf | {"prevResult": result}, **pod) == (0, None)
        address = result["ips"][0].pop("address")
        assert status == 0
        assert address == f"10.22.0.{number + 2}/16"
        results.append({key: result[key] for key in ("ips", "routes", "dns")})
    sections = configurations.known.values()
    assert results[0] == results[1] == results[2]
    assert [section.values for section in sections] == [conf, conf]
    for section in sections:
        assert section.once(host_local_conf.read_keys).routes == conf["ipam"]["routes"]
    assert len(results[0]["routes"]) == (2 if keys else 1)


@pytest.mark.parametrize("kind", ["host-local", "static"])
def test_ipam_plugins_send_nothing(calls, kind):
    conf = calls.conf(kind, ipam={"type": kind, "addresses": [{"address": "10.22.0.7/16"}], "subnet": "10.22.0.0/16",
                                  "dataDir": str(calls.data)})
    for command in ("ADD", "DEL"):
        assert calls(command, conf)[0] == 0
    assert calls.node.sockets == []


# -- numbers of messages ----------------------------------------------------------------------------------------------

def add_with_the_bridge_there(calls, **keys):
    """Run an ADD for a first pod. Return the batches of a second pod's ADD, and of its DEL."""
    conf = calls.conf("bridge", isGateway=True, **keys)
    calls.pods["/run/netns/first"] = "first"
    calls.node.links["first"] = {}
    assert calls("ADD", conf, CNI_CONTAINERID="c0", CNI_NETNS="/run/netns/first")[0] == 0
    found = []
    for command in ("ADD", "DEL"):
        calls.node.batches.clear()
        assert calls(command, conf)[0] == 0
        found.append(list(calls.node.batches))
    return found


def test_a_bridge_add_with_the_bridge_there_is_six_batches(calls):
    batches, _ = add_with_the_bridge_there(calls)
    assert batches == [
        (HOST, [uapi.RTM_GETLINK]),                                             # whether the bridge exists
        (HOST, [uapi.RTM_NEWLINK]),  # create the veth pair with its names, on the bridge and in the pod
        (POD, [uapi.RTM_NEWLINK, uapi.RTM_NEWADDR, uapi.RTM_NEWLINK, uapi.RTM_NEWROUTE]),   # arp_notify, address, up
        (HOST, [uapi.RTM_GETADDR]),                                         # whether the bridge has its gateway address
        (HOST, [uapi.RTM_GETLINK]),                                             # whether the port is up
        (HOST, [uapi.RTM_GETLINK]),                                             # the bridge's MAC after the ADD
    ]


def test_masquerade_adds_one_lookup_and_one_transaction_of_one_element(calls):
    without, _ = add_with_the_bridge_there(calls)
    calls.fresh()
    batches, _ = add_with_the_bridge_there(calls, ipMasq=True)
    more = [(HOST, [nft.NFT_MSG_GETTABLE, nft.NFT_MSG_GETCHAIN]), (HOST, [BEGIN, nft.NFT_MSG_NEWSETELEM, END])]
    assert [batch for batch in batches if batch not in more] == without
    assert [batch for batch in batches if batch in more] == more


def test_macspoofchk_adds_a_flag_of_the_bridge_one_lookup_and_one_transaction_of_two_elements(calls):
    without, _ = add_with_the_bridge_there(calls)
    calls.fresh()
    batches, _ = add_with_the_bridge_there(calls, macspoofchk=True)
    more = [(HOST, [uapi.RTM_NEWLINK]), (HOST, [nft.NFT_MSG_GETTABLE, nft.NFT_MSG_GETCHAIN]),
            (HOST, [BEGIN, nft.NFT_MSG_NEWSETELEM, nft.NFT_MSG_NEWSETELEM, END])]
    for batch in more:
        batches.remove(batch)
    assert batches == without


def test_a_bridge_del_is_three_batches(calls):
    _, batches = add_with_the_bridge_there(calls)
    assert batches == [
        (POD, [uapi.RTM_GETLINK]),          # the pod's end gives the index of the host's end
        (HOST, [uapi.RTM_GETLINK]),         # whether that link is really the pair's other end
        (HOST, [uapi.RTM_DELLINK]),
    ]


SET_UP = {(1, "fastcni", "postrouting"): 2, (1, "fastcni", "subnet-10.22.0.0/16"): 3}


def test_the_first_pod_sets_the_masquerade_table_up_in_one_transaction(calls):
    assert calls("ADD", calls.conf("bridge", isGateway=True, ipMasq=True))[0] == 0
    made = [kinds for _, kinds in calls.node.batches if nft.NFT_MSG_NEWTABLE in kinds]
    assert len(made) == 1
    assert (made[0][0], made[0][-1]) == (BEGIN, END)
    assert nft.NFT_MSG_NEWSET in made[0]
    assert nft.NFT_MSG_NEWCHAIN in made[0]
    assert nft.NFT_MSG_NEWRULE in made[0]
    assert calls.node.firewall.chains == SET_UP


def test_the_number_of_rules_does_not_grow_with_the_pods(calls):
    add_with_the_bridge_there(calls, ipMasq=True)
    assert calls.node.firewall.chains == SET_UP


def test_the_next_add_restores_flushed_rules(calls):
    """`nft flush table` keeps chains and elements, so no request fails because a rule is missing."""
    conf = calls.conf("bridge", isGateway=True, ipMasq=True)
    calls.pods["/run/netns/first"] = "first"
    calls.node.links["first"] = {}
    assert calls("ADD", conf, CNI_CONTAINERID="c0", CNI_NETNS="/run/netns/first")[0] == 0
    calls.node.firewall.chains = dict.fromkeys(calls.node.firewall.chains, 0)
    assert calls("ADD", conf)[0] == 0
    assert calls.node.firewall.chains == SET_UP


# -- rollback ----------------------------------------------------------------------------------------------

def test_an_add_with_any_refused_request_leaves_nothing(calls, network):
    """Each request of ADD in turn fails with EIO. ADD restores the earlier state, and the pod's DEL succeeds."""
    calls.fresh()
    assert calls("ADD", network())[0] == 0
    places = calls.node.asked
    assert places >= 4
    failed = 0
    for place in range(places):
        calls.fresh(refuse=place)
        before = calls.node.facts()
        status, document = calls("ADD", network())
        if status == 0:                         # ADD succeeds without this request
            assert calls("DEL", network())[0] == 0
        else:
            failed += 1
            assert document["code"] == 999, document
            assert "errno 5" in document["msg"], document
            assert "while undoing" not in document.get("details", "")
            assert calls.node.facts() == before, f"refused: request {place} of {places}"
        assert calls.held() == []
        assert calls("DEL", network())[0] == 0
    assert failed == places


def test_an_add_after_a_refused_one_succeeds(calls, network):
    calls.fresh()
    assert calls("ADD", network())[0] == 0
    for place in range(calls.node.asked):
        calls.fresh(refuse=place)
        if calls("ADD", network())[0] == 1:
            assert calls("ADD", network())[0] == 0, place


def test_the_next_del_completes_a_del_with_a_refused_request(calls, network):
    calls.fresh()
    calls("ADD", network())
    added = calls.node.asked
    calls("DEL", network())
    for place in range(added, calls.node.asked):
        calls.fresh(refuse=place)
        assert calls("ADD", network())[0] == 0
        calls("DEL", network())
        assert calls("DEL", network())[0] == 0
        left = calls.node.facts()
        assert calls.held() == []
        assert calls.node.firewall.owned() == set(), f"elements are left after refused request {place}"
        assert [link for link in left["links"] if link[2] == "veth"] == []


# -- DEL of objects that no longer exist ------------------------------------------------------------------------------

def test_a_repeated_del_succeeds(calls, network):
    assert calls("ADD", network())[0] == 0
    for _ in range(2):
        assert calls("DEL", network()) == (0, None)
    assert calls.held() == []


@pytest.mark.parametrize("gone", ["netns", "netns path", "link", "everything"])
def test_del_succeeds_if_its_objects_are_gone(calls, network, gone):
    assert calls("ADD", network())[0] == 0
    path = POD_PATH
    if gone in ("netns", "netns path"):         # with the namespace, the kernel has deleted the veth pair
        calls.pods.clear()
        path = "" if gone == "netns path" else POD_PATH
    if gone in ("netns", "netns path", "link"):
        link = calls.node.link("eth0", POD)
        if link:
            calls.node.remove(POD, link)
    if gone == "everything":
        calls.fresh()
    assert calls("DEL", network(), CNI_NETNS=path) == (0, None)
    assert calls.held() == []
    assert not any(calls.node.firewall.sets.values())


# -- objects that exist already ---------------------------------------------------------------------------------------

@pytest.mark.parametrize("kind", ["bridge", "ptp"])
def test_an_interface_name_in_use_is_refused_and_stays(calls, kind):
    calls.node.add_link("eth0", "dummy", POD)
    before = calls.node.facts()
    status, document = calls("ADD", calls.conf(kind))
    assert status == 1
    assert 'container veth name ("eth0")' in document["msg"]
    assert "already exists" in document["msg"]
    assert calls.node.facts() == before
    assert calls.held() == []


def test_a_bridge_name_of_another_kind_of_link_is_refused(calls):
    calls.node.add_link("cni0", "dummy")
    before = calls.node.facts()
    status, document = calls("ADD", calls.conf("bridge"))
    assert (status, '"cni0" already exists but is not a bridge' in document["msg"]) == (1, True)
    assert calls.node.facts() == before
    assert calls.held() == []


@pytest.mark.parametrize("keys", [{}, {"disableFlooding": True}], ids=["default", "disableFlooding"])
def test_a_full_bridge_is_named_with_what_to_do_and_nothing_is_left(calls, keys):
    bridge = calls.node.add_link("cni0", "bridge", flags=uapi.IFF_UP)
    for number in range(1023):
        calls.node.add_link(f"p{number}", "veth", master=bridge.index)
    before = calls.node.facts()
    status, document = calls("ADD", calls.conf("bridge", isGateway=True, **keys))
    assert (status, document["code"]) == (1, 11)
    assert document["msg"] == 'bridge "cni0" is full: a Linux bridge has 1,023 ports'
    assert "another bridge" in document["details"] and "ptp" in document["details"]
    assert calls.node.facts() == before
    assert calls.held() == []


def test_a_bridge_with_another_address_is_refused_and_replaced_with_force(calls):
    bridge = calls.node.add_link("cni0", "bridge", flags=uapi.IFF_UP)
    calls.node.addresses.append((HOST, bridge.index, b"\x0a\x63\0\1", 24))
    before = calls.node.facts()
    status, document = calls("ADD", calls.conf("bridge", isGateway=True))
    assert status == 1
    assert "already has an IP address different from" in document["msg"]
    assert calls.node.facts() == before
    assert calls.held() == []
    assert calls("ADD", calls.conf("bridge", isGateway=True, forceAddress=True))[0] == 0
    assert [item[2:] for item in calls.node.addresses if item[1] == bridge.index] == [(b"\x0a\x16\0\1", 16)]


@pytest.mark.parametrize("kind", ["bridge", "ptp", "loopback"])
def test_a_netns_that_is_not_there_is_code_8(calls, kind):
    status, document = calls("ADD", calls.conf(kind), CNI_NETNS="/run/netns/never-made")
    assert (status, document["code"]) == (1, 8)
    assert 'failed to open netns "/run/netns/never-made"' in document["msg"]
    assert calls.node.batches == []
    assert calls.held() == []


def test_add_replaces_firewall_elements_of_a_pod_without_del(calls):
    conf = calls.conf("bridge", isGateway=True, ipMasq=True)
    assert calls("ADD", conf, CNI_CONTAINERID="lost")[0] == 0
    calls.node.remove(POD, calls.node.link("eth0", POD))
    for path in calls.data.glob("*/10.22.0.*"):
        path.unlink()
    calls.node.firewall.sets[1, "fastcni", "pods4"][b"\x0a\x16\0\3"] = (
        calls.node.firewall.sets[1, "fastcni", "pods4"].pop(b"\x0a\x16\0\2"))
    assert calls("ADD", conf)[0] == 0           # ADD gets 10.22.0.3, and an element of this address exists
    (comment, _), = calls.node.firewall.sets[1, "fastcni", "pods4"].values()
    assert b"id: c1" in comment
