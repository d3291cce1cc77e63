"""Cluster IPAM, the agent, policies and the image's script with a real API server, RBAC and the manifests of deploy/.

real-api-server.sh builds a kube-apiserver and runs these tests. They are skipped unless FASTCNI_TEST_KUBE_APISERVER
names the program.
"""

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest
from cluster.kubernetes.api_server import ROOT, documents
from cluster.kubernetes.apply_crds import established
from cluster.kubernetes.real_api import PORT, RealApi
from unit.dhcp.process import ok

from fastcni.agent.policy.sources import events
from fastcni.clients.errors import Away
from fastcni.clients.kubernetes import open_api
from fastcni.launcher.install import install
from fastcni.testing.namespaces import ip, run
from fastcni.testing.witnesses import eventually

PROGRAM = os.environ.get("FASTCNI_TEST_KUBE_APISERVER", "")
pytestmark = [pytest.mark.needs("root"),
              pytest.mark.skipif(not PROGRAM, reason="needs a kube-apiserver: real-api-server.sh")]
SCRIPT = ROOT / "deploy/fastcni-node"
HOST = "192.0.2.254"
NODES = "/api/v1/nodes"


@pytest.fixture
def api(host_netns, tmp_path):
    """Yield an API server on the link `wire` of the test's namespace. It has the objects of all manifests of
    deploy/."""
    ip("link", "add", "wire", "up", "type", "bridge")
    ip("addr", "add", f"{HOST}/24", "dev", "wire")
    with RealApi(PROGRAM, HOST, tmp_path / "api") as found:
        for name in ("cluster-ipam-crds", "cluster-ipam", "kubernetes-events", "agent", "daemonset", "uninstall"):
            for document in documents(f"{name}.yaml"):
                found.create(document)
                if document["kind"] == "CustomResourceDefinition":
                    assert eventually(lambda name=document["metadata"]["name"]: established(found.admin, name))
        yield found


def environment(**more):
    """Return the environment of a container of the image, with the variables of `more`."""
    return {**os.environ, "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
            "KUBERNETES_SERVICE_HOST": HOST, "KUBERNETES_SERVICE_PORT": str(PORT), **more}


def started(words, log, **named):
    with open(log, "ab") as file:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=file, stderr=file, **named)


def ended(*processes):
    for each in processes:
        each.send_signal(signal.SIGTERM)
    return [each.wait(60) for each in processes]


# Cluster IPAM ----------------------------------------------------------------------------------------

@pytest.fixture
def credentials(api, tmp_path):
    """Return the kubeconfig that `fastcni-node credentials` writes on a node."""
    api.pod_files("fastcni-cluster-ipam", tmp_path / "pod")
    text = SCRIPT.read_text()
    for line, new in (("pod_files=/var/run/secrets/kubernetes.io/serviceaccount", f"pod_files={tmp_path}/pod"),
                      ("cluster=/run/fastcni/cluster", f"cluster={tmp_path}/cluster")):
        assert f"\n{line}" in text
        text = text.replace(f"\n{line}", f"\n{new}")
    script = started(["sh", "-c", text, "fastcni-node", "credentials"], tmp_path / "script.log", env=environment())
    try:
        assert eventually((tmp_path / "cluster/kubeconfig").exists)
        yield str(tmp_path / "cluster/kubeconfig")
    finally:
        assert ended(script) == [0]


