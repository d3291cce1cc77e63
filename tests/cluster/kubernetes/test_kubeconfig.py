"""Read kubeconfigs, and the service account files of a pod."""

import json
import ssl
import sys
import threading
from base64 import b64encode
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from cluster.etcd import USER, make_certificates
from cluster.kubernetes.api_server import kubeconfig

from fastcni.clients import kubeconfig as module
from fastcni.clients.errors import Away
from fastcni.clients.kubeconfig import in_cluster, read_kubeconfig
from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.kit.ipam.cluster.stores.kubernetes import find_access

SERVER = "https://192.0.2.1:6443"
PEM = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
DATA = b64encode(PEM.encode()).decode()


@pytest.fixture
def read(tmp_path):
    def read(**how):
        path = tmp_path / "kubeconfig"
        path.write_text(kubeconfig(SERVER, **how))
        return read_kubeconfig(str(path))

    return read


def test_a_token_is_sent_as_a_bearer(read):
    access = read(token="t")
    assert (access.server, access.headers(), access.verify, access.namespace) == (
        SERVER, {"Authorization": "Bearer t"}, True, "")


def test_it_is_yaml(tmp_path):
    path = tmp_path / "kubeconfig"
    path.write_text(f"""
apiVersion: v1
kind: Config
clusters:
- name: local
  cluster:
    server: https://[10.96.0.1]:443
    certificate-authority-data: {DATA}
users:
- name: whereabouts
  user:
    token: "abc"
contexts:
- name: whereabouts-context
  context:
    cluster: local
    user: whereabouts
    namespace: kube-system
current-context: whereabouts-context
""")
    access = read_kubeconfig(str(path))
    assert (access.server, access.token, access.namespace, access.ca) == (
        "https://[10.96.0.1]:443", "abc", "kube-system", PEM)


def test_json_needs_no_yaml_and_braces_may_be_yaml(read, tmp_path, monkeypatch):
    (tmp_path / "yaml").write_text("{clusters: [{name: c, cluster: {server: 'https://x'}}],"
                                   " contexts: [{name: c, context: {cluster: c}}], current-context: c}")
    assert read_kubeconfig(str(tmp_path / "yaml")).server == "https://x"
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert read().server == SERVER
    with pytest.raises(Away, match=r"PyYAML is missing: install fastcni\[cluster\]"):
        read_kubeconfig(str(tmp_path / "yaml"))


def test_files_are_relative_to_the_kubeconfig(read, tmp_path):
    access = read(cluster={"certificate-authority": "ca.crt"},
                  user={"client-certificate": "pki/node.crt", "client-key": "/etc/node.key"})
    assert (access.ca, access.cert, access.key) == (
        f"{tmp_path}/ca.crt", f"{tmp_path}/pki/node.crt", "/etc/node.key")
    assert access.headers() == {}


def test_data_counts_before_files(read):
    access = read(cluster={"certificate-authority": "ca.crt", "certificate-authority-data": DATA},
                  user={"client-certificate-data": DATA, "client-key-data": DATA})
    assert (access.ca, access.cert, access.key) == (PEM, PEM, PEM)


def test_the_name_in_the_certificate_and_whether_it_is_checked(read):
    access = read(cluster={"insecure-skip-tls-verify": True, "tls-server-name": "kubernetes"})
    assert (access.verify, access.server_name) == (False, "kubernetes")


def test_user_and_password(read):
    assert read(user={"username": "u", "password": "p"}).headers() == {"Authorization": "Basic dTpw"}


def test_a_context_can_be_named(tmp_path):
    document = json.loads(kubeconfig(SERVER))
    document["contexts"].append({"name": "other", "context": {"cluster": "cluster", "namespace": "n"}})
    (tmp_path / "kubeconfig").write_text(json.dumps(document))
    access = read_kubeconfig(str(tmp_path / "kubeconfig"), "other")
    assert (access.namespace, access.headers()) == ("n", {})
    with pytest.raises(Away, match="has no context 'third'"):
        read_kubeconfig(str(tmp_path / "kubeconfig"), "third")


