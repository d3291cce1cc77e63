"""multus with `hotPlug`: the server attaches and detaches networks when the annotation of a running pod changes."""

import json
import os
from pathlib import Path

import pytest
from cluster.kubernetes.networks_cluster import args, ready
from lab.networks import NETWORKS, held, kept, multus, network
from lab.node import addresses, links

from fastcni.launcher.install import install
from fastcni.testing.witnesses import eventually


@pytest.fixture
def hot(node, cluster, plugins):
    """Return a configuration with `hotPlug`. The API has definitions of b, c and d."""
    for letter in "bcd":
        cluster.define(network(node, letter))
    made = multus(node, network(node, "a"), kubeconfig=str(cluster.kubeconfig), hotPlug=True, binDir=plugins,
                  capabilities={})
    del made["runtimeConfig"]
    return made


def names(pod):
    return [name for name in links(pod) if name != "lo"]


def shown(cluster):
    return [(it["name"], it["interface"]) for it in cluster.status() or ()]


def annotate(cluster, text, uid="uid-1"):
    """Change the pod's annotation of networks, and keep the pod's network status."""
    def change(api):
        stored = next(it for key, it in api.stored.items() if (key[0].plural, key[2]) == ("pods", "web"))
        found = json.loads(json.dumps(stored))
        found["metadata"]["annotations"][NETWORKS] = text
        api.put("pods", found, "shop")

    cluster.mock.do(change)


def test_networks_come_to_a_running_pod_and_leave_it(node, pod, cluster, hot, warm):
    cluster.create_pod(**{NETWORKS: "b"})
    ready(warm, hot)
    warm.ok("ADD", hot, pod, env=args())
    annotate(cluster, "b, c, d@bak0")
    assert eventually(lambda: shown(cluster) == [("a", "eth0"), ("shop/b", "net1"), ("shop/c", "net2"),
                                                 ("shop/d", "bak0")]), warm.log_text()
    assert [addresses(name, pod) for name in ("net2", "bak0")] == [["10.1.3.2/24"], ["10.1.4.2/24"]]
    annotate(cluster, "c@net2")
    assert eventually(lambda: shown(cluster) == [("a", "eth0"), ("shop/c", "net2")]), warm.log_text()
    assert (names(pod), held(node, *"abcd")) == (["eth0", "net2"], [1, 0, 1, 0])
    annotate(cluster, "")
    assert eventually(lambda: shown(cluster) == [("a", "eth0")]), warm.log_text()
    warm.ok("DEL", hot, pod, env=args())
    assert (names(pod), held(node, *"abcd")) == ([], [0, 0, 0, 0])
    assert len(warm.lines("event=networks_changed", "pod=shop/web")) == 3


def test_without_the_key_a_running_pod_keeps_its_networks(node, pod, cluster, hot, warm):
    cluster.create_pod(**{NETWORKS: "b"})
    source = ready(warm, {**hot, "hotPlug": False})
    warm.ok("ADD", hot, pod, env=args())
    annotate(cluster, "c")
    assert eventually(lambda: source.pods.found[("shop", "web")].annotations[NETWORKS] == "c")
    warm.networks.keep()
    assert (warm.networks.hot_plugs, names(pod)) == ({}, ["eth0", "net1"])


def test_an_annotation_that_changed_while_no_server_ran_is_followed_at_its_start(node, pod, cluster, hot,
                                                                                 local):
    """The ADD was one-shot, so the server learns of the pod only from the pod's files."""
    cluster.create_pod(**{NETWORKS: "b"})
    node.add(hot, pod, env=args())
    annotate(cluster, "c")
    ready(local(), hot)
    assert eventually(lambda: shown(cluster) == [("a", "eth0"), ("shop/c", "net1")])
    assert (names(pod), held(node, *"abc")) == (["eth0", "net1"], [1, 0, 1])


def test_a_change_before_the_end_of_the_add_is_followed(node, pod, cluster, hot, warm):
    """The ADD gets the annotations that the pod had when the runtime made the sandbox."""
    cluster.create_pod(**{NETWORKS: "c"})
    ready(warm, hot)
    old = {"runtimeConfig": {"io.kubernetes.cri.pod-annotations": {NETWORKS: "b"}}}
    warm.ok("ADD", {**hot, **old}, pod, env=args())
    assert eventually(lambda: shown(cluster) == [("a", "eth0"), ("shop/c", "net1")]), warm.log_text()


def test_a_failure_is_told_and_tried_again(node, pod, cluster, hot, warm):
    cluster.create_pod(**{NETWORKS: "b"})
    ready(warm, hot)
    warm.ok("ADD", hot, pod, env=args())
    annotate(cluster, "b,late")
    assert eventually(lambda: warm.lines("event=networks_unchanged", "pod=shop/web", 'no network \\"shop/late\\"')), (
        warm.log_text())
    assert (names(pod), shown(cluster)) == (["eth0", "net1"], [("a", "eth0"), ("shop/b", "net1")])
    cluster.define(network(node, "c") | {"name": "late"})
    assert eventually(lambda: shown(cluster)[2:] == [("shop/late", "net2")]), warm.log_text()


def test_an_api_that_is_gone_takes_no_network_from_a_pod(node, pod, cluster, hot, warm):
    cluster.create_pod(**{NETWORKS: "b"})
    source = ready(warm, hot)
    warm.ok("ADD", hot, pod, env=args())
    hot_plug = next(iter(warm.networks.hot_plugs.values()))
    assert eventually(lambda: ("shop", "web") in hot_plug.handled)
    before = warm.lines("UPDATE")       # one line if the server has compared the pod before the end of the pod's ADD
    cluster.go()
    assert eventually(lambda: source.pods.why and source.definitions.why)
    for _ in range(3):
        warm.networks.keep()
    assert (names(pod), warm.lines("UPDATE")) == (["eth0", "net1"], before)
    cluster.come_back()
    annotate(cluster, "b,c")
    assert eventually(lambda: shown(cluster)[2:] == [("shop/c", "net2")]), warm.log_text()


