"""PodNetworks with plugins that record their calls: which networks, in which order, and each plugin's input."""

import json
import threading
import time

import pytest
from unit.runtime.two_networks import NETNS, conflist, variables

from fastcni.runtime import (
    Bandwidth,
    CniError,
    ConfError,
    Dns,
    HostPort,
    ManyErrors,
    NoConfigsFound,
    NotFound,
    Pod,
    PodNetwork,
    PodNetworks,
    RuntimeConf,
)
from fastcni.testing.witnesses import eventually

# Set up and tear down -------------------------------------------------------------------------------------------------

def test_a_pod_gets_the_loopback_interface_and_then_the_default_network(stage, networks):
    status = networks.set_up_pod(Pod("ctr", NETNS))
    assert stage.called() == ["loopback ADD", "a ADD"]
    assert [variables(call, "CONTAINERID", "NETNS", "IFNAME") for call in stage.calls()] == [
        ["ctr", NETNS, "lo"], ["ctr", NETNS, "eth0"]]
    [it] = status.interfaces
    assert (it.network, it.ifname, it.addresses, it.mac) == ("first", "eth0", ("10.1.0.2/24",), "c2:00:00:00:00:01")
    assert (status.ips, status.problems) == (("10.1.0.2",), ())


def test_a_pod_of_kubernetes_is_named_in_cni_args(stage, networks):
    networks.set_up_pod(Pod("ctr", NETNS, "web-0", "shop", "1234"))
    assert stage.calls()[1].env["CNI_ARGS"] == (
        "IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-0;K8S_POD_INFRA_CONTAINER_ID=ctr;K8S_POD_UID=1234")


def test_the_first_network_gets_the_ports_and_all_get_the_dns(stage, networks):
    pod = Pod("ctr", NETNS, host_ports=[HostPort(8080, 80), HostPort(53, 5353, "UDP", "10.0.0.1"), HostPort(0, 81)],
              bandwidth=Bandwidth(ingress_rate=10_000_000), dns=Dns(["10.0.0.10"], ["svc.local"], ["ndots:5"]),
              ips=["10.1.0.9/24"], mac="c2:00:00:00:00:09", cgroup_path="/kubepods/pod1", annotations={"k": "v"},
              networks=[PodNetwork("first"), PodNetwork("second", args=[("K", "V")], capability_args={"mac": "m"})])
    networks.set_up_pod(pod)
    first, second = [call.stdin["runtimeConfig"] for call in stage.calls() if call.plugin in ("a", "b")]
    common = {"dns": {"servers": ["10.0.0.10"], "searches": ["svc.local"], "options": ["ndots:5"]},
              "cgroupPath": "/kubepods/pod1", "io.kubernetes.cri.pod-annotations": {"k": "v"}}
    assert first == {**common, "ips": ["10.1.0.9/24"], "mac": "c2:00:00:00:00:09",
                     "bandwidth": {"ingressRate": 10_000_000, "ingressBurst": 2**32 - 1},
                     "portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"},
                                      {"hostPort": 53, "containerPort": 5353, "protocol": "udp",
                                       "hostIP": "10.0.0.1"}]}
    assert second == {**common, "mac": "m"}
    assert stage.calls()[2].env["CNI_ARGS"] == "K=V"


def test_interfaces_are_named_by_their_place_unless_the_pod_names_them(stage, networks):
    status = networks.set_up_pod(Pod("ctr", NETNS, networks=[PodNetwork("second"), PodNetwork("first"),
                                                             PodNetwork("first", "net1")]))
    assert [(it.network, it.ifname) for it in status.interfaces] == [
        ("second", "eth0"), ("first", "eth1"), ("first", "net1")]


def test_one_interface_name_for_two_networks_is_refused(stage, networks):
    with pytest.raises(CniError, match="asks for one interface name twice: first eth0, second eth0"):
        networks.set_up_pod(Pod("ctr", NETNS, networks=[PodNetwork("first"), PodNetwork("second", "eth0")]))
    assert stage.called() == []


