"""Run the Kubernetes API as the registry of a simulation: the tests' mock, or a real API server with an etcd."""

import json
import os
import subprocess
import sys
from pathlib import Path

from cluster_nodes import Etcd, free_ports
from simulate.addresses import AGENT, NETWORK, subnet_of
from simulate.processes import Process

from fastcni.clients.kubernetes import open_api

ROOT = Path(__file__).parents[2]
PATHS = os.pathsep.join(map(str, (ROOT / "benchmarks", ROOT / "tests")))
NODES, AGENT_NODE = "/api/v1/nodes", "agent"
TOKEN = "token"                 # the administrator's token
NET_CONF = json.dumps({"Network": str(NETWORK), "Backend": {"Type": "vxlan"}})
FLAGS = ("--authorization-mode=RBAC", "--service-account-issuer=https://issuer",
         "--service-cluster-ip-range=10.255.0.0/24", "--endpoint-reconciler-type=none", "--bind-address=127.0.0.1",
         f"--advertise-address={AGENT}")        # without this option the API server needs a default route


class Mock:
    """A process that runs the mock of the Kubernetes API (tests/cluster/kubernetes/api_server.py)."""

    def __init__(self, directory):
        self.directory = directory

    def __enter__(self):
        self.process = Process([sys.executable, "-m", "simulate.kubernetes_mock"], self.directory / "mock.log",
                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": PATHS})
        self.process.__enter__()
        url = self.process.popen.stdout.readline().strip()
        if not url:
            self.process.__exit__()
            raise SystemExit(f"the mock of the API server does not start: {self.process.tail()}")
        self.parts = [self.process]
        self.publish(url)
        return self

    def __exit__(self, *error):
        self.process.__exit__(*error)

    def publish(self, url):
        """Write the files that the agent and the server need, and create the Node object of the real agent."""
        kubeconfig, net_conf = self.directory / "kubeconfig", self.directory / "net-conf.json"
        kubeconfig.write_text(json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": url, "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}))
        net_conf.write_text(NET_CONF)
        self.store = {"type": "kubernetes", "kubeconfig": str(kubeconfig)}
        self.agent_options = ["--kubernetes", kubeconfig, "--net-conf", net_conf, "--node-name", AGENT_NODE]
        scheme, _, place = url.partition("://")
        self.nodes_options = ["kubernetes", scheme, *place.split(":"), TOKEN]
        self.make_ready(str(kubeconfig))
        cidr = str(subnet_of(-1))
        api = open_api(str(kubeconfig))
        api.create(NODES, {"apiVersion": "v1", "kind": "Node", "metadata": {"name": AGENT_NODE},
                           "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
                           "status": {"addresses": [{"type": "InternalIP", "address": str(AGENT)}]}})
        api.close()

    def make_ready(self, kubeconfig):
        """Wait until the API server answers. The mock answers immediately, and has the CRDs."""

    def cpu_s(self):
        return sum(part.cpu_s() for part in self.parts)

    def memory_mb(self):
        return sum(part.memory_mb() for part in self.parts)


class ApiServer(Mock):
    """A kube-apiserver and an etcd. tests/cluster/kubernetes/real-api-server.sh can build the kube-apiserver."""

    def __init__(self, program, directory):
        super().__init__(directory)
        self.program, self.etcd = program, Etcd(directory=directory)

    def __enter__(self):
        key, tokens, (port,) = self.directory / "key.pem", self.directory / "tokens.csv", free_ports(1)
        tokens.write_text(f'{TOKEN},admin,1,"system:masters"\n')
        subprocess.run(["openssl", "genrsa", "-out", key, "2048"], check=True, stderr=subprocess.DEVNULL)
        self.etcd.__enter__()
        self.process = Process(
            [self.program, *FLAGS, f"--secure-port={port}", f"--etcd-servers={self.etcd.url}",
             f"--cert-dir={self.directory}/certs", f"--service-account-key-file={key}",
             f"--service-account-signing-key-file={key}", f"--token-auth-file={tokens}"], self.directory / "api.log")
        self.parts = [self.process, Started(self.etcd.process)]
        try:
            self.publish(f"https://127.0.0.1:{port}")
        except BaseException:           # also after an interrupt
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        super().__exit__(*error)
        self.etcd.__exit__(*error)

    def make_ready(self, kubeconfig):
        done = subprocess.run([sys.executable, "-m", "cluster.kubernetes.apply_crds", kubeconfig], check=False,
                              env={**os.environ, "PYTHONPATH": PATHS})
        if done.returncode:
            raise SystemExit(f"the API server does not start: {self.process.tail()}")


class Started(Process):
    """A Process that another object starts and ends."""

    def __init__(self, popen):
        self.popen = popen
