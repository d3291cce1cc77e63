"""read_pod_spec() converts a Pod of the Kubernetes API to the Pod of PodNetworks."""

import pytest

from fastcni.runtime import Bandwidth, CniError, Dns, HostPort, read_pod_spec

MANIFEST = {
    "apiVersion": "v1", "kind": "Pod",
    "metadata": {"name": "web-0", "namespace": "shop", "uid": "1234", "annotations": {
        "kubernetes.io/ingress-bandwidth": "10M", "kubernetes.io/egress-bandwidth": "1.5Ki", "other": "kept"}},
    "spec": {
        "initContainers": [{"name": "init", "ports": [{"containerPort": 9, "hostPort": 9009}]}],
        "containers": [
            {"name": "web", "ports": [{"containerPort": 80, "hostPort": 8080},
                                      {"containerPort": 53, "hostPort": 5353, "protocol": "UDP", "hostIP": "10.0.0.1"},
                                      {"containerPort": 81}]},
            {"name": "plain"}],
        "dnsConfig": {"nameservers": ["10.0.0.10"], "searches": ["svc.local"],
                      "options": [{"name": "ndots", "value": "5"}, {"name": "edns0"}]}},
}


def test_a_manifest_gives_names_ports_rates_and_dns():
    pod = read_pod_spec(MANIFEST, "ctr", "/run/netns/a")
    assert (pod.container_id, pod.netns, pod.name, pod.namespace, pod.uid) == (
        "ctr", "/run/netns/a", "web-0", "shop", "1234")
    assert pod.host_ports == (HostPort(9009, 9), HostPort(8080, 80), HostPort(5353, 53, "udp", "10.0.0.1"))
    assert pod.bandwidth == Bandwidth(ingress_rate=10_000_000, egress_rate=1536)
    assert pod.dns == Dns(("10.0.0.10",), ("svc.local",), ("ndots:5", "edns0"))
    assert pod.annotations["other"] == "kept"


def test_a_manifest_may_have_none_of_them():
    pod = read_pod_spec({"metadata": {"name": "web-0", "annotations": None}, "spec": {}}, "ctr", "/run/netns/a")
    assert (pod.namespace, pod.host_ports, pod.bandwidth, pod.dns) == ("default", (), None, None)


def test_a_pod_of_the_node_network_is_refused():
    with pytest.raises(CniError, match="hostNetwork"):
        read_pod_spec({"spec": {"hostNetwork": True}}, "ctr", "/run/netns/a")


@pytest.mark.parametrize("text, bits", [
    ("", None), ("0", None), ("5", 5), ("1k", 1000), ("1Mi", 1 << 20), ("1e3", 1000), ("2.5G", 2_500_000_000),
    ("1500m", 2), ("1E", 10**18)])
def test_rates_are_quantities_of_kubernetes(text, bits):
    pod = read_pod_spec({"metadata": {"annotations": {"kubernetes.io/egress-bandwidth": text}}}, "ctr", "")
    assert (pod.bandwidth.egress_rate if pod.bandwidth else None) == bits


@pytest.mark.parametrize("text", ["10X", "-1", "M", "10 M", "nan", "1e40"])
def test_a_rate_that_is_no_quantity_names_its_annotation(text):
    with pytest.raises(CniError, match=r"pod: kubernetes.io/egress-bandwidth: .* is not a quantity"):
        read_pod_spec({"metadata": {"annotations": {"kubernetes.io/egress-bandwidth": text}}}, "ctr", "")


@pytest.mark.parametrize("spec, text", [
    ({"containers": {}}, "containers: expected a list"), ({"dnsConfig": []}, "dnsConfig: expected an object"),
    ({"containers": [{"ports": [{"hostPort": "80"}]}]}, "hostPort: expected an integer"),
    ({"hostNetwork": "yes"}, "hostNetwork: expected a boolean")])
def test_a_value_of_the_wrong_type_is_named(spec, text):
    with pytest.raises(CniError, match=text):
        read_pod_spec({"spec": spec}, "ctr", "")