@pytest.mark.parametrize("warm", [False, True], ids=["one-shot", "warm"])
def test_cluster_wide_addresses_with_the_rights_and_the_credentials_of_deploy(api, credentials, pod_netns, tmp_path,
                                                                              warm):
    """docs/ipam.md states these numbers of requests."""
    install(tmp_path / "bin", names=["cluster"])
    socket = tmp_path / "s/warm.sock" if warm else ""
    conf = {"cniVersion": "1.0.0", "name": "shared", "type": "bridge", "ipam": {
        "type": "cluster", "range": "10.20.0.0/16", "block_size": 30, "node_name": "n1",
        "dataDir": str(tmp_path / "data"), "store": {"type": "kubernetes", "kubeconfig": credentials}}}
    api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}})
    server = warm and started([sys.executable, "-m", "fastcni", "serve", "--socket", socket, "--cache-dir",
                               tmp_path / "cache"], tmp_path / "server.log")
    pod, counts, given = f"/run/netns/{pod_netns()}", [], set()

    def call(command, number):
        before = len(api.asked("fastcni-cluster-ipam"))
        document = ok(command, conf, pod, plugin=f"{tmp_path}/bin/cluster", cid=f"c{number}", CNI_PATH=str(tmp_path),
                      FASTCNI_SOCKET=str(socket))
        counts.append((command, len(api.asked("fastcni-cluster-ipam")) - before))
        return document

    try:
        assert not warm or eventually(socket.exists, 30)
        for number in range(10):
            given |= {it["address"] for it in call("ADD", number)["ips"]}
        assert len(given) == 10
        for number in range(10):
            call("DEL", number)
    finally:
        if server:
            ended(server)
    asked = api.asked("fastcni-cluster-ipam")
    assert [it for it in asked if it[3] == 403] == []
    if not warm:                                # with a server, the requests do not belong to one ADD
        adds = [count for command, count in counts if command == "ADD"]
        # Two ADDs claim another block of 4 addresses
        assert adds[0] <= 9 and sum(adds[1:]) <= 6 and adds.count(0) == 7, counts
        assert not any(count for command, count in counts if command == "DEL")


# The agent and policies ------------------------------------------------------------------------------

class Node:
    """A node: a network namespace with eth0 on the wire. The image's script runs the agent in a mount namespace with
    separate /run and /var/lib."""

    def __init__(self, api, number, netns, directory):
        self.api, self.name, self.netns, self.pods = api, f"n{number}", netns, {}
        self.directory = directory / self.name
        ip("link", "add", f"port{number}", "master", "wire", "up", "type", "veth", "peer", "eth0", "netns", netns)
        ip("addr", "add", f"192.0.2.{number}/24", "dev", "eth0", netns=netns)
        for link in ("lo", "eth0"):
            ip("link", "set", link, "up", netns=netns)
        ip("route", "add", "default", "via", HOST, netns=netns)
        api.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": self.name},
                    "spec": {"podCIDR": f"10.244.{number}.0/24", "podCIDRs": [f"10.244.{number}.0/24"]}})
        api.pod_files("fastcni-agent", self.directory / "run/secrets/kubernetes.io/serviceaccount")
        (self.directory / "run/netns").mkdir()
        (self.directory / "lib").mkdir()
        (net_conf,) = (it for it in documents("agent.yaml") if it["kind"] == "ConfigMap")
        (self.directory / "net-conf.json").write_text(net_conf["data"]["net-conf.json"])

    def start(self):
        mounts = (f"mount --rbind /run/netns {self.directory}/run/netns && "
                  f"mount --bind {self.directory}/lib /var/lib && "
                  f"mount --rbind {self.directory}/run /run && exec sh {SCRIPT} agent --policies kubernetes")
        words = ["ip", "netns", "exec", self.netns, "unshare", "--mount", "--propagation", "slave", "sh", "-c", mounts]
        self.process = started(words, self.directory / "log", env=environment(
            NODE_NAME=self.name, FLANNELD_IFACE="eth0", FLANNELD_NET_CONFIG_PATH=f"{self.directory}/net-conf.json"))

    def log(self):
        return (self.directory / "log").read_text()

    def await_ready(self):
        assert eventually((self.directory / "run/flannel/subnet.env").exists, 60), self.log()

    def call(self, command, name, netns, bin_dir):
        """Call the plugins of a chain as a runtime does: the network for several nodes in docs/kubernetes.md, and
        `policy`."""
        conf = {"cniVersion": "1.0.0", "name": "k8s-pod-network"}
        plugins = [{"type": "flannel", "dataDir": f"{self.directory}/flannel",
                    "delegate": {"hairpinMode": True, "isDefaultGateway": True},
                    "ipam": {"type": "host-local", "dataDir": f"{self.directory}/networks"}}, {"type": "policy"}]
        result = None
        for plugin in plugins if command == "ADD" else reversed(plugins):
            document = conf | plugin | ({"prevResult": result} if result else {})
            words = ["nsenter", "-t", str(self.process.pid), "-m", "-n", f"{bin_dir}/{plugin['type']}"]
            done = subprocess.run(words, input=json.dumps(document), capture_output=True, text=True, timeout=60, env={
                **os.environ, "FASTCNI_SOCKET": "", "CNI_COMMAND": command, "CNI_CONTAINERID": name,
                "CNI_NETNS": f"/run/netns/{netns}", "CNI_IFNAME": "eth0", "CNI_PATH": str(bin_dir),
                "CNI_ARGS": f"IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME={name}"})
            assert done.returncode == 0, (done.stdout, done.stderr, self.log())
            result = json.loads(done.stdout) if done.stdout else None
        return result

    def pod(self, name, netns, bin_dir):
        """Make the Pod object as the scheduler does, then the pod's network, then write the Pod's status as a kubelet
        does."""
        self.api.create({"apiVersion": "v1", "kind": "Pod", "metadata": {
            "name": name, "namespace": "shop", "labels": {"app": name}}, "spec": {
                "nodeName": self.name, "containers": [{"name": "c", "image": "none"}]}})
        address = self.call("ADD", name, netns, bin_dir)["ips"][0]["address"].partition("/")[0]
        self.api.admin.patch_by_keys(f"/api/v1/namespaces/shop/pods/{name}/status", {
            "status": {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}]}})
        self.pods[name] = netns
        return address


