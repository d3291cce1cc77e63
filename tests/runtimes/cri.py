"""A client of the Container Runtime Interface that makes pods and containers as kubelet does."""

import json
import re
import uuid

import grpc
from runtimes import image

messages, services = grpc.protos_and_services("runtimes/cri.proto")
# If containerd is killed while it makes a snapshot, it may leave the snapshot's directory. The next pod's snapshot has
# the same number, so this pod fails and containerd removes the directory. kubelet tries again, too.
LEFT_SNAPSHOT = re.compile(r"failed to rename: .*/snapshots/\d+: file exists")
LIMIT_S = 120           # for one call, on a busy machine


class Cri:
    """`with Cri(path) as cri:` connects to the runtime's socket."""

    def __init__(self, path):
        self.channel = grpc.insecure_channel(f"unix://{path}", [("grpc.max_reconnect_backoff_ms", 100)])
        self.stub = services.RuntimeServiceStub(self.channel)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.channel.close()

    def answers(self):
        """Return whether the runtime answers a request."""
        try:
            return bool(self.conditions())
        except grpc.RpcError:
            return False

    def network(self):
        """Return the name of the pod network that the runtime has read from the conflist."""
        info = self.stub.Status(messages.StatusRequest(verbose=True), timeout=LIMIT_S).info
        networks = (json.loads(info["cniconfig"]) or {}).get("Networks") or ()
        return next((it["Config"]["Name"] for it in networks if it["IFName"] == "eth0"), "")

    def conditions(self):
        """Return {condition: (status, message)} for the conditions "RuntimeReady" and "NetworkReady"."""
        status = self.stub.Status(messages.StatusRequest(), timeout=LIMIT_S).status
        return {it.type: (it.status, it.message) for it in status.conditions}

    def pods(self):
        """Return the ids of all pods."""
        return [it.id for it in self.stub.ListPodSandbox(messages.Empty(), timeout=LIMIT_S).items]

    def remove_all(self, but=""):
        """Stop and remove all pods except the pod with the id `but`."""
        for pod in self.pods():
            if pod == but:
                continue
            self.stub.StopPodSandbox(messages.PodSandboxId(pod_sandbox_id=pod), timeout=LIMIT_S)
            self.stub.RemovePodSandbox(messages.PodSandboxId(pod_sandbox_id=pod), timeout=LIMIT_S)


class Pod:
    """`with Pod(cri, "web", ports={8080: 80}) as pod:` makes a pod, and removes it at the end. Raises grpc.RpcError."""

    def __init__(self, cri, name, ports=None, annotations=None):
        self.cri = cri
        self.config = messages.PodSandboxConfig(
            metadata=messages.PodSandboxMetadata(name=name, uid=uuid.uuid4().hex, namespace="tests"),
            hostname=name, annotations=annotations or {},
            port_mappings=[messages.PortMapping(host_port=host, container_port=inside)
                           for host, inside in (ports or {}).items()])

    def __enter__(self):
        request = messages.RunPodSandboxRequest(config=self.config)
        try:
            self.id = self.cri.stub.RunPodSandbox(request, timeout=LIMIT_S)
        except grpc.RpcError as e:
            if not LEFT_SNAPSHOT.search(e.details()):
                raise
            self.id = self.cri.stub.RunPodSandbox(request, timeout=LIMIT_S)
        return self

    def __exit__(self, *_):
        self.stop()
        self.cri.stub.RemovePodSandbox(self.id, timeout=LIMIT_S)

    def stop(self):
        self.cri.stub.StopPodSandbox(self.id, timeout=LIMIT_S)

    def addresses(self):
        """Return the pod's addresses, the first family first."""
        network = self.cri.stub.PodSandboxStatus(self.id, timeout=LIMIT_S).status.network
        return [network.ip, *(it.ip for it in network.additional_ips)]

    def start(self, *command):
        """Start a container of the test image in the pod."""
        config = messages.ContainerConfig(metadata=messages.ContainerMetadata(name="main"),
                                          image=messages.ImageSpec(image=image.NAME), command=command)
        container = self.cri.stub.CreateContainer(messages.CreateContainerRequest(
            pod_sandbox_id=self.id.pod_sandbox_id, config=config, sandbox_config=self.config), timeout=LIMIT_S)
        self.cri.stub.StartContainer(container, timeout=LIMIT_S)
