"""The metrics of a running server, as a monitoring program reads them."""

import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from click.testing import CliRunner
from lab.node import run
from prometheus_client.parser import text_string_to_metric_families
from unit.server.flushed import add, nft
from unit.server.test_metrics_parts import GET, ask, rest_of

from fastcni.cli.commands import cli
from fastcni.server.metrics import table
from fastcni.server.metrics.one_shot import SUFFIX
from fastcni.server.metrics.pools import Counted
from fastcni.server.metrics.service import Metrics
from fastcni.server.web import address
from fastcni.server.web.site import Site
from fastcni.testing.witnesses import eventually

ROOT = Path(__file__).parents[3]


class Scraped:
    """The samples of one reading. value("fastcni_requests_total", command="ADD") returns the sum of the samples with
    these labels."""

    def __init__(self, answer):
        head, _, body = answer.partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 OK\r\nContent-Type: text/plain; version="), head
        self.text = body.decode()
        self.families = {it.name: it for it in text_string_to_metric_families(self.text)}
        self.samples = [one for it in self.families.values() for one in it.samples]

    def value(self, name, **labels):
        return sum(one.value for one in self.samples if one.name == name and labels.items() <= one.labels.items())


def scrape(server):
    return Scraped(ask(str(server.metrics), GET))


@pytest.fixture
def measured(local, tmp_path):
    """Yield a function measured(**options) that starts a server in this process. The server has its metrics on a unix
    socket."""
    running = []

    def make(**options):
        server = local(**options)
        site = Site(str(tmp_path / "metrics"), server.acceptor.log)
        running.extend((site, Metrics(site, Counted, server.acceptor.log)))
        server.listen, server.metrics = server.listening, tmp_path / "metrics"
        site.listen()
        for each in running[-2:]:
            each.attach(server)
        site.start()
        return server

    yield make
    for each in running:
        each.stop()


def test_requests_and_their_phases_are_counted(node, pod, pod_netns, measured, slow):
    server, conf = measured(), node.conf(isGateway=True, ipMasq=True)
    server.ok("ADD", conf, pod)
    server.ok("ADD", {**conf, "name": "net-b"}, pod_netns())
    server.refused("ADD", {**conf, "bridge": 7}, pod_netns())
    server.ok("DEL", conf, pod)
    keys, variables = slow(0)
    server.ok("ADD", {**conf, **keys, "name": "net-c"}, pod_netns(), env=variables)
    assert eventually(lambda: scrape(server).value("fastcni_requests_total", network="net-c") == 1)
    found = scrape(server)
    for labels, expected in (({"command": "ADD", "plugin": "bridge", "network": "net-a", "code": "0"}, 1),
                             ({"command": "ADD", "network": "net-b", "code": "0"}, 1), ({"code": "7"}, 1),
                             ({"command": "DEL", "network": "net-a", "code": "0"}, 1)):
        assert found.value("fastcni_requests_total", **labels) == expected, labels
    assert found.value("fastcni_request_seconds_count", command="ADD", plugin="bridge") == 4
    assert 0 < found.value("fastcni_request_seconds_sum", command="DEL") < 60
    # The rejected ADD used neither IPAM nor netlink
    for phase, number in (("queue", 4), ("ipam", 3), ("netlink", 3), ("nftables", 3), ("delegate", 1)):
        assert found.value("fastcni_request_phase_seconds_count", command="ADD", phase=phase) == number, phase
    assert found.value("fastcni_link_deletes_total") == found.value("fastcni_link_delete_requests_total") == 1
    assert found.value("fastcni_requests_running") == found.value("fastcni_requests_waiting") == 0
    assert (found.value("fastcni_workers"), found.value("fastcni_queue_size")) == (4, 1024)
    assert found.value("fastcni_threads") > 4 and found.value("process_open_fds") > 10
    assert found.value("process_resident_memory_bytes") > 1 << 20
    assert 'fastcni_info{version="' in found.text


