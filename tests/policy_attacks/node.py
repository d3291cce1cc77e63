"""A node with a real agent process, pods that real plugin calls add, outside hosts, and policies in files or in the API
mock. Everything is removed at the end, also after Ctrl-C."""

import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

from policy_attacks import clusters
from policy_attacks.prober import Endpoint

from fastcni.kit import policies as agent_socket
from fastcni.spec.errors import CniError
from fastcni.testing.namespaces import Inside, run
from fastcni.testing.real_runtime import RealRuntime
from fastcni.testing.witnesses import set_sysctl

NAME = "here"                                               # the node's name
NODE, GATEWAY = ("192.0.2.1", "2001:db8::1"), ("192.0.2.9", "2001:db8::9")
OUTSIDE = ("198.51.100.7", "2001:db8:51::7", "203.0.113.5", "2001:db8:113::5")
METADATA = "169.254.169.254"
REMOTE = ("10.244.9.", "fd44:9::")                          # pods of another node
NETWORKS = {"bridge": (), "ptp": (), "bridge-full": ("portmap", "firewall"), "ptp-full": ("portmap", "firewall")}
SUBNETS = {name: (f"10.88.{number}.0/24", f"fd88:{number}::/64") for number, name in enumerate(NETWORKS, 1)}
READY_S, GONE_S = 60, 30
HOST_PORT = 8080
# Rules of another program. These rules set all bits of the packet mark except the bits of HTTP rules (policy/marks.py),
# so also the bit of egress rules. Conntrack keeps these marks for the connection's other packets.
MARKING = """
table inet marking {
    chain restore { type filter hook prerouting priority mangle; meta mark set ct mark or 0xf8ffffff; }
    chain before { type filter hook forward priority filter - 1; meta mark set meta mark or 0xf8ffffff; }
    chain save { type filter hook postrouting priority mangle; ct mark set meta mark and 0xf8ffffff; }
}
"""
PLURALS = {"Pod": "pods", "Namespace": "namespaces", "Node": "nodes", "NetworkPolicy": "networkpolicies",
           "ClusterNetworkPolicy": "clusternetworkpolicies.policy.networking.k8s.io"}


