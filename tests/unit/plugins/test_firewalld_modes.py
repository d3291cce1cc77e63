"""firewall with the backend firewalld: together with the reference plugin, as an installed file, and by the server."""

import json
import os
import select
import subprocess

import pytest
from conftest import PEER, needs_peer
from lab.firewalld import SOURCES, Chain, needs_firewalld, owned, set_timeout
from lab.node import cid_of, eventually
from stopping import stop
from unit.server.client import Server
from unit.server.local import Local

from fastcni.kernel import dbus
from fastcni.launcher.install import install
from fastcni.runtime.cache import Cache
from fastcni.runtime.records import RuntimeConf

pytestmark = needs_firewalld


@pytest.fixture
def chain(node, firewalld):
    return Chain(node, firewalld.env)


def run_plugin(path, command, conf, pod, env):
    """Run a plugin file. Return (exit status, document)."""
    env = {"CNI_COMMAND": command, "CNI_CONTAINERID": cid_of(pod), "CNI_NETNS": f"/run/netns/{pod}",
           "CNI_IFNAME": "eth0", "CNI_PATH": "/nowhere", "PATH": os.environ["PATH"], "FASTCNI_SOCKET": "", **env}
    done = subprocess.run([path], input=json.dumps(conf).encode(), env=env, stdout=subprocess.PIPE, timeout=30)
    return done.returncode, json.loads(done.stdout) if done.stdout else None


# -- side by side with the Go plugin -----------------------------------------------------------------------

@pytest.fixture
def go_plugin(chain):
    """Return a function go_plugin(command, conf) that runs the reference plugin and returns (exit status, document)."""
    def call(command, conf, pod="pod"):
        return run_plugin(f"{PEER}/firewall", command, conf, pod, chain.env)
    return call


@needs_peer
def test_go_plugin_adds_the_same_sources_and_returns_the_same_documents(chain, firewalld, go_plugin):
    conf = chain.at("10.22.0.2/24", "fd00:0:0:22::2/64", cniVersion="1.0.0")
    status, result = go_plugin("ADD", conf)
    made = firewalld.sources()
    assert status == 0
    assert go_plugin("DEL", conf)[0] == 0
    assert firewalld.sources() == set()
    assert {"dns": {}, **chain.ok("ADD", conf, "pod")} == result and firewalld.sources() == made != set()
    status, error = go_plugin("ADD", {**conf, "firewalldZone": "nowhere"})
    assert status == 1 and error["msg"] == chain.refused("ADD", {**conf, "firewalldZone": "nowhere"}, "pod")["msg"]


@needs_peer
@pytest.mark.parametrize("backend", ["firewalld", None])
def test_pod_of_the_go_plugin_is_checked_and_deleted(chain, firewalld, go_plugin, backend):
    conf = chain.at("10.22.0.2/24", "fd00:22::2/64", cniVersion="1.0.0", backend=backend)
    assert go_plugin("ADD", conf)[0] == 0
    assert firewalld.sources() == SOURCES
    assert owned() == set()
    chain.ok("CHECK", conf, "pod")
    chain.ok("DEL", conf, "pod")
    assert firewalld.sources() == set()


@needs_peer
def test_go_plugin_checks_and_deletes_our_pod_and_the_next_owner_replaces_its_records(chain, firewalld, go_plugin):
    conf = chain.at("10.22.0.2/24", "fd00:22::2/64", cniVersion="1.0.0")
    chain.ok("ADD", conf, "pod")
    assert go_plugin("CHECK", conf)[0] == go_plugin("DEL", conf)[0] == 0 and firewalld.sources() == set()
    chain.ok("ADD", conf, "next")
    chain.ok("DEL", conf, "next")
    assert firewalld.sources() == owned() == set()


# -- one-shot and warm -------------------------------------------------------------------------------------

def test_installed_plugin_contains_the_library(chain, firewalld, tmp_path, pod):
    """The installed plugin's Python has no site-packages directory in sys.path."""
    install(tmp_path / "bin", names=["firewall"])
    conf = chain.of(pod)
    for command, there in (("STATUS", set()), ("ADD", SOURCES), ("CHECK", SOURCES), ("DEL", set())):
        status, document = run_plugin(tmp_path / "bin" / "firewall", command, conf, pod, chain.env)
        assert status == 0, document
        assert firewalld.sources() == there


def test_server_uses_the_bus_of_its_environment(chain, firewalld, tmp_path, pod):
    conf = chain.of(pod)
    with Server(tmp_path, env=chain.env) as server:
        for command, there in (("STATUS", set()), ("ADD", SOURCES), ("CHECK", SOURCES), ("DEL", set())):
            server.ok(command, conf, pod)
            assert firewalld.sources() == there


@pytest.mark.parametrize("event", ["reload", "restart"])
def test_server_restores_the_sources_that_firewalld_lost(chain, firewalld, tmp_path, pod, event):
    """The server reads the pods' addresses in the runtime's result cache, as `fastcni restore` does."""
    conf, cache = chain.of(pod), Cache(tmp_path / "cache")
    network = {"cniVersion": "1.1.0", "name": conf["name"], "plugins": [chain.first, chain.conf()]}
    cache.write(conf["name"], json.dumps(network).encode(), RuntimeConf(cid_of(pod), f"/run/netns/{pod}", "eth0"),
                conf["prevResult"])
    with Server(tmp_path, "--cache-dir", tmp_path / "cache", env=chain.env) as server:
        server.ok("ADD", conf, pod)
        if event == "reload":
            firewalld.client("--reload")
        else:
            firewalld.stop()
            firewalld.start()
        assert eventually(lambda: firewalld.sources() == SOURCES), server.log_text()
        server.ok("CHECK", conf, pod)


def test_a_request_that_waits_for_firewalld_does_not_block_others(chain, firewalld, tmp_path, monkeypatch):
    """The server has one run token. A request that waits passes the token on."""
    monkeypatch.setenv(dbus.ADDRESS, chain.env[dbus.ADDRESS])
    set_timeout(monkeypatch, 2)
    stop(firewalld.process.pid)
    with Local(tmp_path, monkeypatch, busy=1) as server:
        waits = server.send("ADD", chain.at("10.22.0.2/24"), "pod")
        assert eventually(owned)                # the request has written the record and will call firewalld next
        server.ok("STATUS", chain.conf(type="loopback"))
        assert not select.select([waits.conn], [], [], 0)[0]            # the request has no answer yet
        assert waits.answer().document["code"] == 11
