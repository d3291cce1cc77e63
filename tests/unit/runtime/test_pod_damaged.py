"""PodNetworks and `fastcni pod` with damaged files in the result cache. Nothing remains, or an error names the file."""

import pytest
from unit.runtime.two_networks import NETNS, variables

from fastcni.cli import entry_point
from fastcni.runtime import CniError, ManyErrors, Pod, PodNetwork

DAMAGE = [b"", bytes(100), b"null", b'{"kind":"cniCacheV1","containerId":"ctr","conf', b'{"kind":"cniCacheV2"}']


@pytest.mark.parametrize("content", DAMAGE)
def test_the_network_of_a_damaged_file_is_detached_by_the_configuration_of_its_name(stage, networks, content):
    """Once, the teardown succeeded, and the network remained with its address and its interface."""
    networks.set_up_pod(Pod("ctr", NETNS, networks=[PodNetwork("first"), PodNetwork("second")]))
    file = stage.cache / "results" / "second-ctr-eth1"
    file.write_bytes(content)
    stage.forget_calls()
    assert [(it.network, it.ifname) for it in networks.tear_down_pod(Pod("ctr"))] == [
        ("second", "eth1"), ("first", "eth0")]
    assert stage.called() == ["c DEL", "b DEL", "a DEL", "loopback DEL"]
    assert variables(stage.calls()[0], "CONTAINERID", "NETNS", "IFNAME") == ["ctr", NETNS, "eth1"]
    assert not file.exists()


@pytest.mark.parametrize("content", DAMAGE)
def test_a_damaged_file_whose_network_is_unknown_fails_each_teardown_until_it_is_removed(stage, networks, content):
    networks.set_up_pod(Pod("ctr", NETNS, networks=[PodNetwork("first"), PodNetwork("second")]))
    file = stage.cache / "results" / "second-ctr-eth1"
    file.write_bytes(content)
    for conf in stage.net_d.iterdir():
        conf.unlink()
    for _ in range(2):
        with pytest.raises(ManyErrors, match=f"network second eth1: {file} .*remove the file if"):
            networks.tear_down_pod(Pod("ctr"))
    assert networks.cni.attachments() == []
    file.unlink()
    assert networks.tear_down_pod(Pod("ctr")) == ()


@pytest.fixture
def fastcni_pod(stage, capfd):
    """Return a function that runs `fastcni pod` and returns (exit status, text)."""
    def run(*args):
        status = entry_point.run(["pod", *args, "--conf-dir", str(stage.net_d), "--bin-dir", str(stage.bin),
                                  "--cache-dir", str(stage.cache)])
        return status, "".join(capfd.readouterr())
    return run


def test_pod_down_needs_the_namespace_if_no_file_names_it(stage, networks, fastcni_pod):
    """A DEL without the namespace would leave the interface in the pod."""
    networks.set_up_pod(Pod("ctr", NETNS))
    (stage.cache / "results" / "cni-loopback-ctr-lo").unlink()
    file = stage.cache / "results" / "first-ctr-eth0"
    file.write_bytes(b"")
    stage.forget_calls()
    status, text = fastcni_pod("down", "ctr")
    assert status == 1 and f"{file} does not name the network namespace" in text and "pod down ctr NETNS" in text
    assert stage.called() == []
    status, text = fastcni_pod("down", "ctr", NETNS)
    assert (status, "eth0 of ctr in network first is detached" in text) == (0, True)
    assert variables(stage.calls()[0], "NETNS", "IFNAME") == [NETNS, "eth0"]


def test_a_pod_down_that_sent_no_del_says_so(stage, networks, fastcni_pod):
    for conf in stage.net_d.iterdir():
        conf.unlink()
    assert fastcni_pod("down", "ctr") == (0, "pod ctr has no cached result; no DEL was sent\n")


def test_a_pod_is_not_said_to_be_similar_to_itself(stage, networks, fastcni_pod):
    networks.set_up_pod(Pod("ctr", NETNS))
    (stage.cache / "results" / "first-ctr-eth0").unlink()
    status, text = fastcni_pod("status", "ctr")
    assert status == 1 and "ctr has no network" in text and "did you mean" not in text
    assert 'did you mean "ctr"?' in fastcni_pod("status", "ct")[1]


def test_a_teardown_that_fails_keeps_the_damaged_file_for_the_next_teardown(stage, networks):
    networks.set_up_pod(Pod("ctr", NETNS, networks=[PodNetwork("first"), PodNetwork("second")]))
    (stage.cache / "results" / "second-ctr-eth1").write_bytes(b"")
    stage.answer("b", "DEL", {"code": 11, "msg": "later"}, status=1)
    for _ in range(2):
        with pytest.raises(ManyErrors, match=r"network second eth1: .*later"):
            networks.tear_down_pod(Pod("ctr"))


def test_a_damaged_file_of_a_longer_container_id_is_not_of_the_pod(stage, networks):
    networks.set_up_pod(Pod("ctr", NETNS))
    networks.set_up_pod(Pod("a-ctr", NETNS, networks=[PodNetwork("first"), PodNetwork("second")]))
    file = stage.cache / "results" / "second-a-ctr-eth1"
    file.write_bytes(b"")
    assert [it.network for it in networks.tear_down_pod(Pod("ctr"))] == ["first"]
    assert file.exists()
    assert {it.network for it in networks.tear_down_pod(Pod("a-ctr"))} == {"first", "second"}


def test_a_pod_with_a_damaged_file_is_not_set_up_again(stage, networks):
    networks.set_up_pod(Pod("ctr", NETNS))
    (stage.cache / "results" / "first-ctr-eth0").write_bytes(b"")
    with pytest.raises(CniError, match="pod ctr is set up already, with first eth0"):
        networks.set_up_pod(Pod("ctr", NETNS))


@pytest.mark.parametrize("verb", ["tear_down_pod", "pod_status", "set_up_pod"])
def test_an_empty_container_id_is_not_all_containers(stage, networks, verb):
    """Once, `fastcni pod down ""` detached each pod of the node."""
    networks.set_up_pod(Pod("ctr", NETNS))
    stage.forget_calls()
    with pytest.raises(CniError, match="missing containerID"):
        getattr(networks, verb)(Pod("", NETNS))
    assert stage.called() == []


@pytest.mark.parametrize("content", DAMAGE)
@pytest.mark.parametrize("check", [False, True])
def test_the_status_of_a_pod_names_its_damaged_file(stage, networks, content, check):
    networks.set_up_pod(Pod("ctr", NETNS, networks=[PodNetwork("first"), PodNetwork("second")]))
    file = stage.cache / "results" / "second-ctr-eth1"
    file.write_bytes(content)
    status = networks.pod_status(Pod("ctr"), check=check)
    assert [(it.network, it.ifname) for it in status.interfaces] == [("first", "eth0"), ("second", "eth1")]
    [problem] = status.problems
    assert problem.startswith(f"second eth1: {file}: ")
