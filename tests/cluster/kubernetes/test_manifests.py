"""The manifests of deploy/: they match Kubernetes' schemas, their rights suffice for the store's requests, and their
script works."""

import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from cluster.kubernetes.api_server import ROOT, WHY, documents, kubeconfig

from fastcni.clients.errors import Away
from fastcni.clients.kubeconfig import read_kubeconfig
from fastcni.kit.ipam.cluster.contract import ASKED, HELD, KEPT, NODE_TTL_S, IPClaim, Use
from fastcni.kit.ipam.cluster.stores import open_store
from fastcni.kit.ipam.cluster.stores.kubernetes_objects import BASE, NODES, to_time
from fastcni.testing.witnesses import eventually

kubernetes_validate = pytest.importorskip("kubernetes_validate", reason=WHY)

SUPPORTED = 3                   # Kubernetes supports its last three minor versions
MANIFESTS = [it for name in ("cluster-ipam-crds", "cluster-ipam", "kubernetes-events", "networks", "agent",
                                              "egress-crd")
             for it in documents(f"{name}.yaml")]


def newest():
    schemas = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    found = {tuple(map(int, found.groups())) for path in schemas.iterdir()
             if (found := re.match(r"v(\d+)\.(\d+)\.\d+-", path.name))}
    return [f"{major}.{minor}" for major, minor in sorted(found)[-SUPPORTED:]]


@pytest.mark.parametrize("version", newest())
@pytest.mark.parametrize("manifest", MANIFESTS, ids=lambda it: f"{it['kind']}-{it['metadata']['name']}")
def test_the_manifests_are_what_the_api_takes(manifest, version):
    kubernetes_validate.validate(manifest, version, strict=True)


def unstructured(schema, path=""):
    """Yield each path at which a schema breaks the rules of structural schemas: there a type is missing, or any field
    is allowed."""
    if "type" not in schema:
        yield f"{path}: no type"
    for key in ("allOf", "anyOf", "oneOf", "not", "$ref", "additionalProperties", "patternProperties"):
        if key in schema:
            yield f"{path}: {key}"
    if schema.get("type") == "array" and "items" not in schema:
        yield f"{path}: no items"
    missing = set(schema.get("required", ())) - schema.get("properties", {}).keys()
    if missing:
        yield f"{path}: required {missing}"
    for key, part in schema.get("properties", {}).items():
        yield from unstructured(part, f"{path}.{key}")
    if "items" in schema:
        yield from unstructured(schema["items"], f"{path}[]")


@pytest.mark.parametrize("crd", documents("cluster-ipam-crds.yaml"), ids=lambda it: it["spec"]["names"]["kind"])
def test_the_schemas_are_structural_and_each_column_shows_a_field_of_them(crd):
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]
    assert list(unstructured(schema)) == []
    assert crd["metadata"]["name"] == f"{crd['spec']['names']['plural']}.{crd['spec']['group']}"
    for column in version["additionalPrinterColumns"]:
        if not column["jsonPath"].startswith(".metadata."):
            _, part, field = column["jsonPath"].split(".")
            assert field in schema["properties"][part]["properties"], column


def rules():
    """Return the RBAC rules of the nodes' service account. Add the Role's namespace to each rule of a Role."""
    for manifest in documents("cluster-ipam.yaml"):
        if manifest["kind"] in ("ClusterRole", "Role"):
            for rule in manifest["rules"]:
                yield rule | ({"namespace": manifest["metadata"]["namespace"]} if manifest["kind"] == "Role" else {})


def use_everything(store, past):
    """Call every method of a store, so that all branches of the methods run."""
    ip_claim = IPClaim("s", "10.0.0.70", "10.0.0.64/26", HELD, container="c", ifname="eth0", pod="ns/p", since=1.0)
    store.grid("s", {"4": 26})
    store.grid("s", {"4": 26, "6": 122})
    a, b = store.join("a", "boot"), store.join("b", "boot")
    store.keep_alive(a)
    store.history()
    (block,) = store.claim(a, [("s", "10.0.0.64/26")])
    store.write_uses(a, [Use("s", "10.0.0.64/26", "a", 1, "boot", [], 1.0)])
    store.uses()
    asked = ip_claim.from_dict(ip_claim.to_dict() | {"state": ASKED, "container": "d"})
    store.change_ip_claim(store.claim_address(b, asked), state=KEPT)
    assert store.give_back(block)
    store.release_ip_claim(store.ip_claim("s", "10.0.0.70"))
    assert store.give_back(store.share("s", "10.0.0.64/26"))
    store.api.patch(f"{BASE}/{NODES}/a/status", past)
    dead = store.declare_dead(next(node for node in store.nodes() if node.name == "a"))
    store.node_gone("a")
    store.forget(dead)


def test_the_nodes_account_may_do_what_the_store_needs_and_no_more(mock, tmp_path):
    (tmp_path / "kubeconfig").write_text(kubeconfig(mock.url))
    store = open_store({"type": "kubernetes", "kubeconfig": str(tmp_path / "kubeconfig")})
    past = {"status": {"heartbeat": to_time(time.time() - NODE_TTL_S - 1)}}
    mock.do(lambda api: setattr(api, "rules", list(rules())))
    mock.do(lambda api: api.put("nodes", {"metadata": {"name": "a"}}))
    watched = {("watch", "ipam.fastcni.dev", kind) for kind in ("ipnodes", "ipblocks", "ipclaims")}
    store.history()                     # as a server whose IPNode exists: creates no object
    use_everything(store, past)
    store.watch(lambda event: None, lambda: watched <= mock.do(lambda api: api.asked))
    granted = {(verb, group, what) for rule in rules() for verb in rule["verbs"] for group in rule["apiGroups"]
               for what in rule["resources"]}
    assert mock.do(lambda api: api.asked) == granted
    mock.do(lambda api: setattr(api, "rules", []))
    with pytest.raises(Away, match=r"status 403: cannot list ipblocks"):
        store.blocks()
    store.close()


def test_the_script_writes_a_kubeconfig_and_keeps_its_token_new(tmp_path):
    pod, cluster = tmp_path / "pod", tmp_path / "run/cluster"
    pod.mkdir()
    (pod / "token").write_text("token-1")
    (pod / "ca.crt").write_text("-----BEGIN CERTIFICATE-----\n")
    text = (ROOT / "deploy/fastcni-node").read_text()
    for line, new in (("pod_files=/var/run/secrets/kubernetes.io/serviceaccount", f"pod_files={pod}"),
                      ("cluster=/run/fastcni/cluster", f"cluster={cluster}"), ("TOKEN_S=20", "TOKEN_S=0.1")):
        assert f"\n{line}" in text
        text = text.replace(f"\n{line}", f"\n{new}")
    script = subprocess.Popen(["sh", "-c", text, "fastcni-node", "credentials"], stderr=subprocess.PIPE, env={
        "PATH": os.environ["PATH"], "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"})
    try:
        assert eventually((cluster / "kubeconfig").exists)
        access = read_kubeconfig(str(cluster / "kubeconfig"))
        assert access.server == "https://[fd00::1]:6443" and access.ca == str(cluster / "ca.crt")
        assert access.headers() == {"Authorization": "Bearer token-1"}
        assert {path.stat().st_mode & 0o077 for path in (cluster, *cluster.iterdir())} == {0}
        (pod / "token.new").write_text("token-2")
        (pod / "token.new").rename(pod / "token")
        assert eventually(lambda: (cluster / "token").read_text() == "token-2")
    finally:
        script.send_signal(signal.SIGTERM)
        _, errors = script.communicate(timeout=20)
    assert (script.returncode, errors) == (0, b"")
