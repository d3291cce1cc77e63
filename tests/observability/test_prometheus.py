"""A real Prometheus scrapes a server. Prometheus' tools check the metrics, the alert rules and the dashboard's
queries."""

import json
import shutil
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path

import pytest
from unit.server.client import Server

from fastcni.server.metrics import table
from fastcni.testing.witnesses import eventually

ROOT = Path(__file__).parents[2]
ALERTS, CASES = ROOT / "deploy/prometheus-alerts.yaml", Path(__file__).parent / "alerts-test.yaml"
SERVER, PROMETHEUS = "127.0.0.1:9464", "127.0.0.1:19090"       # in the test's own network namespace
STARTS = 503                    # the status of a Prometheus that is not ready
CONFIG = """\
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
rule_files: [{alerts}]
scrape_configs:
  - job_name: fastcni
    static_configs: [{{targets: ["{server}"]}}]
"""
CHOSEN = {"$node": ".*", "$job": ".*", "$__rate_interval": "5m"}        # the dashboard's variables


def promtool(*args, stdin=None):
    done = subprocess.run(["promtool", *args], input=stdin, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def expressions():
    """Return [(title, expression)] of the dashboard's queries. The values of CHOSEN replace the variables."""
    board = json.loads((ROOT / "deploy/grafana-dashboard.json").read_text(encoding="utf-8"))
    for panel in board["panels"]:
        for target in panel["targets"]:
            text = target["expr"]
            for name, value in CHOSEN.items():
                text = text.replace(name, value)
            yield panel["title"], text


def test_the_alert_rules_are_valid_and_fire_when_they_should(tmp_path):
    assert "5 rules found" in promtool("check", "rules", str(ALERTS))
    for each in (ALERTS, CASES):
        shutil.copy(each, tmp_path)
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / CASES.name))


def test_the_configuration_of_the_page_is_valid(tmp_path):
    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    (tmp_path / "prometheus.yml").write_text(page.partition("```yaml\n")[2].partition("```")[0])
    shutil.copy(ALERTS, tmp_path)
    assert "SUCCESS" in promtool("check", "config", str(tmp_path / "prometheus.yml"))


def test_each_alert_has_a_case_that_fires():
    names = [line.split()[-1] for line in ALERTS.read_text().splitlines() if "- alert:" in line]
    cases, fires = CASES.read_text(), "alertname: {}\n        exp_alerts:\n          - exp_labels"
    assert len(names) > 4
    assert [name for name in names if fires.format(name) not in cases] == []


@pytest.fixture
def server(host_netns, tmp_path):
    with Server(tmp_path, "--metrics", SERVER, "--cache-dir", str(tmp_path)) as it:
        yield it


@pytest.fixture
def query(server, tmp_path):
    """Return a function query(expression) that returns the answer of a Prometheus that scrapes the server."""
    (tmp_path / "prometheus.yml").write_text(CONFIG.format(alerts=ALERTS, server=SERVER))
    words = ["prometheus", f"--config.file={tmp_path}/prometheus.yml", f"--storage.tsdb.path={tmp_path}/data",
             f"--web.listen-address={PROMETHEUS}", "--log.level=warn"]
    with open(tmp_path / "prometheus.log", "wb") as log:
        running = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def ask(expression):
        address = f"http://{PROMETHEUS}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        try:
            with urllib.request.urlopen(address, timeout=30) as answer:
                found = json.load(answer)
        except urllib.error.HTTPError as e:
            if e.code == STARTS:
                return []
            raise AssertionError(f"{expression}: {e.read().decode()}") from e
        except OSError:
            return []                   # the server does not listen yet
        return found["data"]["result"]

    try:
        assert eventually(lambda: ask("up == 1"), 60), (tmp_path / "prometheus.log").read_text()
        yield ask
    finally:
        running.kill()
        running.wait()


def value(result):
    return float(result[0]["value"][1]) if result else None


def test_a_prometheus_scrapes_the_server_and_evaluates_the_dashboard(server, query, tmp_path):
    request = {"cniVersion": "1.1.0", "name": "net-a", "type": "loopback"}
    for _ in range(3):
        server.ok("STATUS", request)
    server.refused("ADD", {**request, "type": "bridge", "bridge": 7}, "/nowhere")
    counted = 'fastcni_requests_total{command="STATUS", plugin="loopback", code="0"}'
    assert eventually(lambda: value(query(counted)) == 3, 60)
    for metric in table.TABLE:          # the server's page has a type and a help text for each metric
        with urllib.request.urlopen(f"http://{PROMETHEUS}/api/v1/targets/metadata?metric="
                                    f"{metric.name}", timeout=30) as answer:
            found = json.load(answer)["data"]
        assert [(it["type"], it["help"]) for it in found] == [(metric.kind, metric.text)], metric.name
    assert value(query("fastcni_workers")) == 32
    queries = list(expressions())
    assert len(queries) > 15
    for title, expression in queries:
        query(expression)               # raises an exception if the query is not valid
        assert title
    for title in ("Requests", "Queue and workers", "Threads of the server", "Memory of the server"):
        asked = [expression for each, expression in queries if each == title]
        assert eventually(lambda asked=asked: any(map(query, asked)), 60), title
    with urllib.request.urlopen(f"http://{PROMETHEUS}/api/v1/rules", timeout=30) as answer:
        rules = json.load(answer)["data"]["groups"][0]["rules"]
    assert len(rules) == 5 and {it["health"] for it in rules} <= {"ok", "unknown"}


def test_promtool_accepts_the_text_of_a_scrape(server):
    server.ok("STATUS", {"cniVersion": "1.1.0", "name": "net-a", "type": "loopback"})

    def scrape():
        with urllib.request.urlopen(f"http://{SERVER}/metrics", timeout=30) as answer:
            return answer.read().decode()

    assert eventually(lambda: 'command="STATUS"' in scrape())
    promtool("check", "metrics", stdin=scrape())
