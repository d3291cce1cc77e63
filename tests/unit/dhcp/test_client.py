"""States of a lease over time, with a clock that the test sets."""

import pytest
from unit.dhcp.clock import ADDRESS, MAC, OTHER, SERVER, SERVER_MAC, Clock, answer, bind, new_client, owner, pass_to

from fastcni.dhcp import client_states as states
from fastcni.dhcp import packets
from fastcni.dhcp.client import Client
from fastcni.dhcp.lease import Lease, result_of


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def client(clock):
    return new_client(clock)


def test_each_transition_names_a_method_and_states_that_exist():
    for (state, _), (after, action) in states.TABLE.items():
        assert {state, after} <= set(states.STATES)
        assert callable(getattr(Client, action))
    assert {after for after, _ in states.TABLE.values()} | {states.REBOOTING} == set(states.STATES)


def test_every_state_goes_on_when_its_timer_runs_out():
    assert {state for state, event in states.TABLE if event == states.DUE} == set(states.STATES)


def test_a_lease_is_acquired_by_four_messages_and_a_probe(clock, client):
    bind(clock, client)
    assert clock.done == ["discover raw", "request raw", "probe", "probe"]
    assert (clock.answers, clock.kept, client.sock) == ([""], client.lease, None)
    assert (client.lease.address, client.lease.prefix, client.lease.server_mac) == (ADDRESS, 24, SERVER_MAC)


def test_the_packets_are_those_of_the_reference(clock):
    client = new_client(clock, provide={12: b"web"})
    bind(clock, client)
    discover, request = clock.sent
    key = b"\0c1/net/eth0"
    assert list(discover.options.items()) == [(12, b"web"), (53, b"\x01"), (55, b"\3\1"), (57, b"\x05\xdc"), (61, key)]
    assert request.options == discover.options | {53: b"\x03", 50: ADDRESS, 54: SERVER}
    assert discover.xid == request.xid and discover.flags == 0 and discover.chaddr == MAC


@pytest.mark.parametrize("shared, setting", [(True, False), (False, True)])
def test_servers_are_asked_to_broadcast_by_the_flag_and_where_links_share_a_mac(shared, setting):
    clock = Clock(broadcast=setting)
    client = new_client(clock)
    client.shared = shared
    bind(clock, client)
    assert {message.flags for message in clock.sent} == {packets.BROADCAST_FLAG}


def test_a_packet_without_an_answer_is_sent_again_later_and_later(clock, client):
    client.acquire()
    waits = []
    for _ in range(8):
        waits.append(client.timer - clock.time)
        pass_to(clock, client)
    assert waits == [0.5, 1, 2, 4, 10, 20, 40, 62]
    assert set(clock.done) == {"discover raw"}


def test_an_add_fails_when_no_server_answers_in_time(clock, client):
    client.acquire()
    while not clock.answers:
        pass_to(clock, client)
    assert clock.answers == ["no more tries"] and clock.done[-1] == "drop"
    assert clock.time - 1000 == 208             # a plugin waits longer than 208 s


def test_after_four_requests_without_an_answer_it_begins_again(clock, client):
    client.acquire()
    answer(client, packets.OFFER)
    for _ in range(4):
        pass_to(clock, client)
    assert clock.done == ["discover raw"] + 4 * ["request raw"] + ["discover raw"]


def test_an_answer_of_another_server_to_the_request_counts_for_nothing(clock, client):
    client.acquire()
    answer(client, packets.OFFER)
    answer(client, packets.NAK, server=OTHER)
    answer(client, packets.ACK, server=OTHER)
    assert client.state == states.REQUESTING


@pytest.mark.parametrize("change", [{"xid": 1}, {"chaddr": b"\2\0\0\0\0\2"}, {"op": packets.BOOTREQUEST}])
def test_a_message_to_another_client_counts_for_nothing(clock, client, change):
    client.acquire()
    message = packets.Message(packets.BOOTREPLY, client.xid, MAC, {53: b"\2", 54: SERVER}, yiaddr=ADDRESS)
    for name, value in change.items():
        setattr(message, name, value)
    client.received(message, SERVER_MAC)
    assert client.state == states.SELECTING


