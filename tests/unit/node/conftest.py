"""Fixtures for tests of fastcni.node: a node that consists of directories, and a node in a network namespace."""

import json
from pathlib import Path

import pytest

from fastcni.cli import entry_point
from fastcni.kernel.presence import ALIVE
from fastcni.node import confs, dhcp_leases
from fastcni.node.attachments import address_dirs, pod_files
from fastcni.node.attachments.attachment import CACHE, Cached, Sighting
from fastcni.node.attachments.inventory import Places, Seen
from fastcni.node.attachments.merge import Facts, merge
from fastcni.node.checks.findings import Node
from fastcni.runtime import CNI, RuntimeConf
from fastcni.runtime.exec import Exec, InProcess

LIST = {"cniVersion": "1.0.0", "name": "net1", "plugins": [
    {"type": "bridge", "bridge": "br0", "isGateway": True, "ipMasq": True, "ipam": {
        "type": "host-local", "subnet": "10.88.0.0/24", "routes": [{"dst": "0.0.0.0/0"}]}},
    {"type": "portmap", "capabilities": {"portMappings": True}}]}

HEALTHY = {"net.ipv4.ip_forward": "1", "net.ipv4.neigh.default.gc_thresh3": "1024"}


class Directories:
    """A node's directories of configurations, cached results and address files. None of them is a directory of the
    machine."""

    def __init__(self, where: Path):
        where.mkdir(exist_ok=True)
        self.conf, self.cache, self.data = where / "net.d", where / "cni", where / "networks"
        self.conf.mkdir(exist_ok=True)

    @property
    def places(self):
        return Places(str(self.conf), (str(self.cache),), (str(self.data),))

    def configure(self, document=LIST, name="10-net1.conflist"):
        """Write a configuration file whose dataDir is in these directories. Return its document."""
        document = json.loads(json.dumps(document))
        for plugin in document.get("plugins", [document]):
            if plugin.get("ipam", {}).get("type") == "host-local":
                plugin["ipam"].setdefault("dataDir", str(self.data))
        (self.conf / name).write_text(json.dumps(document))
        return document

    def hold(self, ip, owner, network="net1"):
        """Write an address file as host-local does."""
        (self.data / network).mkdir(parents=True, exist_ok=True)
        (self.data / network / ip).write_text(owner)

    def cached(self, container, network="net1", ifname="eth0", **more):
        """Write a cache file as libcni does."""
        results = self.cache / "results"
        results.mkdir(parents=True, exist_ok=True)
        document = {"kind": "cniCacheV1", "containerId": container, "networkName": network, "ifName": ifname,
                    "config": "", **more}
        (results / f"{network}-{container}-{ifname}").write_text(json.dumps(document))


class Host(Directories):
    """A host in a new namespace. This process is the host's runtime. plugin_dir: a directory of plugins, or "" for
    fastcni's."""

    def __init__(self, where, plugin_dir=""):
        super().__init__(where)
        runner = Exec() if plugin_dir else InProcess()
        self.cni = CNI([plugin_dir or "/nowhere"], str(self.conf), str(self.cache), runner)

    def add(self, container, pod, network="net1", ports=()):
        """Run ADD for a pod's namespace, and return the result."""
        return self.cni.add(self.cni.load(network), self.rt(container, pod, ports))

    def delete(self, container, pod, network="net1"):
        self.cni.delete(self.cni.load(network), self.rt(container, pod))

    def rt(self, container, pod, ports=()):
        mappings = [{"hostPort": port, "containerPort": to, "protocol": "tcp"} for port, to in ports]
        return RuntimeConf(container, f"/run/netns/{pod}", "eth0", (), {"portMappings": mappings} if ports else {})


@pytest.fixture(autouse=True)
def no_directories_of_this_machine(tmp_path, monkeypatch):
    """Replace the default directories of plugins by empty directories."""
    monkeypatch.setattr(address_dirs, "DATA_DIR", str(tmp_path / "default"))
    monkeypatch.setattr(address_dirs, "CLUSTER_DIR", str(tmp_path / "default-cluster"))
    monkeypatch.setattr(dhcp_leases, "DIRECTORY", str(tmp_path / "default-dhcp"))
    monkeypatch.setattr(pod_files, "DEFAULTS", {kind: str(tmp_path / f"no-{kind}") for kind in pod_files.DEFAULTS})


@pytest.fixture
def directories(tmp_path):
    return Host(tmp_path)


@pytest.fixture
def host(directories, host_netns):
    """Yield a Host with the network net1 and fastcni's plugins."""
    directories.configure()
    return directories


class Answer:
    def __init__(self, status, out, err):
        self.status, self.out, self.err = status, out, err

    @property
    def document(self):
        return json.loads(self.out)


@pytest.fixture
def fastcni(directories, monkeypatch, capfd):
    """Return a function that runs one command on the node of `directories`. The text output has 80 columns."""
    monkeypatch.setenv("NETCONFPATH", str(directories.conf))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "dumb")

    def call(*words):
        capfd.readouterr()
        status = entry_point.run([*map(str, words), "--cache-dir", str(directories.cache)])
        return Answer(status, *capfd.readouterr())
    return call


def diagnosed(fastcni, *words):
    """Return (exit status, {check: finding}) of `fastcni doctor`. Each check must have at most one finding."""
    answer = fastcni("doctor", "--json", "--socket", "", *words)
    return answer.status, {it["check"]: it for it in answer.document["findings"]}


def one(findings, severity, *parts):
    """Return the only finding. Assert its severity, that it has a remedy, and that its sentences contain `parts`."""
    (it,) = list(findings)
    assert it.severity == severity
    assert it.why
    assert it.do
    for part in parts:
        assert part in f"{it.what} {it.why} {it.do}"
    return it


@pytest.fixture(scope="session")
def bin_dir(tmp_path_factory):
    """Return a directory with some of fastcni's plugin files."""
    from fastcni.launcher.install import install

    where = tmp_path_factory.mktemp("bin")
    install(where, names=["bridge", "host-local", "portmap"])
    return where


class Link:
    def __init__(self, index, name, kind, master=0):
        self.index, self.name, self.kind, self.master = index, name, kind, master
        self.peer, self.alias = 0, ""


@pytest.fixture
def node(directories, tmp_path):
    """Return a function node(sysctls, ...) that returns a Node without a kernel. Pods of net1 run on the node. tmp_path
    contains the kernel's files."""
    directories.configure()

    def make(sysctls=HEALTHY, *, pods=("c1",), links=(), saved=None, plugin_dirs=(), at="", conf=LIST, **more):
        facts = Facts(state_of=lambda path, since: (ALIVE, "it exists"), firewall=True, all_namespaces=True,
                      saved=saved or {}, links={link.index: link for link in links})
        for number, name in enumerate(pods):
            ifname = f"eth{pods[:number].count(name)}"
            facts.sightings.append(Sighting(CACHE, f"f{number}", "", "net1", name, ifname, links=("veth00000001",),
                                            addresses=(f"10.88.0.{number + 2}", f"fd00::{number + 2}")))
            facts.cached["net1", name, ifname] = Cached(f"f{number}", "/run/netns/p", conf)
        places = directories.places
        seen = Seen(facts, confs.read_directory(places.conf_dir))
        return Node(places, seen, merge(facts), tuple(plugin_dirs), at, sysctl=lambda name: sysctls.get(name, ""),
                    root=str(tmp_path), release="6.0", **more)
    return make
