"""The pages of --http: which requests may read them, and the JSON documents of a running server."""

import json
import re
import socket
import subprocess
import sys

import pytest
from click.testing import CliRunner
from unit.server.test_metrics_parts import Log, ask

from fastcni.cli.commands import cli
from fastcni.daemon.listening import ListenError
from fastcni.server import service
from fastcni.server.web import address, status_page
from fastcni.server.web.listener import NotReady, Page
from fastcni.server.web.site import Site
from fastcni.server.web.status_page import StatusPage
from fastcni.testing.witnesses import eventually


class Part:
    """The attributes of a server that a StatusPage reads."""

    history = None

    def describe(self):
        return {"version": "0"}


class Served:
    """A Site with its pages at the address `where`. get(path, host) returns (status, headers, body)."""

    def __init__(self, where, make_topology=lambda: {"node": "n"}):
        self.site = Site(where, Log())
        self.site.log.info = lambda *_, **__: None
        self.page = StatusPage(self.site, lambda describe, _: describe, make_topology, self.site.log)

    def __enter__(self):
        self.site.listen()
        for part in (self.site, self.page):
            part.attach(Part())
        self.site.start()
        return self

    def __exit__(self, *_):
        self.site.stop()

    def get(self, path, *hosts, method="GET"):
        lines = "".join(f"Host: {host}\r\n" for host in hosts)
        request = f"{method} {path} HTTP/1.1\r\n{lines}\r\n".encode()
        if isinstance(self.site.where, str):
            answer = ask(self.site.where, request)
        else:
            with socket.create_connection(self.site.where, 30) as sock:
                sock.sendall(request)
                answer = sock.makefile("rb").read()
        head, _, body = answer.partition(b"\r\n\r\n")
        return int(head[9:12]), head.decode(), body


@pytest.fixture
def port():
    with socket.create_server(("127.0.0.1", 0)) as free:
        return free.getsockname()[1]


@pytest.fixture
def served(port):
    with Served(("127.0.0.1", port)) as it:
        yield it


@pytest.mark.parametrize("hosts, status", [
    (["localhost"], 200), (["LocalHost:9465"], 200), (["127.0.0.1:9465"], 200), (["[::1]:9465"], 200), (["[::1]"], 200),
    (["evil.example"], 403), (["evil.example:9465"], 403), (["127.0.0.1.evil.example"], 403), (["192.0.2.1"], 403),
    (["localhost.evil.example"], 403), ([], 403), ([""], 403), (["localhost", "evil.example"], 403)])
def test_a_name_of_another_machine_is_refused(served, hosts, status):
    """By DNS rebinding, a script of another website makes the name of that website resolve to 127.0.0.1."""
    for path in ("/", "/status.json", "/topology.json"):
        found, _, body = served.get(path, *hosts)
        assert found == status and (b"node" in body or b"version" in body) == (status == 200)


def test_a_unix_socket_takes_any_name(tmp_path):
    with Served(str(tmp_path / "http")) as it:
        assert it.get("/topology.json", "node.example")[0] == 200
    assert not (tmp_path / "http").exists()
    with Served(str(tmp_path / "http")) as it:  # the next server can use the path while the first one is still stopping
        assert it.get("/topology.json")[0] == 200


def test_it_is_read_only(served):
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert served.get("/", "localhost", method=method)[0] == 405
    assert served.get("/", "localhost", method="HEAD")[2] == b""
    assert served.get("/page.js", "localhost")[0] == served.get("/../page.js", "localhost")[0] == 404


def test_the_page_may_load_nothing_but_itself(served):
    status, head, body = served.get("/", "localhost")
    policy = re.search(r"Content-Security-Policy: (.*)", head)[1]
    parts = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    assert status == 200 and parts["default-src"] == "'none'" and parts["connect-src"] == "'self'"
    for name in ("script", "style"):
        (content,) = re.findall(rf"<{name}>(.*?)</{name}>".encode(), body, re.DOTALL)
        assert parts[f"{name}-src"] == status_page.digest(content)
    assert not re.findall(rb"(?:src|href)=.(?!data:)|url\(|@import|innerHTML|insertAdjacentHTML|document\.write", body)
    for line in ("Cache-Control: no-store", "X-Content-Type-Options: nosniff", "X-Frame-Options: DENY",
                 "Referrer-Policy: no-referrer", "Cross-Origin-Resource-Policy: same-origin"):
        assert f"\r\n{line}" in head


def test_a_document_that_is_not_ready_is_asked_for_again(port):
    def raises():
        raise NotReady

    with Served(("127.0.0.1", port)) as it:
        it.site.pages["/x"] = Page("text/plain", raises)
        status, head, _ = it.get("/x")
    assert status == 503 and "\r\nRetry-After: 1" in head


def test_names_that_are_no_utf_8_come_as_json(port):
    with Served(("127.0.0.1", port), lambda: {"name": "a\udcff\u202e</script>"}) as it:
        assert json.loads(it.get("/topology.json", "localhost")[2])["name"] == "a\udcff\u202e</script>"


def test_a_running_server_shows_requests_and_pods(node, pod, start, tmp_path):
    """The options --http and --metrics share one listener, on a unix socket."""
    where = str(tmp_path / "http")
    server = start("--http", where, "--metrics", where)
    assert eventually(lambda: server.lines("event=page_ready") and server.lines("event=metrics_ready"))
    server.ok("ADD", node.conf(), pod)

    def document(name):
        head, _, body = ask(where, f"GET /{name} HTTP/1.1\r\n\r\n".encode()).partition(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200 "), head
        return body

    assert eventually(lambda: json.loads(document("status.json"))["requests"] == 1)
    status = json.loads(document("status.json"))
    assert status["history"] and status["commands"][0]["command"] == "ADD" and status["server"]["workers"] == 32
    topology = json.loads(document("topology.json"))
    assert isinstance(topology["attachments"], list) and topology["tookMs"] > 0
    assert b"fastcni_requests_total" in document("metrics") and b"<title>fastcni" in document("")
    assert server.stop() == 0


def test_off_means_nothing_is_imported():
    code = ("import sys, fastcni.cli.serve, fastcni.server.service as it; it.make_parts(it.Options(), None); "
            "print([name for name in sys.modules if 'server.web' in name or 'topology' in name])")
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize("where", ["0.0.0.0:9465", "[::]:80", "192.0.2.1:80", "node:80", "9465", "run/http"])
def test_an_address_that_others_reach_is_refused(where):
    done = CliRunner().invoke(cli, ["serve", "--http", where])
    assert done.exit_code == 2 and "--http" in done.output and "127.0.0.1:PORT" in " ".join(done.output.split())


def test_if_one_address_is_taken_the_other_is_released(tmp_path):
    free, taken = str(tmp_path / "free"), str(tmp_path / "taken")
    other = address.listen(taken)
    with pytest.raises(ListenError, match="another fastcni server listens"):
        service.make_parts(service.Options(metrics=free, http=taken), Log())
    other.unlock()
    other.sock.close()
    assert not (tmp_path / "free").exists()
    again = address.listen(free)
    again.unlock()
    again.sock.close()