def test_after_a_nak_it_begins_again_at_once_and_later_more_slowly(clock, client):
    client.acquire()
    pauses = []
    for _ in range(4):
        answer(client, packets.OFFER)
        answer(client, packets.NAK)
        pauses.append(client.timer - clock.time)
        pass_to(clock, client)
    assert pauses == [0, 1, 2, 4]


def test_an_ack_without_a_netmask_fails_the_add_with_the_references_text(clock, client):
    client.acquire()
    answer(client, packets.OFFER)
    answer(client, packets.ACK, o1=b"")
    assert clock.answers == ["DHCP option Subnet Mask not found in DHCPACK"] and clock.done[-1] == "drop"


def test_an_address_that_another_host_has_is_declined(clock, client):
    client.acquire()
    answer(client, packets.OFFER)
    answer(client, packets.ACK)
    client.event(states.CONFLICT)
    assert clock.done[-1] == "decline arp" and clock.log.has("address_in_use")
    assert clock.sent[-1].options == {50: ADDRESS, 53: b"\4", 54: SERVER, 61: client.owner.key}
    pass_to(clock, client)
    answer(client, packets.OFFER, address=OTHER)
    answer(client, packets.ACK, address=OTHER)
    while client.state == states.PROBING:
        pass_to(clock, client)
    assert client.lease.address == OTHER and clock.answers == [""]


# Renewals ------------------------------------------------------------------------------------------

def test_it_is_renewed_at_t1_from_its_address_and_at_t2_by_broadcast(clock, client):
    bind(clock, client)
    began = client.lease.acked
    assert client.timer == began + 50
    pass_to(clock, client)
    assert clock.done[-1] == "request udp"
    assert (clock.sent[-1].ciaddr, clock.sent[-1].options.get(50), clock.sent[-1].options.get(54)) == (
        ADDRESS, None, None)
    while client.state == states.RENEWING:
        pass_to(clock, client)
    assert clock.time == began + 87.5 and clock.done[-1] == "request raw"
    answer(client, packets.ACK)
    assert client.state == states.BOUND and client.lease.acked == clock.time


def test_a_renewal_is_broadcast_where_the_address_cannot_be_used(clock, client):
    """The interface plugin did not add the address to the link. The server could not send to ciaddr, because no host
    answers its ARP request."""
    bind(clock, client)
    clock.unbound = OSError(99, "Cannot assign requested address")
    pass_to(clock, client)
    assert clock.done[-1] == "request raw"
    assert (clock.sent[-1].ciaddr, clock.sent[-1].options[50]) == (packets.NO_ADDRESS, ADDRESS)
    assert 54 not in clock.sent[-1].options
    answer(client, packets.ACK)
    assert client.state == states.BOUND


def test_a_renewed_lease_begins_when_its_request_was_sent(clock, client):
    bind(clock, client)
    pass_to(clock, client)
    asked = clock.time
    clock.time += 3
    answer(client, packets.ACK, seconds=200)
    assert client.lease.expires == asked + 200 and clock.kept is client.lease


def test_a_renewal_with_other_options_changes_the_result_and_not_the_link(clock, client):
    """The address keeps its netmask on the link, so that CHECK succeeds."""
    bind(clock, client)
    pass_to(clock, client)
    answer(client, packets.ACK, o1=b"\xff\xff\0\0", o3=OTHER, o26=(1400).to_bytes(2, "big"), o58=bytes(4))
    assert result_of(client.lease)["routes"] == [{"dst": "0.0.0.0/0", "gw": "10.0.0.8", "mtu": 1400}]
    assert (client.lease.address, client.lease.prefix) == (ADDRESS, 24)
    assert not {"assign", "unassign"} & set(clock.done)
    assert ("lease_changed", {"lease": "c1 eth0", "options": "subnet-mask, routers, interface-mtu",
                              "why": "the pod keeps what its ADD had"}) in clock.log.lines
    pass_to(clock, client)
    answer(client, packets.ACK, o1=b"\xff\xff\0\0", o3=OTHER, o26=(1400).to_bytes(2, "big"))
    assert [event for event, _ in clock.log.lines].count("lease_changed") == 1


