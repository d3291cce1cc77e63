"""hello passes the conformance class, and a pod reaches the host."""

from fastcni.testing import Conformance, needs_root
from fastcni.testing.namespaces import ip
from fastcni.testing.witnesses import addresses, routes

TO = ["10.0.0.0/8", "192.0.2.0/24"]


class TestHello(Conformance):
    plugin = "hello"
    conf = {"to": TO}
    bad_confs = [{"to": "10.0.0.0/8"}, {"to": ["10.0.0.0"]}, {"to": [8]}]


@needs_root
def test_a_pod_has_its_routes_and_reaches_the_host(real_runtime, pod_netns, tmp_path):
    pod = pod_netns()
    ipam = {"type": "host-local", "subnet": "10.22.0.0/24", "dataDir": str(tmp_path)}
    conf = {"cniVersion": "1.1.0", "name": "net", "type": "hello", "to": TO, "ipam": ipam}

    result = real_runtime.add(conf, pod)
    assert addresses("eth0", pod) == ["10.22.0.2/24"]
    assert {(dst, "10.22.0.1") for dst in TO} <= routes(pod).keys()
    assert ("10.22.0.2", "") in routes()
    assert "eth0" in ip("route", "get", "192.0.2.9", netns=pod)

    real_runtime.check(conf, pod, result)
    ip("route", "del", "192.0.2.0/24", netns=pod)
    assert "192.0.2.0/24" in real_runtime.check_refused(conf, pod, result)

    real_runtime.delete(conf, pod)
    real_runtime.delete(conf, pod)
    assert routes() == {}
