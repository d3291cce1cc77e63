"""Traces that a collector gets from a server: OTLP over HTTP, decoded by OpenTelemetry's protobuf classes."""

import json
import os
import socket
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from unit.server.client import Server
from unit.server.conftest import Slow, node, plugins, pod  # noqa: F401  fixtures

from fastcni.server.otel import traces
from fastcni.testing.witnesses import eventually

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}"
CONF = {"cniVersion": "1.1.0", "name": "net-a", "type": "loopback"}
BAD = {**CONF, "type": "bridge", "bridge": 7}


class Collector:
    """A receiver of OTLP on loopback. status: the HTTP status of its answers. silent: the receiver reads requests and
    never answers."""

    def __init__(self, *, status=200, silent=False):
        self.spans, self.resources, self.paths, self.headers = [], [], [], []
        collector, self.released = self, threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if silent:
                    collector.released.wait(60)
                collector.note(self, body, status)
                self.send_response(status)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_):
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        self.thread = threading.Thread(target=self.http.serve_forever, args=(0.05,))

    def note(self, request, body, status):
        self.paths.append(request.path)
        self.headers.append(dict(request.headers))
        if status == 200:
            message = ExportTraceServiceRequest.FromString(body)
            self.resources += [attributes(each.resource) for each in message.resource_spans]
            self.spans += [span for each in message.resource_spans for scope in each.scope_spans
                           for span in scope.spans]

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.released.set()
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def roots(self, count):
        """Wait until the spans of `count` requests have arrived. Return the requests' spans in the order of arrival."""
        assert eventually(lambda: len(self._roots()) >= count, 30), self.spans
        return sorted(self._roots(), key=lambda span: span.start_time_unix_nano)

    def _roots(self):
        return [span for span in self.spans if span.kind == Span.SPAN_KIND_SERVER]

    def children(self, parent):
        found = [span for span in self.spans if span.parent_span_id == parent.span_id]
        return sorted(found, key=lambda span: span.start_time_unix_nano)


def attributes(it):
    return {one.key: one.value.string_value or one.value.int_value for one in it.attributes}


@pytest.fixture
def collector(host_netns):
    with Collector() as it:
        yield it


@pytest.fixture
def serve(tmp_path, plugins, host_netns):        # noqa: F811
    """Return a function serve(url, *options) that starts a server, which sends traces to the collector at `url`."""
    running = []

    def make(url, *options, **more):
        running.append(Server(tmp_path, "--otlp", url, "--cache-dir", str(tmp_path), *options, **more).__enter__())
        running[-1].cni_path = plugins
        return running[-1]

    yield make
    for server in running:
        server.__exit__()


def test_a_request_and_its_phases_are_spans(collector, serve, node, pod):       # noqa: F811
    server, before = serve(collector.url), time.time_ns()
    server.ok("ADD", node.conf(isGateway=True, ipMasq=True), pod, env={
        "TRACEPARENT": f"{PARENT}-01", "CNI_ARGS": "IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=web-0"})
    (span,) = collector.roots(1)
    after = time.time_ns()         # read only now, because the span ends after the caller has the answer
    assert span.name == "ADD bridge"
    assert (span.trace_id.hex(), span.parent_span_id.hex()) == (TRACE, SPAN)
    assert before < span.start_time_unix_nano < span.end_time_unix_nano < after
    found = attributes(span)
    assert found.pop("cni.caller_pid") == os.getpid()
    assert found.pop("fastcni.request_id") in server.log_text()
    assert found == {
        "cni.command": "ADD", "cni.plugin": "bridge", "cni.network": "net-a", "cni.container_id": f"c-{pod}",
        "cni.ifname": "eth0", "cni.netns": f"/run/netns/{pod}", "cni.outcome": "0",
        "k8s.namespace.name": "default", "k8s.pod.name": "web-0"}
    assert span.status.code == Status.STATUS_CODE_UNSET
    children = collector.children(span)
    assert children[0].name == "queue"
    assert {child.name for child in children} >= {"queue", "ipam", "netlink", "nftables"}
    for inner in (inner for child in children for inner in (child, *collector.children(child))):
        assert inner.trace_id == span.trace_id and inner.kind == Span.SPAN_KIND_INTERNAL
        assert span.start_time_unix_nano <= inner.start_time_unix_nano
        assert inner.start_time_unix_nano <= inner.end_time_unix_nano <= span.end_time_unix_nano + 1_000_000
    resource = collector.resources[0]
    assert resource["service.name"] == "fastcni" and resource["host.name"] == os.uname().nodename
    assert resource["telemetry.sdk.language"] == "python"
    assert collector.paths[0] == "/v1/traces"


def test_a_delegate_is_a_span_inside_the_one_of_ipam(collector, serve, node, pod, tmp_path):     # noqa: F811
    server = serve(collector.url)
    keys, variables = Slow(tmp_path)(0)
    server.ok("ADD", node.conf(**keys), pod, env=variables)
    (span,) = collector.roots(1)
    (ipam,) = [child for child in collector.children(span) if child.name == "ipam"]
    assert [child.name for child in collector.children(ipam)] == ["delegate"]