def test_teardown_is_in_reverse_order_and_ends_with_the_loopback_interface(stage, networks):
    pod = Pod("ctr", NETNS, networks=[PodNetwork("first"), PodNetwork("second")])
    networks.set_up_pod(pod)
    stage.forget_calls()
    assert [(it.network, it.ifname) for it in networks.tear_down_pod(pod)] == [("second", "eth1"), ("first", "eth0")]
    assert stage.called() == ["c DEL", "b DEL", "a DEL", "loopback DEL"]
    assert networks.cni.attachments() == []


def test_teardown_uses_the_configuration_of_the_add(stage, networks):
    networks.set_up_pod(Pod("ctr", NETNS, "web-0", host_ports=[HostPort(80, 80)]))
    stage.conf("10-first.conflist", conflist("first", "b"))
    stage.forget_calls()
    networks.tear_down_pod(Pod("ctr"))
    call = stage.calls()[0]
    assert (call.plugin, call.command, call.env["CNI_NETNS"]) == ("a", "DEL", NETNS)
    assert call.stdin["runtimeConfig"]["portMappings"][0]["hostPort"] == 80
    assert "K8S_POD_NAME=web-0" in call.env["CNI_ARGS"]


def test_teardown_without_any_configuration_file_uses_the_cache(stage, networks):
    networks.set_up_pod(Pod("ctr", NETNS))
    for file in stage.net_d.iterdir():
        file.unlink()
    stage.forget_calls()
    assert [it.network for it in networks.tear_down_pod(Pod("ctr", NETNS))] == ["first"]
    assert stage.called() == ["a DEL", "loopback DEL"]


def test_teardown_of_a_pod_that_no_cache_knows_calls_the_networks_it_asks_for(stage, networks):
    """An ADD that was killed is not in the cache, but it may have done a part of its work."""
    networks.tear_down_pod(Pod("ctr", NETNS))
    networks.tear_down_pod(Pod("ctr", NETNS))
    assert stage.called() == ["a DEL", "loopback DEL"] * 2


def test_a_failed_teardown_stops_nothing_and_can_be_repeated(stage, networks):
    pod = Pod("ctr", NETNS, networks=[PodNetwork("first"), PodNetwork("second")])
    networks.set_up_pod(pod)
    stage.answer("b", "DEL", {"code": 11, "msg": "later"}, status=1)
    stage.forget_calls()
    with pytest.raises(ManyErrors, match=r"network second eth1: .*later") as caught:
        networks.tear_down_pod(pod)
    assert (len(caught.value.errors), caught.value.code) == (1, 11)
    assert stage.called() == ["c DEL", "b DEL", "a DEL", "loopback DEL"]
    stage.answer("b", "DEL", status=0)
    (stage.where / "answers" / "b.DEL.out").unlink()
    assert {it.network for it in networks.tear_down_pod(pod)} == {"first", "second"}
    assert networks.cni.attachments() == []


def test_a_cache_file_that_cannot_be_used_does_not_stop_the_teardown_of_other_networks(stage, networks):
    pod = Pod("ctr", NETNS, networks=[PodNetwork("first"), PodNetwork("second")])
    networks.set_up_pod(pod)
    file = stage.cache / "results" / "second-ctr-eth1"
    file.write_text(json.dumps({**json.loads(file.read_text()), "config": "e30="}))        # "e30=" is {} in base64
    (stage.net_d / "20-second.conflist").unlink()
    stage.forget_calls()
    with pytest.raises(ManyErrors, match=rf"network second eth1: {file} has no usable configuration, and .*second"):
        networks.tear_down_pod(Pod("ctr"))
    assert "a DEL" in stage.called()


def test_a_failed_network_undoes_all_of_them(stage, networks):
    stage.answer("c", "ADD", {"code": 11, "msg": "full"}, status=1)
    with pytest.raises(CniError, match=r"network second eth1: .*full") as caught:
        networks.set_up_pod(Pod("ctr", NETNS, networks=[PodNetwork("first"), PodNetwork("second")]))
    assert caught.value.code == 11
    assert stage.called()[-4:] == ["c DEL", "b DEL", "a DEL", "loopback DEL"]
    assert networks.cni.attachments() == []


