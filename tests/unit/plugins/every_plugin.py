"""Fixtures for tests of every plugin: each configuration of the fault campaigns, and two pods."""

from contextlib import ExitStack

import pytest
from faults.cases import PLUGINS, Case, features_of, lacking
from lab.node import Inside, set_sysctl

MAX_REQUESTS = 200              # an ADD makes some forty requests
CASES = [pytest.param(name, marks=pytest.mark.needs(*features_of(name)) if features_of(name) else
                      pytest.mark.skipif(bool(lacking(name)), reason=lacking(name) or "it can run here"))
         for name in PLUGINS]
# ADD of these plugins changes the pod, and DEL leaves these changes until the link is deleted.
ONCE = ("sbr", "sbr addSourceHints", "vrf", "bandwidth", "bandwidth, shapedSubnets")


@pytest.fixture
def pods(pod_netns):
    """Return two pods without duplicate address detection, which takes a second."""
    names = [pod_netns(), pod_netns()]
    for name in names:
        with Inside(name):
            set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    return names


@pytest.fixture(params=CASES)
def conf(node, pods, request):
    """Yield a plugin's configuration. A chained plugin runs after a bridge, which has connected both pods."""
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    with ExitStack() as closing:
        case = Case(request.param, node, closing)
        for pod in pods:
            case.prepare(pod)
        if case.conf.get("backend"):
            node.add(case.conf, pods[1])        # this ADD creates the state that pods share and DEL leaves
            node.delete(case.conf, pods[1])
        yield case.conf


def of_another(conf):
    """Return the configuration for another pod, with other host ports or another VLAN."""
    if conf.get("type") == "vlan":
        return {**conf, "vlanId": conf["vlanId"] + 1}
    if conf.get("type") != "portmap":
        return conf
    ports = [{**each, "hostPort": each["hostPort"] + 1} for each in conf["runtimeConfig"]["portMappings"]]
    return {**conf, "runtimeConfig": {"portMappings": ports}}
