"""ovs: add and delete 200 ports on one bridge, several at the same time."""

import threading

from lab.node import Inside
from lab.openvswitch import assert_nothing_is_left, needs_ovs

pytestmark = needs_ovs
PORTS, AT_ONCE = 200, 4
EVERY = 5                       # every fifth port stays until the end


def test_200_ports_that_come_and_go_are_up_when_added_and_leave_nothing(node, switch, ovs_conf, kept, pod_netns):
    """Each of four threads has one pod. An ADD waits until ovs-vswitchd reports that the port is up, which takes most
    of the test's time."""
    conf, pods, errors = ovs_conf("10.22.0.0/16", vlan=100), [pod_netns() for _ in range(AT_ONCE)], []

    def churn(pod):
        stays = []
        try:
            with Inside(node.name):
                for number in range(PORTS // AT_ONCE):
                    ifname = f"n{number}"
                    node.add(conf, pod, ifname=ifname)
                    if number % EVERY:
                        node.delete(conf, pod, ifname=ifname)
                    else:
                        stays.append(ifname)
                for ifname in stays:
                    node.delete(conf, pod, ifname=ifname)
        except BaseException as e:
            errors.append(e)

    threads = [threading.Thread(target=churn, args=(pod,)) for pod in pods]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert_nothing_is_left(node, switch, kept, pods[0])