def test_a_renewal_with_the_same_options_is_no_change(clock, client):
    bind(clock, client)
    pass_to(clock, client)
    answer(client, packets.ACK, seconds=200)
    assert clock.log.has("lease_renewed") and not clock.log.has("lease_changed")


def test_the_servers_t1_and_t2_count_unless_they_are_beyond_the_lease(clock, client):
    bind(clock, client, o58=(20).to_bytes(4, "big"), o59=(400).to_bytes(4, "big"))
    assert (client.lease.t1, client.lease.t2) == (client.lease.acked + 20, client.lease.acked + 87.5)


@pytest.mark.parametrize("seconds, t1, t2, most", [
    (3600, 0, 0, 2), (3600, 0, 1, 60), (3600, 1, 1, 60), (3600, 1, 0, 60), (0, None, None, 60), (0, 0, 0, 60),
    (100, 0, 0, 72), (100, 1, 1, 576), (1, 0, 0, 7200), (0xFFFFFFFE, 0, 0, 0), (0xFFFFFFFE, 1, 2, 60)])
def test_no_server_makes_a_client_send_without_a_pause(clock, client, seconds, t1, t2, most):
    """Once, with T1 and T2 of 0, the client sent 1,000 packets a second. With a lease of 0 s, it removed and added the
    link's address 20 times a second. Now at least 60 s or 1/16 of the lease lie between two renewals."""
    times = {name: value.to_bytes(4, "big") for name, value in (("o58", t1), ("o59", t2)) if value is not None}
    bind(clock, client, seconds=seconds, **times)
    began, sent = clock.time, len(clock.sent)
    while client.timer <= began + 3600:
        pass_to(clock, client)
        if client.state in (states.RENEWING, states.REBINDING):
            answer(client, packets.ACK, seconds=seconds, **times)
    assert len(clock.sent) - sent <= most
    assert "unassign" not in clock.done and not clock.log.has("lease_lost")


def test_a_t1_of_0_is_half_of_the_lease(clock, client):
    bind(clock, client, o58=bytes(4), o59=bytes(4))
    assert (client.lease.t1, client.lease.t2) == (client.lease.acked + 50, client.lease.acked + 87.5)


def test_a_lease_without_end_is_never_renewed(clock, client):
    bind(clock, client, seconds=0xFFFFFFFF)
    assert client.timer == float("inf")


def test_an_expired_lease_takes_the_address_down_and_a_new_one_is_assigned(clock, client):
    bind(clock, client)
    began = client.lease.acked
    while client.state != states.INIT:
        pass_to(clock, client)
    assert clock.time == began + 100
    assert clock.done[-1] == "unassign" and client.lease is None
    assert clock.log.lines[-1][1]["why"] == "the lease ended, and no server had renewed it"
    pass_to(clock, client)
    for _ in range(40):                         # no request waits, so the client never stops trying
        pass_to(clock, client)
    answer(client, packets.OFFER, address=OTHER)
    answer(client, packets.ACK, address=OTHER)
    while client.state == states.PROBING:
        pass_to(clock, client)
    assert clock.done[-1] == "assign" and client.lease.address == OTHER and not client.lost


@pytest.mark.parametrize("state", [states.RENEWING, states.REBINDING])
def test_a_nak_takes_the_address_down_at_once(clock, client, state):
    bind(clock, client)
    while client.state != state:
        pass_to(clock, client)
    answer(client, packets.NAK)
    assert clock.done[-1] == "unassign" and client.timer == clock.time
    assert clock.log.lines[-1] == ("lease_lost", {"lease": "c1 eth0", "address": "10.0.0.7",
                                                  "why": "the server refused to renew it"})


