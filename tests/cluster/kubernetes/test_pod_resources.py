"""The client of the kubelet's pod-resources API, with a kubelet made by grpcio, and with sockets that answer wrongly or
never."""

import json
import socket
import sys
import threading
from concurrent import futures

import pytest
from cluster.kubernetes.networks_cluster import args
from hypothesis import given
from hypothesis import strategies as st
from lab.networks import NETWORKS

from fastcni.clients import pod_resources
from fastcni.clients.errors import Away
from fastcni.clients.pod_resources import devices_of, read_devices
from fastcni.kit.networks.api_objects import RESOURCE

grpc = pytest.importorskip("grpc", reason="pip install -e '.[test,test-kubernetes]'")


def number(value):
    found = b""
    while value > 0x7F:
        found += bytes([value & 0x7F | 0x80])
        value >>= 7
    return found + bytes([value])


def field(index, value):
    """Return an encoded field of protocol buffers. value: text, bytes or a number."""
    if isinstance(value, int):
        return number(index << 3) + number(value)
    data = value.encode() if isinstance(value, str) else value
    return number(index << 3 | 2) + number(len(data)) + data


def pod(name, *containers, namespace="shop"):
    """Return an encoded PodResources. containers: {resource: device ids} of each container. pod() adds CPUs and NUMA
    nodes, which the client must ignore."""
    found = field(1, name) + field(2, namespace)
    for devices in containers:
        one = field(1, "c") + field(3, b"\x01\x02\x03")
        for resource, ids in devices.items():
            numa_nodes = field(3, field(1, field(1, 300)))
            one += field(2, field(1, resource) + b"".join(field(2, it) for it in ids) + numa_nodes)
        found += field(3, one)
    return field(1, found)


@pytest.fixture
def kubelet(tmp_path, monkeypatch):
    """Return a function kubelet(answer) that serves the method List on a socket and returns the socket's path. answer:
    bytes, or a handler of grpcio."""
    path, servers = str(tmp_path / "kubelet.sock"), []
    monkeypatch.setattr(pod_resources, "SOCKET", path)

    def serve(answer):
        handler = grpc.unary_unary_rpc_method_handler(answer if callable(answer) else lambda request, context: answer)
        servers.append(grpc.server(futures.ThreadPoolExecutor(2)))
        servers[-1].add_generic_rpc_handlers([
            grpc.method_handlers_generic_handler("v1.PodResourcesLister", {"List": handler})])
        servers[-1].add_insecure_port(f"unix:{path}")
        servers[-1].start()
        return path

    yield serve
    for each in servers:
        each.stop(None).wait()


def test_the_devices_of_a_pod_are_those_of_all_its_containers(kubelet):
    path = kubelet(pod("other", {"a/x": ["dev9"]}) + pod("web", {"a/x": ["dev2", "dev1"], "a/y": ["dev3"]},
                                                         {"a/x": ["dev4"]})
                   + pod("web", {"a/x": ["dev8"]}, namespace="elsewhere"))
    assert devices_of("shop", "web", path) == {"a/x": {"dev1", "dev2", "dev4"}, "a/y": {"dev3"}}
    assert devices_of("shop", "lost", path) == {}


def test_an_answer_of_many_frames_is_read(kubelet):
    """The answer is longer than the window of a stream, 65,535 bytes, so the client has to send window updates."""
    many = [f"dev{index:05}" for index in range(40000)]
    assert devices_of("shop", "web", kubelet(pod("web", {"a/x": many})))["a/x"] == set(many)


def test_a_pod_without_devices_and_an_empty_node_have_none(kubelet):
    assert devices_of("shop", "web", kubelet(b"")) == {}
    assert read_devices(pod("web"), b"shop", b"web") == {}


def refuse(request, context):
    context.abort(grpc.StatusCode.PERMISSION_DENIED, "no")


@pytest.mark.parametrize("answer, why", [(refuse, "gRPC status 7"), (b"\x0a\xff", "sends no PodResources"),
                                         (b"\x0f", "wire type 7")])
def test_an_answer_that_is_none_is_said(kubelet, answer, why):
    with pytest.raises(Away, match=why):
        devices_of("shop", "web", kubelet(answer))


def test_a_kubelet_without_the_service_is_said(kubelet, monkeypatch):
    monkeypatch.setattr(pod_resources, "HEADERS", tuple(
        (name, "/v9.Other/List" if name == ":path" else value) for name, value in pod_resources.HEADERS))
    with pytest.raises(Away, match="gRPC status 12"):
        devices_of("shop", "web", kubelet(b""))


@pytest.mark.parametrize("sent, why", [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not speak gRPC|has closed"),
                                       (b"", "has closed the connection"), (None, "does not answer")])
def test_a_socket_that_answers_wrongly_or_never_is_said(tmp_path, monkeypatch, sent, why):
    monkeypatch.setattr(pod_resources, "TIMEOUT_S", 0.2 if sent is None else 30.0)
    path, ends = str(tmp_path / "kubelet.sock"), threading.Event()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()

        def answer():
            conn, _ = listener.accept()
            with conn:
                conn.recv(1 << 16)
                if sent is None:
                    ends.wait(30)
                else:
                    conn.sendall(sent)

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(Away, match=why):
            devices_of("shop", "web", path)
        ends.set()
        thread.join()


def test_a_missing_socket_is_said(tmp_path):
    with pytest.raises(Away, match="No such file"):
        devices_of("shop", "web", str(tmp_path / "none"))


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(message):
    try:
        read_devices(message, b"shop", b"web")
    except (ValueError, IndexError):
        return


@pytest.mark.parametrize("mode", ["API", "no h2", "no answer"])
def test_networks_get_their_devices_from_the_api_else_from_the_checkpoint(node, pod_netns, cluster, conf, kubelet,
                                                                          tmp_path, monkeypatch, mode):
    monkeypatch.setattr("fastcni.kit.networks.devices.CHECKPOINT", str(tmp_path / "checkpoint"))
    (tmp_path / "checkpoint").write_text(json.dumps({"Data": {"PodDeviceEntries": [
        {"PodUID": "uid-1", "ResourceName": "a/x", "DeviceIDs": {"-1": ["old"]}}]}}))
    (tmp_path / "acme").write_text(f'#!/bin/sh\ncat > {tmp_path}/$CNI_COMMAND\necho \'{{"cniVersion": "1.1.0"}}\'\n')
    (tmp_path / "acme").chmod(0o755)
    kubelet(refuse if mode == "no answer" else pod("web", {"a/x": ["dev1"]}))
    if mode == "no h2":
        for name in ("h2", "h2.connection"):
            monkeypatch.setitem(sys.modules, name, None)
    cluster.define({"cniVersion": "1.1.0", "name": "x", "type": "acme"}, annotations={RESOURCE: "a/x"})
    cluster.create_pod(**{NETWORKS: "x"})
    netns = pod_netns()
    reply = node.call("ADD", conf(binDir=str(tmp_path)), netns, env=args())
    assert reply.status == 0, reply.stdout
    assert json.loads((tmp_path / "ADD").read_text())["deviceID"] == ("dev1" if mode == "API" else "old")
    assert (b"devices are read from" in reply.stderr) == (mode != "API")
    node.delete(conf(binDir=str(tmp_path)), netns, env=args())