@pytest.mark.parametrize("how, text", [
    ({"user": {"exec": {"command": "aws"}}}, "`exec`: a program for credentials is not supported; use a token"),
    ({"user": {"auth-provider": {"name": "oidc"}}}, "`auth-provider`: an auth provider is not supported"),
    ({"user": {"token": "t", "as": "admin"}}, "`as`: impersonation is not supported"),
    ({"cluster": {"proxy-url": "http://proxy"}}, "`proxy-url`: a proxy is not supported"),
    ({"cluster": {"server": "10.0.0.1"}}, "server: expected a URL, got '10.0.0.1'"),
    ({"cluster": {"certificate-authority-data": "!"}}, "certificate-authority-data is not base64 of a PEM text"),
    ({"user": {"client-certificate": "a"}}, "client-certificate and client-key: only one of them is set"),
    ({"user": {"token": 5}}, "token: expected a string, got int"),
    ({"context": {"cluster": "nowhere"}}, "has no cluster 'nowhere'"),
    ({"context": {"user": "nobody"}}, "has no user 'nobody'"),
])
def test_a_refusal_names_the_key(read, how, text):
    with pytest.raises(Away, match=r"^kubeconfig /.*/kubeconfig: ") as caught:
        read(**how)
    assert text in str(caught.value)


@pytest.mark.parametrize("text, what", [("[", "expected the node content"), ("- a", "is not a mapping"),
                                        ("{}", "names no context")])
def test_a_file_that_is_no_kubeconfig(tmp_path, text, what):
    (tmp_path / "kubeconfig").write_text(text)
    with pytest.raises(Away, match=what):
        read_kubeconfig(str(tmp_path / "kubeconfig"))


def test_a_missing_file_is_a_store_that_is_away(tmp_path):
    store = open_store({"type": "kubernetes", "kubeconfig": f"{tmp_path}/none"})
    with pytest.raises(Away, match=r"read the kubeconfig /.*/none: No such file or directory"):
        store.nodes()


def test_a_token_file_is_read_again_after_a_minute(read, tmp_path, monkeypatch):
    now = 1000.0
    monkeypatch.setattr(module, "monotonic", lambda: now)
    (tmp_path / "token").write_text("one\n")
    access = read(user={"tokenFile": "token", "token": "older"})
    assert access.headers() == {"Authorization": "Bearer one"}
    (tmp_path / "token").write_text("two\n")
    now += 59
    assert access.headers() == {"Authorization": "Bearer one"}
    now += 1
    assert access.headers() == {"Authorization": "Bearer two"}


def test_a_pod_has_files_and_variables(tmp_path):
    (tmp_path / "token").write_text("pod")
    (tmp_path / "namespace").write_text("kube-system\n")
    access = in_cluster(str(tmp_path), {b"KUBERNETES_SERVICE_HOST": b"fd00::1", b"KUBERNETES_SERVICE_PORT": b"6443"})
    assert (access.server, access.ca, access.namespace) == (
        "https://[fd00::1]:6443", f"{tmp_path}/ca.crt", "kube-system")
    assert access.headers() == {"Authorization": "Bearer pod"}


def test_outside_of_a_pod_a_kubeconfig_is_needed(tmp_path):
    with pytest.raises(Away, match="name a `kubeconfig`"):
        in_cluster(str(tmp_path), {})


def test_keys_of_the_configuration_count_before_the_kubeconfigs(read, tmp_path):
    read()
    access = find_access({"kubeconfig": f"{tmp_path}/kubeconfig", "k8s_api_root": "https://192.0.2.2",
                          "namespace": "net"})
    assert (access.server, access.namespace) == ("https://192.0.2.2", "net")


class Empty(BaseHTTPRequestHandler):
    """An API server without objects. It records the names in its clients' certificates."""

    names = None

    def do_GET(self):
        (name,) = [value for part in self.connection.getpeercert()["subject"] for key, value in part
                   if key == "commonName"]
        self.names.append(name)
        data = b'{"items": [], "metadata": {"resourceVersion": "1"}}'
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        """Log nothing."""


def test_a_client_certificate_of_the_kubeconfig_itself(tmp_path):
    make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=tmp_path / "ca.pem")
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server-key.pem")
    context.verify_mode = ssl.CERT_REQUIRED
    server = HTTPServer(("127.0.0.1", 0), type("Handler", (Empty,), {"names": []}))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        data = {name: b64encode((tmp_path / f"{name}.pem").read_bytes()).decode()
                for name in ("ca", "named", "named-key")}
        path = tmp_path / "kubeconfig"
        path.write_text(kubeconfig(f"https://127.0.0.1:{server.server_port}",
                                   cluster={"certificate-authority-data": data["ca"]},
                                   user={"client-certificate-data": data["named"],
                                         "client-key-data": data["named-key"]}))
        store = open_store({"type": "kubernetes", "kubeconfig": str(path)})
        assert store.blocks() == []
        store.close()
        assert server.RequestHandlerClass.names == [USER]
    finally:
        server.shutdown()
        thread.join(20)
        server.server_close()
