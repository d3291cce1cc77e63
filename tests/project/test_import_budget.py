"""The modules that a one-shot plugin may import: the start of the process takes most of a request's time."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import fastcni
from fastcni.launcher.install import base_interpreter, checked_interpreter, install
from fastcni.plugins import TABLE

FORBIDDEN = {"orjson", "json", "re", "dataclasses", "typing", "ipaddress", "socket", "subprocess", "logging", "pathlib",
             "enum", "contextlib", "functools", "collections", "asyncio", "inspect", "binascii"}
ROOT = str(Path(fastcni.__file__).parent.parent)
# Import everything that a plugin of the table imports before its first request.
LOAD = """
import sys
sys.path.append({root!r})
import fastcni.handle
from fastcni import plugins
plugins.load({plugin!r})
print(*sys.modules)
"""
# Run a plugin file as Python runs a zipapp. When the process that answers ends, print the imported modules. The child
# that waits for the kernel ends later, and prints nothing.
RUN = """
import posix, sys, zipimport
parent, leave = posix.getpid(), posix._exit

def look_and_leave(status):
    if posix.getpid() == parent:
        posix.write(2, " ".join(sys.modules).encode())
    leave(status)

posix._exit = look_and_leave
sys.argv = [{path!r}]
exec(zipimport.zipimporter({path!r}).get_code("__main__"), {{"__name__": "__main__"}})
"""


def assert_cheap(modules):
    dear = {name for name in modules if name.split(".")[0] in FORBIDDEN}
    assert dear == set()


@pytest.mark.parametrize("plugin", TABLE)
def test_loading_a_plugin_loads_no_other_plugin_and_imports_nothing_expensive(plugin):
    code = LOAD.format(root=ROOT, plugin=plugin)
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    modules = done.stdout.split()
    assert {name for name in modules if name in TABLE.values()} == {TABLE[plugin]}
    assert_cheap(modules)


def test_the_public_contract_imports_nothing_expensive_and_has_its_names():
    code = (f"import sys\nsys.path.append({ROOT!r})\nfrom fastcni.plugin import *\n"
            "print(*sys.modules)")
    done = subprocess.run([sys.executable, "-I", "-S", "-c", code], capture_output=True, text=True, check=True)
    assert_cheap(done.stdout.split())


@pytest.fixture(scope="module")
def bin_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bin")
    install(directory)
    return directory


def modules_of_a_run(bin_dir, plugin, conf, **env):
    """Run one request of a plugin. Return (exit status, the document on stdout, the names in sys.modules at the
    process's exit)."""
    interpreter = checked_interpreter(base_interpreter())
    code = RUN.format(path=str(bin_dir / plugin))
    env = {"CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_PATH": str(bin_dir), "PATH": os.environ["PATH"]} | env
    done = subprocess.run([interpreter, "-I", "-S", "-c", code], env=env, capture_output=True, timeout=60,
                          input=json.dumps(conf).encode())
    return done.returncode, json.loads(done.stdout or "null"), done.stderr.decode().split()


def configuration(plugin, tmp_path, **keys):
    ipam = {"type": "static" if plugin == "static" else "host-local", "subnet": "10.22.0.0/16",
            "dataDir": str(tmp_path), "addresses": [{"address": "10.22.0.9/16"}], "routes": [{"dst": "0.0.0.0/0"}]}
    if plugin == "cluster":
        ipam = {"type": plugin, "range": "10.22.0.0/16", "dataDir": str(tmp_path / "cluster"),
                "store": {"type": "local", "path": str(tmp_path / "store")}}
    if plugin == "multus":
        keys |= {"cniDir": str(tmp_path / "multus"), "delegates": [
            {"type": "bridge", "name": name, "bridge": name, "ipam": ipam} for name in ("a", "b")]}
    return {"cniVersion": "1.0.0", "name": "net", "type": plugin, "ipam": ipam} | keys


@pytest.mark.parametrize("plugin", TABLE)
def test_a_refusal_imports_nothing_expensive(bin_dir, tmp_path, plugin):
    status, document, modules = modules_of_a_run(bin_dir, plugin, {}, CNI_COMMAND="ADD", CNI_NETNS="/nowhere")
    assert (status, document["code"]) == (1, 7)
    assert_cheap(modules)


@pytest.mark.needs("root")
@pytest.mark.parametrize("plugin, keys", [
    ("bridge", {}),
    ("bridge", {"isGateway": True, "ipMasq": True, "macspoofchk": True, "hairpinMode": True}),
    ("ptp", {}), ("ptp", {"ipMasq": True}), ("loopback", {}), ("host-local", {}), ("static", {}),
    ("cluster", {}), ("multus", {}),
    *(("portmap", {"backend": backend, "runtimeConfig": {"portMappings": [
        {"hostPort": 8080, "containerPort": 80, "protocol": "udp"}]}, "prevResult": {
            "ips": [{"address": "10.22.0.9/16"}]}}) for backend in ("nftables", "iptables")),
    *(("firewall", {"backend": backend, "prevResult": {"ips": [{"address": "10.22.0.9/16"}]}})
      for backend in ("nftables", "iptables", "")),
    pytest.param("tap", {"owner": 70001, "mtu": 1400}, marks=pytest.mark.needs("tun")),
])
def test_complete_requests_import_nothing_expensive(bin_dir, tmp_path, host_netns, pod_netns, plugin, keys):
    conf = configuration(plugin, tmp_path, **keys)
    netns = f"/run/netns/{pod_netns()}"
    status, result, modules = modules_of_a_run(bin_dir, plugin, conf, CNI_COMMAND="ADD", CNI_NETNS=netns)
    assert status == 0, result
    assert TABLE[plugin] in modules
    assert_cheap(modules)
    for command in ("CHECK", "DEL"):
        status, document, modules = modules_of_a_run(bin_dir, plugin, conf | {"prevResult": result},
                                                     CNI_COMMAND=command, CNI_NETNS=netns)
        assert status == 0, document
        assert_cheap(modules)


@pytest.mark.parametrize("log", ["", "journald", "/dev/null"])
def test_the_log_is_imported_only_if_it_is_configured(bin_dir, tmp_path, log):
    conf = configuration("host-local", tmp_path)
    status, _, modules = modules_of_a_run(bin_dir, "host-local", conf, CNI_COMMAND="DEL", FASTCNI_LOG=log)
    assert status == 0 and ("fastcni.kit.call.request_log" in modules) is bool(log)
    assert_cheap(modules)


def test_the_log_of_the_server_and_of_the_agent_imports_nothing_expensive():
    """Once, the log imported asyncio and rich, which cost each server 64 ms and 8 MB."""
    code = "import sys, fastcni.daemon.log\nprint({'asyncio', 'rich', 'logging', 'dataclasses'} & {*sys.modules})"
    assert subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout == "set()\n"