def test_the_other_networks_are_not_tried_if_the_first_one_fails(stage, networks):
    stage.answer("a", "ADD", {"code": 11, "msg": "full"}, status=1)
    with pytest.raises(CniError, match="network first eth0"):
        networks.set_up_pod(Pod("ctr", NETNS, networks=[PodNetwork("first"), PodNetwork("second")]))
    assert "b ADD" not in stage.called()


def test_errors_of_several_networks_and_of_the_rollback_are_notes(stage, networks):
    stage.conf("30-third.conflist", conflist("third", "c"))
    stage.answer("b", "ADD", {"code": 11, "msg": "full"}, status=1)
    stage.answer("c", "ADD", {"code": 7, "msg": "bad"}, status=1)
    stage.answer("a", "DEL", {"code": 5, "msg": "stuck"}, status=1)
    with pytest.raises(CniError, match="network second eth1") as caught:
        networks.set_up_pod(Pod("ctr", NETNS, networks=[PodNetwork(it) for it in ("first", "second", "third")]))
    third, undoing = caught.value.__notes__
    assert "network third eth2" in third and "bad" in third
    assert undoing.startswith("while undoing: network first eth0") and "stuck" in undoing


def test_a_pod_that_is_set_up_is_not_set_up_again(stage, networks):
    """If the second set-up failed, its rollback would detach the running pod."""
    networks.set_up_pod(Pod("ctr", NETNS))
    stage.forget_calls()
    with pytest.raises(CniError, match="pod ctr is set up already, with first eth0"):
        networks.set_up_pod(Pod("ctr", NETNS))
    assert stage.called() == []


@pytest.mark.parametrize("serial, at_once", [(False, 2), (True, 1)])
def test_networks_after_the_first_are_attached_at_once_or_in_order(stage, networks, serial, at_once):
    running, most, order = [], [], []

    class Slow(type(networks.cni.runner)):
        def run(self, where, env, stdin, timeout):
            if env["CNI_COMMAND"] == "ADD":
                running.append(env["CNI_IFNAME"])
                most.append(len(running))
                order.append(env["CNI_IFNAME"])
                time.sleep(0.05)
                running.remove(env["CNI_IFNAME"])
            return super().run(where, env, stdin, timeout)

    networks.cni.runner, networks.serial = Slow(), serial
    networks.set_up_pod(Pod("ctr", NETNS, networks=[PodNetwork("first", it) for it in ("eth0", "net1", "net2")]))
    assert max(most) == at_once
    assert order[:2] == ["lo", "eth0"]
    assert order[2:] == ["net1", "net2"] if serial else sorted(order[2:]) == ["net1", "net2"]


def test_calls_for_one_pod_run_in_the_order_of_their_arrival(stage, networks):
    order, entered = [], threading.Event()

    class Slow(type(networks.cni.runner)):
        def run(self, where, env, stdin, timeout):
            order.append((env["CNI_CONTAINERID"], env["CNI_COMMAND"]))
            if env["CNI_CONTAINERID"] == "ctr" and not entered.is_set():
                entered.set()
                assert other.wait(10)
                time.sleep(0.05)
            return super().run(where, env, stdin, timeout)

    other = threading.Event()
    networks.cni.runner = Slow()
    threads = [threading.Thread(target=networks.set_up_pod, args=(Pod("ctr", NETNS),))]
    threads[0].start()
    assert entered.wait(10)
    threads.append(threading.Thread(target=networks.tear_down_pod, args=(Pod("ctr", NETNS),)))
    threads[1].start()
    networks.set_up_pod(Pod("other", NETNS))            # this call does not wait for the first pod
    other.set()
    for thread in threads:
        thread.join(30)
    assert [command for pod, command in order if pod == "ctr"] == ["ADD", "ADD", "DEL", "DEL"]
    assert [it.container_id for it in networks.cni.attachments() if it.network == "first"] == ["other"]


# Status ---------------------------------------------------------------------------------------------------------------

