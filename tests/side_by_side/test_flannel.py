"""fastcni's flannel delegates to fastcni's bridge or to Go's bridge, because a node may have either."""

import json
import os

import conftest as shared
import pytest
from side_by_side.sides import at_once
from side_by_side.state import difference
from side_by_side.stories import Story
from side_by_side.test_results_and_state import Run, same_state, unexplained

SUBNET = {"FLANNEL_NETWORK": "10.22.0.0/16", "FLANNEL_SUBNET": "10.22.0.1/24", "FLANNEL_MTU": 1450,
          "FLANNEL_IPMASQ": "true", "FLANNEL_IPV6_NETWORK": "fd00:22::/48", "FLANNEL_IPV6_SUBNET": "fd00:22::1/64"}


def flannel(**keys):
    return {"cniVersion": "1.0.0", "name": "net-a", "type": "flannel", "subnetFile": "@here/subnet.env",
            "dataDir": "@here/flannel", "ipam": {"dataDir": "@here"}, **keys}


STORIES = {
    "bridge": Story(flannel(), pods=2),
    "bridge with keys": Story(flannel(delegate={"bridge": "br0", "hairpinMode": True, "isDefaultGateway": True}),
                              args="IgnoreUnknown=1;MAC=02:11:22:33:44:55"),
    "ptp, of old": Story(flannel(cniVersion="0.3.1", delegate={"type": "ptp"}), quick_dad=True, check=False),
}


@pytest.fixture
def delegates(sides):
    """Return two Sides with fastcni's flannel. The second Side has Go's delegates."""
    fastcni, go = sides
    go.bin_dir, go.socket, environment = fastcni.bin_dir, fastcni.socket, go.environment
    go.environment = lambda *args, **more: {**environment(*args, **more), "CNI_PATH": shared.PEER}
    for side in sides:
        with open(f"{side.directory}/subnet.env", "w") as file:
            file.writelines(f"{name}={value}\n" for name, value in SUBNET.items())
    return sides


@pytest.mark.parametrize("title", STORIES)
def test_both_delegates_give_the_same_result_and_state(title, delegates):
    story = STORIES[title]
    runs = at_once(lambda side: Run(side, story), delegates)
    assert not unexplained(title, difference(*at_once(Run.add, runs)))
    assert kept(runs[0]) == kept(runs[1]) != []
    assert not same_state(title, runs)
    if story.check:
        runs[0].check()         # CHECK of Go 1.1.1 fails, as in "a route through the first gateway"
    at_once(Run.delete, runs)
    assert not same_state(title, runs)
    assert kept(runs[0]) == kept(runs[1]) == []


@pytest.mark.parametrize("first", [0, 1], ids=["fastcni first", "Go's first"])
def test_a_node_changes_its_bridge_under_running_pods(first, delegates):
    one, other = delegates[first], delegates[1 - first]
    pod, conf = one.pod(), flannel()
    conf["prevResult"] = one.add(conf, pod)
    other.host, other.directory = one.host, one.directory
    for command in ("CHECK", "DEL", "DEL") if other is delegates[0] else ("DEL", "DEL"):
        assert other.ok(command, conf, pod) is None
    assert "eth0" not in one.on_host("ip", "-n", os.path.basename(pod), "link")
    assert not [name for name in one.held("net-a") if name[0].isdigit() or ":" in name]


def kept(run):
    """Return the configurations that flannel gave to its delegates, without directories."""
    directory = f"{run.side.directory}/flannel"
    found = []
    for name in sorted(os.listdir(directory)):
        with open(f"{directory}/{name}") as file:
            found.append(json.loads(file.read().replace(run.side.directory, "@here")))
    return found