def test_requests_that_run_that_wait_and_that_are_refused_are_counted(node, pod, pod_netns, measured, slow):
    server = measured()
    server.queue.size = 2
    keys, variables = slow(3600)
    # All requests are for one attachment, so the server runs one after another
    requests = [server.send("ADD", node.conf(**keys), pod, env=variables) for _ in range(3)]
    assert slow.started()
    assert eventually(lambda: scrape(server).value("fastcni_requests_waiting") == 2)
    assert server.refused("ADD", node.conf(**keys), pod_netns(), env=variables)["code"] == 11
    found = scrape(server)
    assert found.value("fastcni_requests_running") == 1
    assert found.value("fastcni_workers_busy") == 0         # no worker is busy, because the request waits for a program
    assert found.value("fastcni_requests_total", code="11") == 1
    assert found.value("fastcni_request_seconds_count") == 0        # only requests that ran are counted here
    for each in requests:
        each.close()
    assert eventually(lambda: scrape(server).value("fastcni_requests_total", code="caller_gone") == 3)


def test_restores_are_counted(measured, net, pod):
    server = measured()
    add(server, net, pod, {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"})
    nft("flush ruleset")
    assert eventually(lambda: scrape(server).value("fastcni_restores_total") >= 2)
    assert scrape(server).value("fastcni_restored_elements_total") >= 2


@pytest.mark.parametrize("failed, outcome", [((), "done"), ((SimpleNamespace(plugin="firewall"),), "failed"),
                                             (OSError, "failed")])
def test_replays_are_counted(make_watch, failed, outcome):
    def replay(_):
        if failed is OSError:
            raise OSError
        return SimpleNamespace(attachments=0, plugins=0, failed=failed)

    watch = make_watch(replay, at_start=True)

    def counted():
        watch.attend(time.monotonic())
        return watch.restoring.replays[outcome]

    assert eventually(counted) == 1
    assert sum(watch.restoring.replays.values()) == 1


def test_the_legacy_iptables_are_polled_right_after_a_replay(make_watch, monkeypatch):
    """The server must see the rules that the replay wrote before another program removes them again."""
    watch = make_watch(lambda _: SimpleNamespace(attachments=0, plugins=0, failed=()), at_start=True)
    soon = []
    monkeypatch.setattr(watch.restoring, "attend_soon", soon.append)
    watch.legacy.note_add(time.monotonic())
    watch.attend(time.monotonic())
    assert eventually(lambda: watch.restoring.replays["done"] or watch.attend(time.monotonic()))
    assert eventually(lambda: len(soon) == 1) and watch.legacy.next == 0.0
    watch.attend(time.monotonic())
    assert watch.legacy.next > 0.0


def test_plugin_files_count_what_goes_one_shot_also_without_a_server(node, start, plugins, tmp_path):
    """The first server has metrics on a unix socket, by its option. The second server has them on loopback, by its
    environment variable."""
    conf, socket_path = node.conf(), tmp_path / "metrics"
    server = start("--metrics", str(socket_path))
    path = Path(f"{server.path}{SUFFIX}")
    env = {"PATH": os.environ["PATH"], "CNI_COMMAND": "STATUS", "CNI_PATH": plugins,
           "FASTCNI_SOCKET": str(server.path)}

    def status():
        subprocess.run([f"{plugins}/bridge"], env=env, input=json.dumps(conf), text=True, check=True)

    status()
    assert eventually(socket_path.exists)
    assert Scraped(ask(str(socket_path), GET)).value("fastcni_one_shot_requests_total") == 0
    assert path.stat().st_mode & 0o777 == 0o600
    assert server.stop() == 0
    assert not socket_path.exists()
    status()
    assert path.read_bytes() == b"n"
    server = start(env={"FASTCNI_METRICS": "127.0.0.1:9464"})  # this is loopback of the test's network namespace
    assert eventually(lambda: server.lines("event=metrics_ready", "address=127.0.0.1:9464"))
    with socket.create_connection(("127.0.0.1", 9464), 30) as sock:
        sock.sendall(GET)
        found = Scraped(rest_of(sock))
    assert found.value("fastcni_one_shot_requests_total", reason="no_server") == 1
    assert found.value("fastcni_workers") == 32


def test_without_the_option_there_are_no_metrics(local, node, pod):
    """There is no file, the server records no requests, and it does not import the Prometheus client."""
    server = local()
    server.ok("STATUS", node.conf())
    assert server.acceptor.records.receivers == []
    assert not Path(f"{server.path}{SUFFIX}").exists()
    code = "import fastcni.cli.serve, fastcni.server.service, sys; print('prometheus_client' in sys.modules)"
    assert run(sys.executable, "-c", code).strip() == "False"


@pytest.mark.needs("root")
def test_a_server_whose_metrics_cannot_listen_does_not_start(tmp_path):
    taken, path = str(tmp_path / "taken"), tmp_path / "run" / "other"
    other = address.listen(taken)
    done = subprocess.run([sys.executable, "-m", "fastcni", "serve", "--socket", path, "--metrics", taken],
                          capture_output=True, text=True, timeout=60)
    other.unlock()
    other.sock.close()
    assert done.returncode == 1
    assert f"another fastcni server listens on {taken}" in done.stderr
    assert not path.exists()


@pytest.mark.parametrize("where, text", [("0.0.0.0:9464", "is no loopback address"), ("9464", "of a unix socket")])
def test_an_address_that_is_not_allowed_is_refused(where, text):
    done = CliRunner().invoke(cli, ["serve", "--metrics", where])
    assert done.exit_code == 2 and text in " ".join(done.output.split())


@pytest.mark.needs("root")
def test_a_server_without_the_client_says_what_to_install(tmp_path):
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('No module named prometheus_client')")
    done = subprocess.run([sys.executable, "-m", "fastcni", "serve", "--socket", tmp_path / "s", "--metrics",
                           tmp_path / "m"], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert "fastcni[metrics]" in done.stderr and "python3-prometheus-client" in done.stderr


def test_a_server_that_cannot_count_one_shot_requests_says_so_and_has_all_other_metrics(measured, tmp_path):
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run" / f"fastcni.sock{SUFFIX}").mkdir()
    server = measured()
    assert server.lines("event=one_shot_uncounted")
    found = scrape(server)
    assert "fastcni_one_shot_requests_total{" not in found.text
    assert found.value("fastcni_workers") == 4


# -- the table ---------------------------------------------------------------------------------------------

def test_each_metric_of_the_table_is_scraped_and_no_other_one(measured):
    found = {(one.name, one.type) for one in scrape(measured()).families.values()}
    expected = {(it.name.removesuffix("_total"), it.kind) for it in table.TABLE}  # the parser removes this suffix, too
    assert {one for one in found if one[0].startswith("fastcni_")} == expected
    of_client = {name.removesuffix("_total") for name in table.OF_CLIENT}
    assert {name for name, _ in found if not name.startswith("fastcni_")} == of_client


def row_of(metric):
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.text} |"


def test_the_page_has_the_table():
    """To make the table again, run: python -c 'from unit.server.test_metrics import *; print_table()'"""
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `fastcni_")]
    assert rows == [row_of(metric) for metric in table.TABLE]
    assert all(f"`{name}`" in page for name in table.OF_CLIENT)


def print_table():
    print("| metric | type | labels | meaning |", "|---|---|---|---|", *map(row_of, table.TABLE), sep="\n")


def named_metrics(text):
    """Return the names of the metrics in PromQL expressions, without a histogram's suffixes."""
    names = set(re.findall(r"\b((?:fastcni|process)_\w+)", text))
    return {re.sub(r"(_seconds)_(bucket|sum|count)$", r"\1", name) for name in names}


@pytest.mark.parametrize("file", ["grafana-dashboard.json", "prometheus-alerts.yaml"])
def test_dashboard_and_alerts_ask_for_metrics_that_exist(file):
    text = (ROOT / "deploy" / file).read_text(encoding="utf-8")
    names = named_metrics(text)
    assert len(names) > 5
    assert names <= {it.name for it in table.TABLE} | set(table.OF_CLIENT)
