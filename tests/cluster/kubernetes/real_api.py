"""Run a real kube-apiserver with etcd for tests, in the namespace of the test's thread. real-api-server.sh builds the
program."""

import json
import subprocess

from cluster.etcd import Etcd

from fastcni.clients.errors import Away
from fastcni.clients.kubernetes import Missing, open_api
from fastcni.testing.witnesses import eventually

PORT = 6443
START_S = 120                   # also on a busy machine
PATHS = {"Namespace": "/api/v1/namespaces", "Node": "/api/v1/nodes", "Pod": "/api/v1/namespaces/{}/pods",
         "ConfigMap": "/api/v1/namespaces/{}/configmaps", "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
         "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
         "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
         "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
         "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
         "DaemonSet": "/apis/apps/v1/namespaces/{}/daemonsets",
         "NetworkPolicy": "/apis/networking.k8s.io/v1/namespaces/{}/networkpolicies",
         "CustomResourceDefinition": "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"}


class RealApi:
    """`with RealApi(program, address, directory) as api:` runs a server at https://ADDRESS:6443 with RBAC. The server
    writes each request of a service account to its audit log. admin: an Api with all rights."""

    def __init__(self, program, address, directory):
        self.program, self.address, self.directory, self.process = program, address, directory, None
        self.etcd = Etcd()

    def __enter__(self):
        directory = self.directory
        directory.mkdir()
        (directory / "audit.log").touch()
        (directory / "tokens.csv").write_text('token,admin,1,"system:masters"')
        (directory / "audit.yaml").write_text(json.dumps({
            "apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"],
            "rules": [{"level": "Metadata", "userGroups": ["system:serviceaccounts"]}, {"level": "None"}]}))
        subprocess.run(["openssl", "genrsa", "-out", directory / "key.pem", "2048"], check=True, capture_output=True)
        self.etcd.__enter__()
        try:
            with open(directory / "log", "ab") as log:
                self.process = subprocess.Popen(self._command(), stdout=log, stderr=log, stdin=subprocess.DEVNULL)
            (directory / "kubeconfig").write_text(self._kubeconfig())
            self.admin = open_api(str(directory / "kubeconfig"))
            assert eventually(self._answers, START_S), (directory / "log").read_text()[-3000:]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.kill()
            self.process.wait()
        self.etcd.__exit__()

    def _command(self):
        directory = self.directory
        return [self.program, "--etcd-servers", self.etcd.endpoints[0], "--bind-address", self.address,
                "--secure-port", str(PORT), "--cert-dir", directory / "certs", "--token-auth-file",
                directory / "tokens.csv",
                "--service-account-key-file", directory / "key.pem", "--service-account-signing-key-file",
                directory / "key.pem", "--service-account-issuer", "https://issuer", "--authorization-mode", "RBAC",
                "--service-cluster-ip-range", "10.255.0.0/24", "--endpoint-reconciler-type", "none",
                "--disable-admission-plugins", "ServiceAccount,TaintNodesByCondition",
                "--audit-policy-file", directory / "audit.yaml", "--audit-log-path", directory / "audit.log"]

    def _kubeconfig(self):
        return json.dumps({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": f"https://{self.address}:{PORT}",
                                                   "insecure-skip-tls-verify": True}}],
            "users": [{"name": "u", "user": {"token": "token"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}]})

    def _answers(self):
        assert self.process.poll() is None, (self.directory / "log").read_text()[-3000:]
        try:
            return self.admin.get("/api/v1/namespaces/kube-system") and self.admin.get(
                "/apis/rbac.authorization.k8s.io/v1/clusterroles/cluster-admin")
        except Away:
            return False

    def create(self, document):
        """Create an object. Before, create the object's namespace if the namespace is missing."""
        namespace = document["metadata"].get("namespace", "")
        if namespace and self.admin.get(f"/api/v1/namespaces/{namespace}") is None:
            self.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        try:
            return self.admin.create(PATHS[document["kind"]].format(namespace), document)
        except Missing as e:
            raise AssertionError(document["kind"]) from e

    def pod_files(self, account, directory):
        """Write the files that a kubelet mounts into a pod of this service account of kube-system: token, CA and
        namespace."""
        directory.mkdir(parents=True)
        path = f"/api/v1/namespaces/kube-system/serviceaccounts/{account}/token"
        answer = self.admin._expect("POST", path, {
            "apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}})
        (directory / "token").write_text(answer["status"]["token"])
        (directory / "ca.crt").write_bytes((self.directory / "certs/apiserver.crt").read_bytes())
        (directory / "namespace").write_text("kube-system")

    def asked(self, account):
        """Return [(verb, group, resource, status)] of the completed requests of this service account of kube-system."""
        user, found = f"system:serviceaccount:kube-system:{account}", []
        for line in (self.directory / "audit.log").read_text().splitlines():
            event = json.loads(line)
            if event["user"]["username"] == user and event["stage"] == "ResponseComplete":
                it = event.get("objectRef", {})
                what = "/".join(filter(None, [it.get("resource", event["requestURI"]), it.get("subresource")]))
                found.append((event["verb"], it.get("apiGroup", ""), what, event["responseStatus"]["code"]))
        return found
