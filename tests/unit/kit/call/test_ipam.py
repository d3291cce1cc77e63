"""The IPAM delegate's DEL: when it runs, before or after the deletion of the pod's link."""

import pytest

from fastcni.kit.call import ipam
from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import Request
from fastcni.spec.errors import CniError


@pytest.fixture
def calls(monkeypatch):
    """Replace the delegate's functions. Return a list of their calls: (what, the delegate's type, command)."""
    found = []

    def run(req, command):
        found.append(("run", req.plugin, command))

    def prepare(req, command):
        found.append(("prepare", req.plugin, command))
        return [(found.append, ("step", req.plugin, command))]

    monkeypatch.setattr(ipam.delegate, "run", run)
    monkeypatch.setattr(ipam.delegate, "prepare", prepare)
    return found


def request(kind):
    conf = {"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": {"type": kind}}
    return Request(Mode(), plugin="bridge", command="DEL", conf=conf, version="1.1.0", name="net", container_id="c1",
                   ifname="eth0")


def test_dhcp_releases_its_lease_before_the_first_deletion(calls):
    """The plugin dhcp sends a packet over the pod's link, so no step is left for the time after its deletion."""
    assert ipam.prepare_delete(request("dhcp")) == []
    assert calls == [("run", "dhcp", "DEL")]


def test_a_failed_release_of_dhcp_ends_the_del_before_the_first_deletion(calls, monkeypatch):
    def fail(req, command):
        raise CniError(11, "no answer")

    monkeypatch.setattr(ipam.delegate, "run", fail)
    with pytest.raises(CniError, match="no answer"):
        ipam.prepare_delete(request("dhcp"))


def test_another_delegate_releases_by_steps_after_the_deletion(calls):
    ((function, *arguments),) = ipam.prepare_delete(request("host-local"))
    assert calls == [("prepare", "host-local", "DEL")]
    function(*arguments)
    assert calls[1:] == [("step", "host-local", "DEL")]


def test_a_type_that_gives_no_addresses_has_no_del(calls):
    """ADD rejects such a type, so it ran no delegate."""
    assert ipam.prepare_delete(request("portmap")) == [] and calls == []