def test_an_error_is_the_status_of_the_span(collector, serve):
    server = serve(collector.url)
    error = server.refused("ADD", BAD, "/nowhere")
    (span,) = collector.roots(1)
    assert span.status.code == Status.STATUS_CODE_ERROR and span.status.message == (
        f"CNI error {error['code']}: {error['msg']}")
    assert attributes(span)["error.type"] == attributes(span)["cni.outcome"] == str(error["code"])


def test_a_parent_may_come_by_cni_args_and_an_invalid_one_is_none(collector, serve):
    server = serve(collector.url)
    for env in ({"CNI_ARGS": f"IgnoreUnknown=1;TRACEPARENT={PARENT}-01"},
                {"CNI_ARGS": f"TRACEPARENT={PARENT}-01", "TRACEPARENT": "00-1"},
                {"TRACEPARENT": f"{PARENT.upper()}-01"}, {"TRACEPARENT": f"00-{'0' * 32}-{SPAN}-01"},
                {"CNI_ARGS": "TRACEPARENT=x;;=;a"}, {"CNI_ARGS": "A=\udcff", "CNI_CONTAINERID": "\udcff"}):
        server.call("STATUS", CONF, env=env)
    spans = collector.roots(6)
    assert [span.parent_span_id.hex() for span in spans] == [SPAN, SPAN, "", "", "", ""]
    assert len({span.trace_id for span in spans}) == 5


def test_a_command_that_is_no_text_costs_no_spans(collector, serve):
    """The SDK could not encode the name of such a command, and dropped the spans of all requests in the same
    message."""
    server = serve(collector.url)
    server.call("AD\udcff", CONF)
    server.call("STATUS", CONF)
    assert {span.name for span in collector.roots(2)} == {"AD? loopback", "STATUS loopback"}


def test_a_parent_that_is_not_sampled_has_no_spans(collector, serve):
    server = serve(collector.url)
    server.ok("STATUS", CONF, env={"TRACEPARENT": f"{PARENT}-00"})
    server.ok("STATUS", CONF, env={"TRACEPARENT": f"{PARENT}-01"})
    collector.roots(1)
    time.sleep(0.3)
    assert {span.trace_id.hex() for span in collector.spans} == {TRACE}
    assert len(collector.roots(1)) == 1


def test_the_variables_of_the_sdk_apply(collector, serve):
    server = serve(collector.url, env={"OTEL_TRACES_SAMPLER": "parentbased_always_off", "OTEL_SERVICE_NAME": "cni",
                                       "OTEL_EXPORTER_OTLP_HEADERS": "x-tenant=blue"})
    server.ok("STATUS", CONF)
    server.ok("STATUS", CONF, env={"TRACEPARENT": f"{PARENT}-01"})
    assert [span.trace_id.hex() for span in collector.roots(1)] == [TRACE]
    assert collector.resources[0]["service.name"] == "cni" and collector.headers[0]["x-tenant"] == "blue"


def test_fastcni_add_joins_the_trace_of_its_environment(collector, serve, node, pod, plugins, tmp_path):     # noqa: F811
    """The test makes one request for each plugin file, and one request for the complete list."""
    server = serve(collector.url)
    (tmp_path / "net.d").mkdir()
    (tmp_path / "net.d/a.conflist").write_text(
        '{"cniVersion": "1.0.0", "name": "net-a", "plugins": [{"type": "loopback"}, {"type": "tuning"}]}')
    env = {**os.environ, "FASTCNI_SOCKET": str(server.path), "TRACEPARENT": f"{PARENT}-01", "NETCONFPATH":
           str(tmp_path / "net.d")}
    words = [sys.executable, "-m", "fastcni", "add", "net-a", f"/run/netns/{pod}", "--bin-dir", plugins, "--cache-dir",
             str(tmp_path)]
    done = subprocess.run(words, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    spans = collector.roots(1)
    assert {span.name for span in spans} == {"ADD chain"}
    subprocess.run([f"{plugins}/loopback"], check=True, input=json.dumps(CONF).encode(), env={
        "CNI_COMMAND": "STATUS", "CNI_PATH": plugins,
        **{name: env[name] for name in ("FASTCNI_SOCKET", "TRACEPARENT")}})
    spans = collector.roots(2)
    assert {(span.trace_id.hex(), span.parent_span_id.hex()) for span in spans} == {(TRACE, SPAN)}


@pytest.mark.parametrize("how", ["away", "hangs", "refuses"])
def test_a_collector_that_fails_delays_neither_requests_nor_the_stop(how, serve, host_netns):
    with Collector(status=503, silent=how == "hangs") as it, socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}" if how == "away" else it.url
        server = serve(url, env={"OTEL_EXPORTER_OTLP_TIMEOUT": "1" if how == "refuses" else "10"})
        started = time.monotonic()
        for _ in range(200):
            server.ok("STATUS", CONF)
        assert time.monotonic() - started < 5
        if how == "refuses":
            assert eventually(lambda: server.lines("traces_lost", "requests="), 20)
        started = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - started < traces.STOP_S + 2
        assert server.lines("traces_lost") and server.lines("server_stopped")
        assert "Traceback" not in server.log_text()


def test_what_waits_is_sent_at_the_stop(collector, serve):
    server = serve(collector.url)
    for _ in range(300):
        server.ok("STATUS", CONF)
    assert server.stop() == 0
    assert len(collector.roots(300)) == 300
    assert not server.lines("traces_lost")