class Node:
    """The node. source: the agent reads policies from "files" or from the "api". pods: {key: added Pod}. netns: {key:
    the pod's namespace}."""

    def __init__(self, source):
        self.source, self.closing = source, contextlib.ExitStack()
        self.runtime, self.pods, self.netns, self.results = RealRuntime(), {}, {}, {}
        self.documents, self.api, self.agent, self.spare = {}, None, None, []

    def __enter__(self):
        with contextlib.ExitStack() as closing:
            self.directory = Path(tempfile.mkdtemp(prefix="fcni-policies-"))
            closing.callback(shutil.rmtree, self.directory, ignore_errors=True)
            self.name, self.outside = (self._namespace(closing, kind) for kind in ("host", "outside"))
            self.files = self.directory / "policies"
            self.files.mkdir()
            self.socket = self.directory / "state" / "policy.sock"
            closing.enter_context(Inside(self.name))
            self._wire()
            run("nft", "-f", "-", stdin=MARKING)
            if self.source == "api":
                from cluster.kubernetes.api_server import CLUSTER_POLICIES, Running, kubeconfig

                self.api = closing.enter_context(Running())
                self.api.do(lambda api: api.served.add(CLUSTER_POLICIES))
                self._write("kubeconfig", kubeconfig(self.api.url))
                self.api.do(lambda api: api.put("nodes", {
                    "metadata": {"name": NAME}, "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]}}))
            self._write("net-conf.json", json.dumps({"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}}))
            self._write("nodes.json", json.dumps({
                "network": {"Network": "10.244.0.0/16", "Backend": {"Type": "host-gw"}},
                "nodes": [{"name": NAME, "subnets": ["10.244.1.0/24"], "public": [NODE[0]]}]}))
            closing.callback(self._remove_pods)
            closing.callback(self.end_agent, signal.SIGKILL)
            self.closing = closing.pop_all()
        return self

    def __exit__(self, *_):
        self.closing.close()

    def _write(self, name, text):
        (self.directory / name).write_text(text)

    def _namespace(self, closing, kind):
        name = f"policies-{kind}-{uuid.uuid4().hex[:8]}"
        run("ip", "netns", "add", name)
        closing.callback(run, "ip", "netns", "del", name, check=False)
        with Inside(name):
            set_sysctl("net/ipv6/conf/default/accept_dad", "0")
            run("ip", "link", "set", "lo", "up")
        return name

    def _wire(self):
        """Connect the node with the outside hosts."""
        for name in ("net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding"):
            set_sysctl(name, "1")
        run("ip", "link", "add", "up0", "type", "veth", "peer", "ext0", "netns", self.outside)
        for link, addresses, netns in (("up0", NODE, self.name), ("ext0", GATEWAY, self.outside)):
            with Inside(netns):
                run("ip", "link", "set", link, "up")
                for address in addresses:
                    run("ip", "addr", "add", f"{address}/{64 if ':' in address else 24}", "dev", link)
        for gateway in GATEWAY:
            run("ip", *(["-6"] if ":" in gateway else []), "route", "add", "default", "via", gateway)
        remote = [f"{prefix}{number}" for prefix in REMOTE for number in (1, 2)]
        with Inside(self.outside):
            for address in (*OUTSIDE, METADATA, *remote):
                run("ip", "addr", "add", f"{address}/{128 if ':' in address else 32}", "dev", "lo")
            for gateway in NODE:
                run("ip", *(["-6"] if ":" in gateway else []), "route", "add", "default", "via", gateway)

    # -- the agent -----------------------------------------------------------------------------------------------------

    def start_agent(self, module="fastcni"):
        registry = (["--kubernetes", f"{self.directory}/kubeconfig", "--net-conf", f"{self.directory}/net-conf.json"]
                    if self.api else ["--nodes", f"{self.directory}/nodes.json"])
        words = [sys.executable, "-m", module, "agent", *registry, "--node-name", NAME, "--iface", "up0",
                 "--subnet-file", f"{self.directory}/subnet.env", "--conflist", "", "--no-ip-masq",
                 "--folder", f"{self.directory}/state", "--policies", "kubernetes" if self.api else str(self.files)]
        with open(self.directory / "log", "a") as log:
            self.agent = subprocess.Popen(words, stdout=log, stderr=log)
        self.await_agent()

    def await_agent(self):
        """Wait until the agent's answer says that the policies are in force."""
        until = time.monotonic() + READY_S
        while True:
            try:
                agent_socket.ask(str(self.socket), {"do": "status"})
                return
            except CniError as e:
                if time.monotonic() > until or self.agent.poll() is not None:
                    raise RuntimeError(f"the agent is not ready: {e}\n{self.log()[-3000:]}") from None
            time.sleep(0.02)

    def owns_table(self):
        """Return whether the kernel keeps the agent's table when another program flushes all tables, as Linux does
        since 6.9."""
        return "flags owner" in run("nft", "list", "table", "inet", "fastcni-policy", check=False)

    def end_agent(self, number=signal.SIGTERM):
        if self.agent:
            self.agent.send_signal(number)
            self.agent.wait(GONE_S)
            self.agent = None

    def log(self):
        return (self.directory / "log").read_text() if (self.directory / "log").exists() else ""

    # -- objects of the cluster
    # -----------------------------------------------------------------------------------------

    def put(self, document):
        """Add or replace an object of the cluster."""
        metadata = document["metadata"]
        key = document["kind"], metadata.get("namespace", ""), metadata["name"]
        if self.documents.get(key) == document:
            return
        self.documents[key] = document
        if self.api:
            self.api.do(lambda api: api.put(PLURALS[document["kind"]], document, metadata.get("namespace"),
                                            document["apiVersion"].rpartition("/")[2]))

    def drop(self, kind, namespace, name):
        """Remove an object of the cluster."""
        if (document := self.documents.pop((kind, namespace, name), None)) and self.api:
            self.api.do(lambda api: api.drop(PLURALS[kind], name, namespace or None,
                                             document["apiVersion"].rpartition("/")[2]))

    def drop_policy(self, document):
        metadata = document["metadata"]
        self.drop(document["kind"], metadata.get("namespace", ""), metadata["name"])

    def publish(self):
        """With files: write one file for each kind and namespace. With the API: do nothing, because the API mock
        already has each change."""
        if self.api:
            return
        wanted = {}
        for (kind, namespace, _), document in sorted(self.documents.items()):
            wanted.setdefault(f"{kind.lower()}-{namespace}.json", []).append(document)
        for name in [path.name for path in self.files.iterdir() if path.name not in wanted]:
            (self.files / name).unlink()
        for name, documents in wanted.items():
            text = json.dumps({"kind": "List", "items": documents})
            path = self.files / name
            if not path.exists() or path.read_text() != text:
                (self.files / f".{name}").write_text(text)
                (self.files / f".{name}").rename(path)

    # -- pods ----------------------------------------------------------------------------------------------------------

    def add_pod(self, pod, network, *, documented=True, host_port=0, plugins=None, container=""):
        """Add a pod by the plugins of a network, in a new namespace. Return the pod's Endpoint."""
        key = pod.key
        self.netns[key] = self.spare.pop() if self.spare else self._namespace(self.closing, "pod")
        if documented or self.api:
            self.put(clusters.pod_document(pod, NAME))
            self.publish()
        chain, container = plugins or self.chain(network), container or cid(pod)
        env = {"CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE={pod.namespace};K8S_POD_NAME={pod.name}"}
        mappings = [{"hostPort": host_port, "containerPort": 80, "protocol": each} for each in ("tcp", "udp")
                    ] if host_port else []
        given = {"runtimeConfig": {"labels": pod.labels, "portMappings": mappings}}
        result = None
        for conf in chain:
            result = self.runtime.ok("ADD", {**conf, **given, **({"prevResult": result} if result else {})},
                                     self.netns[key], cid=container, plugin=conf["type"], env=env)
        self.results[key] = chain, result, env, container
        pod.addresses = tuple(each["address"].partition("/")[0] for each in result["ips"])
        self.pods[key] = pod
        if self.api:
            self.put(clusters.pod_document(pod, NAME, podIP=pod.addresses[0],
                                           podIPs=[{"ip": each} for each in pod.addresses]))
        return Endpoint(key, self.netns[key], pod.addresses)

    def chain(self, network):
        """Return the configurations of a network's plugins, in order."""
        kind = network.partition("-")[0]
        common = {"cniVersion": "1.1.0", "name": network}
        first = {"bridge": {"bridge": f"br-{len(network)}", "isGateway": True, "isDefaultGateway": True}, "ptp": {
            "ipMasq": False}}[kind]
        ipam = {"type": "host-local", "dataDir": f"{self.directory}/networks",
                "ranges": [[{"subnet": each}] for each in SUBNETS[network]],
                "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}
        more = [{**common, "type": each} for each in NETWORKS[network]]
        return [{**common, "type": kind, **first, "ipam": ipam}, *more,
                {**common, "type": "policy", "agentSocketPath": str(self.socket)}]

    def begin_addresses_again(self):
        """Remove the record of the last allocated addresses, so that the next pod of a network gets the lowest free
        address."""
        for path in (self.directory / "networks").glob("*/last_reserved_ip.*"):
            path.unlink()

    def delete_pod(self, key, *, forget=True):
        """Call DEL of all plugins, the last one first. Keep the namespace for another pod."""
        pod = self.pods.pop(key)
        chain, result, env, container = self.results.pop(key)
        for conf in reversed(chain):
            self.runtime.ok("DEL", {**conf, "prevResult": result}, self.netns[key], cid=container,
                            plugin=conf["type"], env=env)
        self.spare.append(self.netns.pop(key))
        if forget:
            self.drop("Pod", pod.namespace, pod.name)
            self.publish()

    def _remove_pods(self):
        for key in list(self.pods):
            with contextlib.suppress(AssertionError):
                self.delete_pod(key)

    def forget_flows(self):
        subprocess.run(["conntrack", "-F"], capture_output=True, check=True)


def cid(pod):
    return f"c-{pod.namespace}-{pod.name}"