def test_an_ack_of_another_address_is_a_nak(clock, client):
    bind(clock, client)
    pass_to(clock, client)
    answer(client, packets.ACK, address=OTHER)
    assert clock.done[-1] == "unassign" and client.state == states.INIT


def test_a_plugin_that_waits_for_a_lost_lease_is_told_when_no_server_answers(clock, client):
    """CHECK of the reference plugin hangs in this case."""
    bind(clock, client)
    pass_to(clock, client)
    answer(client, packets.NAK)
    client.waiters.append("check")
    while len(clock.answers) < 2:
        pass_to(clock, client)
    assert clock.answers == ["", "no more tries"] and "drop" not in clock.done


# Restarts ------------------------------------------------------------------------------------------

def lease(clock, age):
    options = {51: (100).to_bytes(4, "big"), 1: b"\xff\xff\xff\0", 3: SERVER}
    return Lease(ADDRESS, 24, SERVER, SERVER_MAC, options, MAC, clock.time - age)


@pytest.mark.parametrize("age, state, done", [
    (10, states.BOUND, []), (50, states.BOUND, []), (90, states.REBINDING, ["request raw"]),
    (101, states.INIT, ["unassign"])])
def test_a_restarted_daemon_goes_on_where_the_lease_is(clock, age, state, done):
    client = Client(owner(), clock, lease(clock, age))
    client.resume()
    assert (client.state, clock.done) == (state, done)
    if state == states.BOUND:
        assert client.timer == clock.time - age + 50


def test_a_restarted_daemon_goes_on_to_acquire_a_lease_that_was_lost(clock, client):
    """The server's NAK arrived before the lease ended. The file must not say that the pod still has the address."""
    bind(clock, client)
    pass_to(clock, client)
    answer(client, packets.NAK)
    again = Client(owner(), clock, clock.kept)
    again.resume()
    assert (again.state, again.lost, again.lease) == (states.INIT, True, None)
    pass_to(clock, again)
    assert clock.done[-1] == "discover raw"


def test_after_a_reboot_it_asks_for_the_address_that_it_had(clock, client):
    client.reboot(ADDRESS)
    assert clock.sent[-1].options.get(50) == ADDRESS and 54 not in clock.sent[-1].options
    assert clock.sent[-1].ciaddr == packets.NO_ADDRESS
    answer(client, packets.ACK)
    while client.state == states.PROBING:
        pass_to(clock, client)
    assert client.state == states.BOUND and clock.answers == [""]


def test_a_server_that_refuses_the_former_address_or_says_nothing_gives_another(clock, client):
    client.reboot(ADDRESS)
    for _ in range(3):
        pass_to(clock, client)
    assert clock.done == 3 * ["request raw"] + ["discover raw"]
    client.reboot(ADDRESS)
    answer(client, packets.NAK)
    pass_to(clock, client)
    assert clock.done[-1] == "discover raw"


# Faults --------------------------------------------------------------------------------------------

def test_a_packet_that_cannot_be_sent_is_sent_later(clock, client):
    clock.broken = OSError(100, "Network is down")
    client.acquire()
    assert clock.log.has("packet_not_sent")
    clock.broken = None
    pass_to(clock, client)
    assert clock.done == ["discover raw"]


@pytest.mark.parametrize("state", [states.INIT, states.BOUND, states.RENEWING])
def test_a_link_that_is_gone_ends_the_lease(clock, client, state):
    if state != states.INIT:
        bind(clock, client)
    if state == states.RENEWING:
        pass_to(clock, client)
        clock.time = client.lease.t2
    clock.gone = True
    pass_to(clock, client, clock.time)
    assert clock.done[-1] == "vanished"
    if state == states.INIT:
        assert clock.answers == ['error looking up "eth0": Link not found']


def test_a_link_that_is_gone_before_the_probe_ends_the_lease(clock, client):
    client.acquire()
    answer(client, packets.OFFER)
    clock.gone = True
    answer(client, packets.ACK)
    assert clock.done[-1] == "vanished"
