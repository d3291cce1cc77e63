"""WarmMode, the server's mode of a request: which namespace it opens, and what it closes after the request."""

import os
from types import SimpleNamespace

import pytest
from modes import in_thread

from fastcni.kernel import netns
from fastcni.server.node_view import NodeView
from fastcni.server.requests.facts import Facts
from fastcni.server.requests.grouped_deletes import GroupedDeletes
from fastcni.server.requests.mode import WarmMode, pair_key


@pytest.fixture
def begun(host_netns):
    """Yield a function begun(descriptor) that returns a mode. Its request came with this descriptor of the pod's
    namespace."""
    home = netns.open_own()
    facts, deletes = Facts(), GroupedDeletes(in_thread)
    mode = WarmMode(home, facts, deletes, in_thread, None, None)

    def begin(fd, pid=1):
        mode.begin(None, SimpleNamespace(netns=fd, pid=pid), SimpleNamespace(deliver=None))
        return mode

    yield begin
    facts.close()
    deletes.close()
    os.close(home)


def test_the_descriptor_of_the_launcher_is_the_namespace_whatever_the_path_is_for_the_server(begun, pod):
    """A server in a container does not have the caller's mounts, or has another file at the path."""
    sent = os.open(f"/run/netns/{pod}", os.O_RDONLY)
    mode = begun(sent)
    assert mode.open_netns(netns.OWN) == sent and mode.message.netns is None
    assert not mode.is_home(sent) and mode.pod == netns.identity(sent)
    os.close(sent)


@pytest.mark.parametrize("sent", [None, os.devnull], ids=["no descriptor", "another file"])
def test_otherwise_the_path_is_opened(begun, sent):
    fd = sent and os.open(sent, os.O_RDONLY)
    mode = begun(fd)
    opened = mode.open_netns(netns.OWN)
    assert opened != fd and mode.is_home(opened)
    assert mode.message.netns == fd         # Message.close() closes this descriptor
    for each in filter(None, (opened, fd)):
        os.close(each)


def test_a_rollback_in_a_container_opens_the_path_if_the_descriptor_is_closed(begun, pod):
    mode = begun(os.open(f"/run/netns/{pod}", os.O_RDONLY), pid=0)
    os.close(mode.open_netns(f"/run/netns/{pod}"))          # Request.leave_mount() closes the descriptor
    again = mode.open_netns(f"/run/netns/{pod}")
    assert netns.identity(again) == mode.pod and not mode.is_home(again)
    os.close(again)


def test_a_path_that_is_no_namespace_is_closed(begun):
    mode, before = begun(None), os.listdir("/proc/self/fd")
    with pytest.raises(netns.NotNamespace):
        mode.open_netns(os.devnull)
    assert os.listdir("/proc/self/fd") == before


def test_a_request_begins_without_the_namespace_of_the_one_before(begun, pod):
    mode = begun(os.open(f"/run/netns/{pod}", os.O_RDONLY))
    fd = mode.open_netns("/nowhere")
    own = netns.open_own()
    request = SimpleNamespace(open_netns=lambda: fd, ifname="eth0")
    assert pair_key(mode, request) == (netns.identity(fd), "eth0")
    mode.forget_request()
    assert not hasattr(mode, "message") and not hasattr(mode, "deliver")
    begun(None)
    assert mode.is_home(own) and not mode.is_home(fd)
    assert pair_key(mode, request) == (netns.identity(fd), "eth0")
    os.close(fd)
    os.close(own)


def test_a_node_without_readable_files_has_no_attachments_and_no_pod_is_proven_gone():
    view, pods = NodeView(), object()
    assert not [*view.configured(), *view.networks(), *view.count().pools] and not view.topology()
    assert view.make_status(dict, None)() == {} and view.replay is view.drops is None
    assert not view.pods.is_gone(("net-a", "c-1", "eth0"), "/nowhere") and NodeView(pods).pods is pods