def test_the_status_of_a_pod_comes_from_the_cache(stage, networks):
    networks.set_up_pod(Pod("ctr", NETNS, networks=[PodNetwork("second"), PodNetwork("first")]))
    stage.forget_calls()
    status = PodNetworks(networks.cni).pod_status(Pod("ctr"))
    assert [(it.network, it.ifname, it.addresses) for it in status.interfaces] == [
        ("second", "eth0", ("10.2.0.2/24",)), ("first", "eth1", ("10.1.0.2/24",))]
    assert (status.ips, stage.called()) == (("10.2.0.2",), [])


def test_check_reports_the_network_that_has_changed(stage, networks):
    networks.set_up_pod(Pod("ctr", NETNS, networks=[PodNetwork("first"), PodNetwork("second")]))
    stage.answer("a", "CHECK", {"code": 100, "msg": "the route is gone"}, status=1)
    [problem] = networks.pod_status(Pod("ctr"), check=True).problems
    assert problem.startswith("first eth0: ") and "the route is gone" in problem
    assert networks.pod_status(Pod("ctr")).problems == ()


def test_check_gets_the_namespace_of_the_add_unless_the_caller_names_another(stage, networks):
    networks.set_up_pod(Pod("ctr", NETNS))
    for netns in ("", "/run/netns/moved"):
        networks.pod_status(Pod("ctr", netns), check=True)
    assert [call.env["CNI_NETNS"] for call in stage.calls() if call.command == "CHECK"] == [NETNS, "/run/netns/moved"]


def test_check_is_not_sent_below_0_4_0(stage, networks):
    stage.conf("10-first.conflist", conflist("first", "a", version="0.3.1"))
    stage.answer("a", "ADD", {"cniVersion": "0.3.1", "ips": [{"version": "4", "address": "10.1.0.2/24"}]})
    networks.set_up_pod(Pod("ctr", NETNS))
    assert networks.pod_status(Pod("ctr"), check=True).problems == ()
    assert "a CHECK" not in stage.called()


def test_a_pod_without_a_network_says_so(networks):
    assert networks.pod_status(Pod("ctr")).problems == ("pod ctr has no network",)


# The default network and readiness ------------------------------------------------------------------------------------

def test_the_default_network_is_the_first_valid_file_by_name(stage, networks):
    """As in containerd and CRI-O, the files with the endings .conf, .conflist and .json have one common order."""
    stage.conf("05-broken.conflist", "{")
    stage.conf("06-list-in-a.conf", conflist("mistake", "a"))
    stage.conf("07-no-name.conf", {"cniVersion": "1.0.0", "type": "a"})
    stage.conf("08-single.json", {"cniVersion": "1.0.0", "name": "single", "type": "b"})
    stage.conf("00-ignored.txt", "{")
    warnings = []
    networks.warn = warnings.append
    assert networks.set_up_pod(Pod("ctr", NETNS)).interfaces[0].network == "single"
    assert [text.partition("net.d/")[2].partition(":")[0] for text in warnings] == [
        "05-broken.conflist", "06-list-in-a.conf", "07-no-name.conf"]
    readiness = networks.readiness()
    assert (readiness.ready, readiness.network, len(readiness.broken)) == (True, "single", 3)


def test_a_pod_cannot_be_set_up_without_a_network(stage, networks):
    for file in stage.net_d.iterdir():
        file.unlink()
    with pytest.raises(NoConfigsFound):
        networks.set_up_pod(Pod("ctr", NETNS))
    assert "no net configurations found" in networks.readiness().reason
    stage.conf("10-broken.conflist", "{")
    with pytest.raises(ConfError, match=r"no valid network configuration in .*10-broken.conflist"):
        networks.set_up_pod(Pod("ctr", NETNS))
    with pytest.raises(NotFound):
        networks.set_up_pod(Pod("ctr", NETNS, networks=[PodNetwork("first")]))
    assert stage.called() == []