@pytest.fixture
def cluster(api, pod_netns, tmp_path):
    nodes = []
    try:
        for number in (1, 2):
            nodes.append(Node(api, number, pod_netns(), tmp_path))
            nodes[-1].start()
        for node in nodes:
            node.await_ready()
        yield nodes
    finally:
        ended(*(node.process for node in nodes))


def reaches(netns, address):
    return " 0% packet loss" in run("ping", "-c1", "-W1", "-q", address, check=False, netns=netns)


def allowed(name, labels):
    return {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {
        "name": name, "namespace": "shop"}, "spec": {"podSelector": {"matchLabels": {"app": "db"}}, "ingress": [
            {"from": [{"podSelector": {"matchLabels": {"app": label}}}]} for label in labels]}}


def test_an_agent_outside_of_a_pod_renews_its_token_as_the_page_says(api, tmp_path):
    """The test uses the kubeconfig and the rights that docs/cluster.md shows."""
    page = (ROOT / "docs/cluster.md").read_text()
    for words in ("--verb create", "--resource serviceaccounts/token --resource-name fastcni-agent"):
        assert words in page
    metadata = {"name": "fastcni-agent-token", "namespace": "kube-system"}
    group = "rbac.authorization.k8s.io"
    api.create({"apiVersion": f"{group}/v1", "kind": "Role", "metadata": metadata, "rules": [{
        "apiGroups": [""], "resources": ["serviceaccounts/token"], "resourceNames": ["fastcni-agent"],
        "verbs": ["create"]}]})
    api.create({"apiVersion": f"{group}/v1", "kind": "RoleBinding", "metadata": metadata,
                "roleRef": {"apiGroup": group, "kind": "Role", "name": "fastcni-agent-token"},
                "subjects": [{"kind": "ServiceAccount", "name": "fastcni-agent", "namespace": "kube-system"}]})
    api.pod_files("fastcni-agent", tmp_path / "node")
    kubeconfig = page[page.index("       apiVersion: v1"):page.index("3. Renew the token")]
    (tmp_path / "node/kubeconfig").write_text(textwrap.dedent(kubeconfig).replace("192.0.2.10", HOST))
    own = open_api(str(tmp_path / "node/kubeconfig"))
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 3600}}
    path = "/api/v1/namespaces/kube-system/serviceaccounts/{}/token"
    answer = own._expect("POST", path.format("fastcni-agent"), request)
    with pytest.raises(Away, match="403"):
        own._expect("POST", path.format("fastcni-cluster-ipam"), request)
    own.close()
    (tmp_path / "node/token").write_text(answer["status"]["token"])
    again = open_api(str(tmp_path / "node/kubeconfig"))
    assert again.get(NODES)["kind"] == "NodeList"
    again.close()


