"""Make pictures of a loaded node. `make screenshots` writes the pictures to docs/."""

import io
import json
import os
import re
from base64 import b64encode
from pathlib import Path
from types import SimpleNamespace

import pytest
from observability.browser import Browser
from observability.test_bench import SAMPLES
from observability.test_status_page import ADDRESS, load, search
from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from unit.server.client import Server
from unit.server.test_metrics_parts import Log

from fastcni.bench.web_page import web_page
from fastcni.cli.text.top import View, frame
from fastcni.cli.top import Source
from fastcni.launcher.install import install
from fastcni.node.attachments import topology
from fastcni.node.attachments.inventory import Places
from fastcni.server.web import address
from fastcni.server.web.site import Site
from fastcni.server.web.status_page import StatusPage

# Rich's format, without the fonts that it loads from a web site
SVG = re.sub(r"@font-face \{\{.*?\n    \}\}", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
NETWORKS = {"web": "10.22.0.0/24", "db": "10.23.0.0/28"}
IDS = [f"{0x8e4f2a1b3c4d + at * 0x1a2b3c4d5e6f & (1 << 48) - 1:012x}" for at in range(12)]

PORTS = {1: [{"hostPort": 5432, "containerPort": 5432, "protocol": "tcp"}],
         6: [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}, {"hostPort": 8443, "containerPort": 443}]}


@pytest.fixture
def directory(tmp_path):
    """Return the directory into which the tests write pictures."""
    return Path(os.environ.get("SCREENSHOTS") or tmp_path)


@pytest.fixture
def node(host_netns, pod_netns, tmp_path):
    """Yield a server with pods of two networks. The range of the network "db" is nearly full."""
    (tmp_path / "net.d").mkdir()
    confs = {}
    for name, subnet in NETWORKS.items():
        plugin = {"type": "bridge", "bridge": f"{name}0", "isGateway": True, "ipMasq": False,
                  "ipam": {"type": "host-local", "dataDir": str(tmp_path / "data"), "subnet": subnet}}
        document = {"cniVersion": "1.0.0", "name": name, "plugins": [plugin]}
        (tmp_path / "net.d" / f"{name}.conflist").write_text(json.dumps(document))
        confs[name] = {"cniVersion": "1.0.0", "name": name, **plugin}
    (tmp_path / "results").mkdir()
    install(tmp_path / "bin")
    with Server(tmp_path, "--cache-dir", str(tmp_path)) as server:
        server.cni_path = str(tmp_path / "bin")
        for at, container in enumerate(IDS):
            pod = pod_netns()
            for name in NETWORKS if at % 2 else ("db",):
                ifname = "eth0" if name == "db" else "net1"
                result = server.ok("ADD", confs[name], pod, cid=container, ifname=ifname)
                (tmp_path / "results" / f"{name}-{container}-{ifname}").write_text(json.dumps({
                    "kind": "cniCacheV1", "containerId": container, "networkName": name, "ifName": ifname,
                    "netns": f"/run/netns/{pod}", "config": b64encode(json.dumps(confs[name]).encode()).decode(),
                    "capabilityArgs": {"portMappings": PORTS.get(at, [])} if name == "db" else {}, "result": result}))
        for at, container in enumerate(IDS[:4]):
            server.ok("DEL", confs["web"], cid=container, ifname="net1")
            (tmp_path / "results" / f"web-{container}-net1").unlink(missing_ok=True)
            if at % 2:
                server.refused("ADD", {**confs["web"], "bridge": 7}, "/nowhere", cid=container)
        yield server


def test_a_picture_of_top(node, tmp_path, directory):
    source = Source(str(node.path), str(tmp_path / "net.d"), str(tmp_path / "results"))
    source.poll()
    console = Console(record=True, width=80, height=24, file=io.StringIO(), force_terminal=True)
    console.print(frame(source.document(""), View(), 80, 24))
    text = console.export_text(clear=False)
    for part in ("web", "db", "10.23.0.1-14", "!92%", "2 failed", "ipam", "netlink", "SLOWEST"):
        assert part in text, text
    assert any(container in text for container in IDS)
    picture = console.export_svg(title="fastcni top", code_format=SVG)
    assert "url(http" not in picture
    (directory / "top.svg").write_text(picture, encoding="utf-8")


def test_a_picture_of_the_status_page(node, tmp_path, directory):
    """The test writes the page's JSON documents itself, because the server reads configurations only from /etc."""
    source = Source(str(node.path), str(tmp_path / "net.d"), str(tmp_path / "results"))

    def status():
        source.poll()
        return {**source.document(""), "history": True}

    def pods():
        return {**topology.document(Places(str(tmp_path / "net.d"), (str(tmp_path),))), "node": "worker-3"}

    log = Log()
    log.info = lambda *_, **__: None
    site = Site(address.read(ADDRESS), log)
    site.listen()
    for part in (site, StatusPage(site, lambda *_: status, pods, log)):
        part.attach(SimpleNamespace(describe=None, history=None))
    site.start()
    with Browser(tmp_path / "profile") as browser:
        load(browser)
        (label,) = search(browser, "8080")
        picture = browser.picture(height=browser.value("document.documentElement.scrollHeight"))
    site.stop()
    assert label.startswith(IDS[6]) and log.events == []
    assert picture.startswith(b"\x89PNG") and len(picture) < 300_000
    (directory / "status.png").write_bytes(picture)


def test_a_picture_of_the_page_of_bench(tmp_path, directory):
    page = tmp_path / "bench.html"
    page.write_text(web_page(json.loads(SAMPLES.read_bytes())), encoding="utf-8")
    with Browser(tmp_path / "profile") as browser:
        browser.open(page, 1120)
        picture = browser.picture(height=760)
    assert picture.startswith(b"\x89PNG") and len(picture) < 300_000
    (directory / "bench.png").write_bytes(picture)
