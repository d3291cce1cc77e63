"""Pods and network definitions in the mock of the Kubernetes API."""

import contextlib
import json
import socket
import threading

from cluster.kubernetes.api_server import kubeconfig
from cluster.proxy import Proxy

from fastcni.testing.witnesses import eventually

DEFINITIONS, STATUS = "network-attachment-definitions", "k8s.v1.cni.cncf.io/network-status"
NODE = "node-1"                 # the node on which the fixture `local` runs a server


class Cluster(Proxy):
    """The API mock behind a proxy that can fail or freeze. kubeconfig: the path of a kubeconfig with the proxy's
    address."""

    def __init__(self, mock, directory):
        super().__init__(int(mock.url.rpartition(":")[2]))
        self.mock, self.kubeconfig = mock, directory / "kubeconfig"
        self.away, self.thawed = False, threading.Event()
        self.thawed.set()

    def __enter__(self):
        super().__enter__()
        self.kubeconfig.write_text(kubeconfig(self.endpoint))
        return self

    def request(self, data):
        self.thawed.wait(60)
        return self.away

    def go(self):
        """Answer no request from now on, and end all watches."""
        self.away = True
        for each in self.open:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def come_back(self):
        self.away = False

    def define(self, conf, namespace="shop", **metadata):
        """Create or change a NetworkAttachmentDefinition. conf: None for a definition without a configuration."""
        text = conf if isinstance(conf, str) else json.dumps(conf) if conf else None
        name = metadata.pop("name", "") or conf["name"]
        self.mock.do(lambda api: api.put(f"{DEFINITIONS}.k8s.cni.cncf.io", {
            "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
            "metadata": {"name": name, "namespace": namespace, **metadata}, "spec": {"config": text} if text else {}},
            namespace))

    def undefine(self, name, namespace="shop"):
        self.mock.do(lambda api: api.drop(f"{DEFINITIONS}.k8s.cni.cncf.io", name, namespace))

    def create_pod(self, name="web", uid="uid-1", on=NODE, **annotations):
        self.mock.do(lambda api: api.put("pods", {
            "apiVersion": "v1", "kind": "Pod", "spec": {"nodeName": on}, "status": {},
            "metadata": {"name": name, "namespace": "shop", "uid": uid, "annotations": annotations}}, "shop"))

    def status(self, name="web"):
        """Return the networks in the pod's network status, or None if the pod has no network status."""
        def find(api):
            return next(it for key, it in api.stored.items() if (key[0].plural, key[2]) == ("pods", name))

        text = self.mock.do(find)["metadata"]["annotations"].get(STATUS)
        return json.loads(text) if text else None

    def log(self):
        """Return the requests since the last call of log(), without watches and lists."""
        def take(api):
            found = [(method, path) for method, path in api.log if "?watch" not in path and "limit=" not in path]
            api.log.clear()
            return found

        return self.mock.do(take)


def args(uid="uid-1", name="web"):
    return {"CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name};K8S_POD_UID={uid}"}


PATCH = [("PATCH", "/api/v1/namespaces/shop/pods/web/status?fieldManager=fastcni")]


def ready(warm, conf):
    """Start the watches that the server starts for a configuration file with `conf`. Wait for the watches' first
    lists."""
    warm.networks.configured = lambda: [conf]
    warm.networks.learn()
    source = next(iter(warm.networks.sources.values()))
    assert eventually(lambda: source.definitions.current and (source.pods.current or not source.pods_wanted))
    return source