def write_event(api, directory):
    """Write an Event about an unreadable policy, with the agent's rights. A real API server does not store such a
    policy."""
    api.pod_files("fastcni-agent", directory)
    (directory / "kubeconfig").write_text(json.dumps({
        "clusters": [{"name": "c", "cluster": {"server": f"https://{HOST}:{PORT}",
                                               "certificate-authority": f"{directory}/ca.crt"}}],
        "users": [{"name": "u", "user": {"tokenFile": f"{directory}/token"}}], "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]}))
    own = open_api(str(directory / "kubeconfig"))
    metadata = {"name": "from-web", "namespace": "shop"}
    own.create(events.PATH.format(**metadata), events.document("n1", "NetworkPolicy", metadata, "spec: is no object"))
    own.close()


def test_pods_of_two_nodes_reach_each_other_as_policies_allow(api, cluster, pod_netns, tmp_path):
    install(tmp_path / "bin", names=["flannel", "bridge", "host-local", "policy"])
    one, two = cluster
    api.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop"}})
    web, db = pod_netns(), pod_netns()
    one.pod("web", web, tmp_path / "bin")
    target = two.pod("db", db, tmp_path / "bin")
    assert eventually(lambda: reaches(web, target), 30), (one.log(), two.log())
    api.create(allowed("closed", []))
    assert eventually(lambda: not reaches(web, target), 30), two.log()
    api.create(allowed("from-web", ["web"]))
    assert eventually(lambda: reaches(web, target), 30), two.log()
    for node in cluster:
        conditions = {it["type"]: it["status"] for it in api.admin.get(f"{NODES}/{node.name}")["status"]["conditions"]}
        assert conditions["NetworkUnavailable"] == "False"
    note = "flannel.alpha.coreos.com/backend-data"
    before = api.admin.get(f"{NODES}/n2")["metadata"]["annotations"][note]
    api.admin.patch_by_keys(f"{NODES}/n2", {"metadata": {"annotations": {note: "["}}})
    assert eventually(lambda: api.admin.get(f"{NODES}/n2")["metadata"]["annotations"][note] == before), two.log()
    assert eventually(lambda: reaches(web, target), 30)
    one.call("DEL", "web", web, tmp_path / "bin")
    two.call("DEL", "db", db, tmp_path / "bin")
    assert ended(*(node.process for node in cluster)) == [0, 0]
    write_event(api, tmp_path / "event")
    asked = api.asked("fastcni-agent")
    assert [it for it in asked if it[3] == 403] == []
    rules = [rule for it in documents("agent.yaml") if it["kind"] in ("ClusterRole", "Role") for rule in it["rules"]]
    granted = {(verb, group, what) for rule in rules for verb in rule["verbs"] for group in rule["apiGroups"]
               for what in rule["resources"]
               # This server lacks their CRDs
               if what not in ("clusternetworkpolicies", "ciliumnetworkpolicies", "egressaddresses")}
    claims = {(verb, "coordination.k8s.io", "leases") for verb in ("create", "patch")}          # for egress addresses
    assert granted - claims == {it[:3] for it in asked if not it[2].startswith("/")}
