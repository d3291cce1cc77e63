"""The metrics of a running server, as a scraper sees them."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from real_kernel.node import run
from server.flushed import add, nft
from server.test_metrics_parts import GET, ask

from fastcni.cli.commands import cli
from fastcni.server.metrics import table
from fastcni.server.metrics.one_shot import SUFFIX
from fastcni.testing.witnesses import eventually

ROOT = Path(__file__).parents[2]
MODE = 0o777


class Scraped:
    """The samples of one scrape: value("fastcni_requests_total", command="ADD") is their sum with these labels."""

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
def measured(start, tmp_path):
    """measured(*options): a server with metrics on a unix socket."""
    def make(*options, **more):
        server = start("--metrics", str(tmp_path / "metrics"), "--cache-dir", str(tmp_path), *options, **more)
        server.metrics = tmp_path / "metrics"
        assert eventually(server.metrics.exists)
        return server
    return make


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
    # The refused ADD had neither IPAM nor netlink
    for phase, number in (("queue", 4), ("ipam", 3), ("netlink", 3), ("nftables", 3), ("delegate", 1)):
        assert found.value("fastcni_request_phase_seconds_count", command="ADD", phase=phase) == number, phase
    assert found.value("fastcni_link_deletes_total") == found.value("fastcni_link_delete_requests_total") == 1
    assert found.value("fastcni_requests_running") == found.value("fastcni_requests_waiting") == 0
    assert (found.value("fastcni_workers"), found.value("fastcni_queue_size")) == (32, 1024)
    assert found.value("fastcni_threads") > 10 and found.value("process_open_fds") > 10
    assert found.value("process_resident_memory_bytes") > 1 << 20
    assert 'fastcni_info{version="' in found.text


def test_requests_that_run_and_wait_are_counted_while_they_do(node, pod, pod_netns, measured, slow):
    server = measured("--workers", "1")
    keys, variables = slow(3600)
    requests = [server.send("ADD", node.conf(**keys), pod_netns(), env=variables) for _ in range(3)]
    assert slow.started()
    assert eventually(lambda: scrape(server).value("fastcni_requests_waiting") >= 1)
    found = scrape(server)
    assert found.value("fastcni_requests_running") + found.value("fastcni_requests_waiting") == 3
    assert found.value("fastcni_workers_busy") == 0         # it waits for a program
    for each in requests:
        each.close()
    assert eventually(lambda: scrape(server).value("fastcni_requests_total", code="caller_gone") == 3)


def test_refused_and_declined_requests_are_counted(node, pod, pod_netns, measured, slow):
    server = measured("--workers", "1", "--queue-size", "1")
    keys, variables = slow(3600)
    held = [server.send("ADD", node.conf(**keys), pod, env=variables)]
    assert slow.started()
    held.append(server.send("ADD", node.conf(**keys), pod, env=variables))      # behind it: the same attachment
    assert eventually(lambda: scrape(server).value("fastcni_requests_waiting") == 1)
    assert server.refused("ADD", node.conf(**keys), pod_netns(), env=variables)["code"] == 11
    found = scrape(server)
    assert found.value("fastcni_requests_total", code="11") == 1
    assert found.value("fastcni_request_seconds_count") == 0        # it did not run
    for each in held:
        each.close()


def test_restores_are_counted(measured, net, pod):
    server = measured()
    add(server, net, pod, {"hostPort": 8080, "containerPort": 80, "protocol": "tcp"})
    assert eventually(lambda: scrape(server).value("fastcni_replays_total", outcome="done") == 1)      # at the start
    nft("flush ruleset")
    assert eventually(lambda: scrape(server).value("fastcni_restores_total") >= 2)
    assert scrape(server).value("fastcni_restored_elements_total") >= 2


def test_plugin_files_count_what_goes_one_shot_also_without_a_server(node, pod, measured, plugins):
    server = measured()
    conf, path = node.conf(), Path(f"{server.path}{SUFFIX}")
    assert scrape(server).value("fastcni_one_shot_requests_total") == 0
    assert path.stat().st_mode & MODE == 0o600
    env = {"PATH": os.environ["PATH"], "CNI_COMMAND": "STATUS", "CNI_PATH": plugins,
           "FASTCNI_SOCKET": str(server.path)}

    def status():
        subprocess.run([f"{plugins}/bridge"], env=env, input=json.dumps(conf), text=True, check=True)

    status()
    assert scrape(server).value("fastcni_one_shot_requests_total") == 0
    server.stop()
    assert not server.metrics.exists()
    status()
    again = measured()
    assert scrape(again).value("fastcni_one_shot_requests_total", reason="no_server") == 1


def test_without_the_option_there_are_no_metrics(local, node, pod):
    """No file, no record of a request, and the Prometheus client is not imported."""
    server = local()
    server.ok("STATUS", node.conf())
    assert server.acceptor.records.receivers == []
    assert not Path(f"{server.path}{SUFFIX}").exists()
    code = "import fastcni.cli.serve, fastcni.server.service, sys; print('prometheus_client' in sys.modules)"
    assert run(sys.executable, "-c", code).strip() == "False"


def test_metrics_by_loopback(start):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    run("ip", "link", "set", "lo", "up")
    server = start(env={"FASTCNI_METRICS": f"127.0.0.1:{port}"})
    assert eventually(lambda: server.lines("event=metrics_ready", f"address=127.0.0.1:{port}"))
    with socket.create_connection(("127.0.0.1", port), 30) as sock:
        sock.sendall(GET)
        answer = b""
        while piece := sock.recv(1 << 16):
            answer += piece
    assert Scraped(answer).value("fastcni_workers") == 32


def test_a_server_whose_metrics_cannot_listen_does_not_start(measured, tmp_path):
    taken, path = str(measured().metrics), tmp_path / "run" / "other"
    done = subprocess.run([sys.executable, "-m", "fastcni", "serve", "--socket", path, "--metrics", taken],
                          capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert f"another fastcni server listens on {taken}" in done.stderr
    assert not path.exists()


@pytest.mark.parametrize("address, text", [("0.0.0.0:9464", "is no loopback address"), ("9464", "of a unix socket")])
def test_an_address_that_is_not_allowed_is_refused(address, text):
    done = CliRunner().invoke(cli, ["serve", "--metrics", address])
    assert done.exit_code == 2 and text in " ".join(done.output.split())


def test_a_server_without_the_client_says_what_to_install(tmp_path, root):
    (tmp_path / "prometheus_client.py").write_text("raise ImportError('No module named prometheus_client')")
    done = subprocess.run([sys.executable, "-m", "fastcni", "serve", "--socket", tmp_path / "s", "--metrics",
                           tmp_path / "m"], capture_output=True, text=True, timeout=60,
                          env={**os.environ, "PYTHONPATH": str(tmp_path)})
    assert done.returncode == 1
    assert "fastcni[metrics]" in done.stderr and "python3-prometheus-client" in done.stderr


def test_a_server_that_cannot_count_one_shot_requests_says_so_and_has_all_other_metrics(start, tmp_path):
    (tmp_path / "run").mkdir(mode=0o700)
    (tmp_path / "run" / f"fastcni.sock{SUFFIX}").mkdir()
    server = start("--metrics", str(tmp_path / "metrics"))
    server.metrics = tmp_path / "metrics"
    assert eventually(lambda: server.lines("event=one_shot_uncounted"))
    found = scrape(server)
    assert "fastcni_one_shot_requests_total{" not in found.text
    assert found.value("fastcni_workers") == 32


# -- the table ---------------------------------------------------------------------------------------------

def test_each_metric_of_the_table_is_scraped_and_no_other_one(measured):
    found = {(one.name, one.type) for one in scrape(measured()).families.values()}
    expected = {(it.name.removesuffix("_total"), it.kind) for it in table.TABLE}        # the parser removes it, too
    assert {one for one in found if one[0].startswith("fastcni_")} == expected
    of_client = {name.removesuffix("_total") for name in table.OF_CLIENT}
    assert {name for name, _ in found if not name.startswith("fastcni_")} == of_client


def row_of(metric):
    labels = ", ".join(f"`{label}`" for label in metric.labels)
    return f"| `{metric.name}` | {metric.kind} | {labels} | {metric.text} |"


def test_the_page_has_the_table():
    """To write it anew: python -c 'from server.test_metrics import *; print_table()'"""
    page = (ROOT / "docs/observability.md").read_text(encoding="utf-8")
    rows = [line for line in page.splitlines() if line.startswith("| `fastcni_")]
    assert rows == [row_of(metric) for metric in table.TABLE]
    assert all(f"`{name}`" in page for name in table.OF_CLIENT)


def print_table():
    print("| metric | type | labels | meaning |", "|---|---|---|---|", *map(row_of, table.TABLE), sep="\n")


def named_metrics(text):
    """The names of metrics in PromQL expressions, without the suffixes of histograms."""
    names = set(re.findall(r"\b((?:fastcni|process)_\w+)", text))
    return {re.sub(r"(_seconds)_(bucket|sum|count)$", r"\1", name) for name in names}


@pytest.mark.parametrize("file", ["grafana-dashboard.json", "prometheus-alerts.yaml"])
def test_dashboard_and_alerts_ask_for_metrics_that_exist(file):
    text = (ROOT / "deploy" / file).read_text(encoding="utf-8")
    names = named_metrics(text)
    assert len(names) > 5
    assert names <= {it.name for it in table.TABLE} | set(table.OF_CLIENT)