def test_a_pod_of_the_same_name_with_another_uid_is_not_changed(node, pod, cluster, hot, warm):
    cluster.create_pod(**{NETWORKS: "b"})
    source = ready(warm, hot)
    warm.ok("ADD", hot, pod, env=args())
    cluster.create_pod(uid="uid-2", **{NETWORKS: "c"})
    assert eventually(lambda: source.pods.found[("shop", "web")].uid == "uid-2")
    warm.networks.keep()
    other = next(iter(warm.networks.hot_plugs.values()))
    assert eventually(lambda: not other.due)
    assert names(pod) == ["eth0", "net1"]


def test_after_many_quick_changes_a_pod_has_the_networks_of_the_last(node, pod, cluster, hot, warm):
    """The test makes the second half of the changes while the server works on the change to d@x0,b,c."""
    cluster.create_pod(**{NETWORKS: "b"})
    ready(warm, hot)
    warm.ok("ADD", hot, pod, env=args())
    for text in ("c", "", "b,c,d", "d@x0,b,c"):
        annotate(cluster, text)
    assert eventually(lambda: "x0" in names(pod)), warm.log_text()
    for text in ("b@x0", "d,b", "", "c@x0,b", "b,d@x0"):
        annotate(cluster, text)
    assert eventually(lambda: shown(cluster) == [("a", "eth0"), ("shop/b", "net1"), ("shop/d", "x0")]
                      and not next(iter(warm.networks.hot_plugs.values())).due), warm.log_text()
    assert (names(pod), held(node, *"abcd")) == (["eth0", "net1", "x0"], [1, 1, 0, 1])
    warm.ok("DEL", hot, pod, env=args())
    assert (names(pod), held(node, *"abcd")) == ([], [0, 0, 0, 0])


def test_a_network_leaves_as_it_came_after_its_definition_has_another_type(node, pod, cluster, hot, warm):
    cluster.create_pod(**{NETWORKS: "b,c"})
    ready(warm, hot)
    warm.ok("ADD", hot, pod, env=args())
    for letter in "bc":
        cluster.define({"cniVersion": "1.1.0", "name": letter, "type": "acme", "ipam": {"type": "static"}})
    annotate(cluster, "c")
    assert eventually(lambda: shown(cluster) == [("a", "eth0"), ("shop/c", "net2")]), warm.log_text()
    assert (names(pod), held(node, *"abc")) == (["eth0", "net2"], [1, 0, 1])
    warm.ok("DEL", hot, pod, env=args())
    assert (names(pod), held(node, *"abc")) == ([], [0, 0, 0])


WAITS = """#!/bin/sh
cat > /dev/null
if [ "$CNI_COMMAND" = ADD ]; then
    echo $$ > {directory}/new
    mv {directory}/new {directory}/started
    tries=0
    while [ ! -e {directory}/goes-on ] && [ $tries -lt 300 ]; do sleep 0.1; tries=$((tries + 1)); done
fi
echo '{{"cniVersion": "1.1.0"}}'
"""


def test_a_del_ends_the_change_of_a_pods_networks(node, pod, cluster, hot, warm, tmp_path):
    """The plugin of the new network does not answer. The DEL waits neither for the plugin nor for its deadline."""
    directory = tmp_path / "bin"
    install(directory)
    (directory / "acme").write_text(WAITS.format(directory=directory))
    (directory / "acme").chmod(0o755)
    hot = {**hot, "binDir": str(directory)}
    cluster.define({"cniVersion": "1.1.0", "name": "x", "type": "acme"})
    cluster.create_pod(**{NETWORKS: "b"})
    ready(warm, hot)
    warm.ok("ADD", hot, pod, env=args())
    annotate(cluster, "b,c,x")
    try:
        assert eventually((directory / "started").exists), warm.log_text()
        assert names(pod) == ["eth0", "net1", "net2"]
        warm.ok("DEL", hot, pod, env=args())
        assert not (directory / "goes-on").exists()
        assert (names(pod), held(node, *"abc")) == ([], [0, 0, 0])
        assert [name for name in kept(node) if not name.startswith("definitions")] == []
        assert warm.lines("event=networks_unchanged", "another request of the pod waits"), warm.log_text()
    finally:
        (directory / "goes-on").touch()
    process = (directory / "started").read_text().strip()
    assert eventually(lambda: not os.path.exists(f"/proc/{process}"))


def test_a_damaged_or_missing_list_is_in_the_log(node, pod, cluster, hot, warm):
    """After a change of the annotation, the server did nothing, and logged nothing."""
    cluster.create_pod(**{NETWORKS: "b"})
    ready(warm, hot)
    warm.ok("ADD", hot, pod, env=args())
    path = next(it for it in Path(node.data_dir, "multus").iterdir() if it.is_file())
    content = path.read_bytes()
    path.write_bytes(content[:100])
    annotate(cluster, "b,c")
    assert eventually(lambda: warm.lines("event=networks_unchanged", f"{path} is damaged")), warm.log_text()
    path.unlink()
    annotate(cluster, "c")
    assert eventually(lambda: warm.lines("event=networks_unchanged", f"{path} is missing")), warm.log_text()
    assert names(pod) == ["eth0", "net1"]
    path.write_bytes(content)
    annotate(cluster, "b,d")
    assert eventually(lambda: names(pod) == ["eth0", "net1", "net2"]), warm.log_text()
    warm.ok("DEL", hot, pod, env=args())