def test_a_changed_file_is_read_again(stage, networks):
    """The files have the same size, and may be written within one tick of the file system's clock."""
    for number in range(20):
        stage.conf("10-first.conflist", conflist(f"net{number:02}", "a"))
        assert networks.readiness().network == f"net{number:02}"


def test_readiness_needs_the_plugins_of_the_default_network_and_their_status(stage, networks):
    assert networks.readiness().ready
    stage.answer("a", "STATUS", {"code": 50, "msg": "no master"}, status=1)
    assert "network first: " in networks.readiness().reason
    assert "no master" in networks.readiness().reason
    (stage.bin / "a").unlink()
    assert not networks.readiness().ready
    assert 'failed to find plugin "a"' in networks.readiness().reason


def test_watch_reports_files_that_come_and_go_and_a_directory_that_is_made_anew(stage, networks):
    seen = []

    def last():
        return seen[-1].ready, seen[-1].network

    with networks.watch(seen.append):
        assert last() == (True, "first")
        (stage.net_d / "10-first.conflist").unlink()
        assert eventually(lambda: last() == (True, "second")), last()
        (stage.net_d / "20-second.conflist").unlink()
        assert eventually(lambda: last() == (False, "")), last()
        stage.net_d.rmdir()
        stage.net_d.mkdir()
        stage.conf("30-third.conflist", conflist("third", "a"))
        assert eventually(lambda: last() == (True, "third")), last()
        (stage.net_d / "third").mkdir()
        stage.conf("third/more.conf", {"type": "absent"})
        assert eventually(lambda: last() == (False, "third")), last()
    number = len(seen)
    (stage.net_d / "30-third.conflist").unlink()
    time.sleep(0.2)
    assert len(seen) == number


def test_watch_asks_the_plugins_again_at_the_interval(stage, networks):
    seen = []
    with networks.watch(seen.append, interval_s=0.05):
        stage.answer("a", "STATUS", {"code": 50, "msg": "no master"}, status=1)
        assert eventually(lambda: not seen[-1].ready)
    assert len(seen) == 2


def test_watch_asks_the_plugins_only_after_a_change(stage, networks):
    with networks.watch(lambda _: None):
        stage.forget_calls()
        stage.conf("15-more.conflist", conflist("more", "b"))
        calls = stage.where / "calls"
        assert eventually(lambda: any(calls.iterdir()))
        time.sleep(0.5)
        assert len(list(calls.glob("*.stdin"))) <= 2        # one check when the file is created, one when it is written


def test_watch_asks_no_plugin_after_changes_beside_the_directory(stage, networks):
    """The watch also covers the parent directories, in case the directory is made anew."""
    with networks.watch(lambda _: None):
        stage.forget_calls()
        for number in range(3):
            (stage.net_d.parent / f"other-{number}").write_text("")
            stage.net_d.parent.chmod(0o755 - number)
            time.sleep(0.1)
    assert not any((stage.where / "calls").iterdir())


def test_watch_asks_the_plugins_at_the_interval_also_while_other_files_change(stage, networks):
    with networks.watch(lambda _: None, interval_s=0.3):
        stage.forget_calls()
        for number in range(20):
            (stage.net_d.parent / f"other-{number}").write_text("")
            time.sleep(0.05)
    assert any((stage.where / "calls").iterdir())


def test_an_error_of_the_callback_ends_the_watch_and_close_raises_it(stage, networks):
    def changed(readiness):
        if readiness.network != "first":
            raise RuntimeError("the caller's own")

    watch = networks.watch(changed)
    (stage.net_d / "10-first.conflist").unlink()
    assert eventually(lambda: not watch._thread.is_alive())
    with pytest.raises(RuntimeError, match="the caller's own"):
        watch.close()
    watch.close()


def test_attachments_of_other_programs_on_the_same_cache_are_kept(stage, networks):
    networks.cni.add(networks.cni.load("second"), RuntimeConf("another", NETNS, "eth0"))
    networks.set_up_pod(Pod("ctr", NETNS))
    networks.tear_down_pod(Pod("ctr", NETNS))
    assert [it.container_id for it in networks.cni.attachments()] == ["another"]
