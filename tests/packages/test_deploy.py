"""The files of deploy/: check the manifests by Kubernetes' schemas, run the scripts, and test the Python for nodes
without Python."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

yaml = pytest.importorskip("yaml", reason="pip install -e '.[test-packages]'")
kubernetes_validate = pytest.importorskip("kubernetes_validate", reason="pip install -e '.[test-packages]'")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
SUPPORTED = 3                           # Kubernetes supports its last three minor versions


def newest():
    """Return the newest minor versions of Kubernetes for which the validator has schemas."""
    schemas = Path(kubernetes_validate.__file__).parent / "kubernetes-json-schema"
    found = {tuple(map(int, found.groups())) for path in schemas.iterdir()
             if (found := re.match(r"v(\d+)\.(\d+)\.\d+-", path.name))}
    return [f"{major}.{minor}" for major, minor in sorted(found)[-SUPPORTED:]]


def documents():
    return {it["kind"]: it for it in yaml.safe_load_all((DEPLOY / "daemonset.yaml").read_text())}


@pytest.fixture(scope="module")
def pod():
    return documents()["DaemonSet"]["spec"]["template"]["spec"]


def test_the_manifest_that_removes_is_what_the_api_takes():
    manifest = yaml.safe_load((DEPLOY / "uninstall.yaml").read_text())
    for version in newest():
        kubernetes_validate.validate(manifest, version, strict=True)


@pytest.mark.parametrize("version", newest())
@pytest.mark.parametrize("kind", ["ServiceAccount", "ConfigMap", "DaemonSet"])
def test_the_manifest_is_what_the_api_takes(kind, version):
    kubernetes_validate.validate(documents()[kind], version, strict=True)


def test_the_validator_refuses_a_key_that_the_api_does_not_have():
    wrong = documents()["DaemonSet"]
    wrong["spec"]["template"]["spec"]["containers"][0]["volumeMount"] = []
    with pytest.raises(kubernetes_validate.ValidationError):
        kubernetes_validate.validate(wrong, newest()[-1], strict=True)


def test_containers_have_named_capabilities_and_are_not_privileged(pod):
    rights = {it["name"]: it["securityContext"] for it in pod["initContainers"] + pod["containers"]}
    assert {name: (it["privileged"], it["allowPrivilegeEscalation"], it["capabilities"]) for name, it in rights.items()
            } == {
        "install": (False, False, {"drop": ["ALL"], "add": ["DAC_OVERRIDE"]}),
        "server": (False, False, {"drop": ["ALL"], "add": ["NET_ADMIN", "NET_RAW", "SYS_ADMIN", "DAC_OVERRIDE"]})}
    assert not pod.get("hostPID") and not pod.get("hostIPC")


def test_each_mount_has_a_volume_and_node_paths_are_the_same_in_the_container(pod):
    volumes = {it["name"]: it for it in pod["volumes"]}
    mounts = [it for container in pod["initContainers"] + pod["containers"] for it in container["volumeMounts"]]
    assert {it["name"] for it in mounts} == volumes.keys()
    for it in mounts:
        if host := volumes[it["name"]].get("hostPath"):
            assert host["path"] == it["mountPath"]


@pytest.mark.parametrize("name", ["fastcni-node", "node-python.sh"])
def test_scripts_are_shell(name):
    subprocess.run(["sh", "-n", DEPLOY / name], check=True)
    if not shutil.which("shellcheck"):
        pytest.skip("sh -n only: no shellcheck")
    subprocess.run(["shellcheck", DEPLOY / name], check=True)


@pytest.mark.needs("root")
@pytest.mark.skipif(not (shutil.which("patchelf") and os.path.exists("/usr/lib/python3.11/os.py")),
                    reason="needs patchelf and Debian 12's Python")
def test_the_python_for_nodes_runs_in_an_empty_system(tmp_path):
    """The system has no C library, no loader and no other file. Plugins find the packages that the cluster's store
    needs in the Python for nodes."""
    where = tmp_path / "opt/fastcni/python"
    where.mkdir(parents=True)
    (tmp_path / "packages/urllib3").mkdir(parents=True)
    (tmp_path / "packages/urllib3/__init__.py").write_text("")
    subprocess.run(["sh", DEPLOY / "node-python.sh", where, tmp_path / "packages"], check=True,
                   env={"PATH": "/usr/bin:/bin"})
    (name,) = os.listdir(where)
    shutil.copy(ROOT / "fastcni/clients/site_packages.py", tmp_path)
    code = ("import sys, ssl, ctypes; print(sys.prefix); sys.path.append('/'); import site_packages; "
            "site_packages.make_importable(); import urllib3; assert urllib3.__file__.startswith(sys.prefix)")
    done = subprocess.run(["chroot", tmp_path, f"/opt/fastcni/python/{name}/bin/python3.11", "-ISB", "-c", code],
                          capture_output=True, text=True, check=False)
    assert done.stdout == f"/opt/fastcni/python/{name}\n", done.stderr
