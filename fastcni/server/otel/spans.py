"""Make and send the spans of requests by OpenTelemetry's SDK. Only this module imports the SDK.

    ADD bridge                  kind SERVER; its parent is the caller's span
      queue
      ipam
        netlink                 a phase that lies inside another phase is its child
      netlink
      nftables

The SDK decides by the parent's flag and OTEL_TRACES_SAMPLER whether a request is recorded.
"""

from __future__ import annotations

import json
import logging
import os
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from fastcni import __version__
from fastcni.daemon.log import to_utf8
from fastcni.server.records import secrets
from fastcni.server.records.ended import DECLINED, NAMES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from fastcni.server.otel.traces import Traced

PATH = "/v1/traces"
ARGUMENT = "TRACEPARENT"        # the variable, or the key of CNI_ARGS, that has the caller's span
# {key of CNI_ARGS: OpenTelemetry's attribute}
POD = {"K8S_POD_NAMESPACE": "k8s.namespace.name", "K8S_POD_NAME": "k8s.pod.name", "K8S_POD_UID": "k8s.pod.uid"}
VARIABLES = {"CNI_CONTAINERID": "cni.container_id", "CNI_IFNAME": "cni.ifname", "CNI_NETNS": "cni.netns"}
MAX_DESCRIPTION = 512
GOOD = ("0", DECLINED)          # outcomes that are no errors: a declined request goes one-shot


class Finished(SpanProcessor):
    """A span processor that collects the sampled spans when they end."""

    def __init__(self) -> None:
        self.spans: list[ReadableSpan] = []

    def on_end(self, span: ReadableSpan) -> None:
        self.spans.append(span)


class LastLine(logging.Handler):
    """A log handler that keeps the SDK's last log line, because the SDK reports a failed export only in its log."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.text = ""

    def emit(self, record: logging.LogRecord) -> None:
        self.text = record.getMessage()


class Sender:
    """The sender of requests' spans. url: the collector's URL, without PATH."""

    def __init__(self, url: str) -> None:
        self.last_line = LastLine()
        logger = logging.getLogger("opentelemetry")
        logger.handlers, logger.propagate = [self.last_line], False
        self.finished, self.propagator = Finished(), TraceContextTextMapPropagator()
        # OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES override these attributes
        resource = Resource.create({"service.name": "fastcni", "service.version": __version__,
                                    "host.name": os.uname().nodename}).merge(OTELResourceDetector().detect())
        provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(self.finished)
        self.tracer = provider.get_tracer("fastcni.server", __version__)
        self.exporter = OTLPSpanExporter(url.rstrip("/") + PATH)

    def send(self) -> str:
        """Send the spans of the requests since the last call. Return why sending failed, or ""."""
        spans, self.finished.spans = self.finished.spans, []
        self.last_line.text = ""
        if not spans or self.exporter.export(spans) is SpanExportResult.SUCCESS:
            return ""
        return self.last_line.text or "the export failed"

    def close(self) -> None:
        """Stop sending. Any thread may call close()."""
        self.exporter.shutdown()

    def add(self, traced: Traced) -> None:
        """Make the spans of a request, for the next send(). An exception leaves no span of the request."""
        made = len(self.finished.spans)
        try:
            self.make(traced)
        except BaseException:
            del self.finished.spans[made:]
            raise

    def make(self, traced: Traced) -> None:
        """Make the spans of a request."""
        arguments = read_arguments(traced.env.get("CNI_ARGS", ""))
        root = self.tracer.start_span(
            to_utf8(f"{traced.command} {traced.plugin}"), self.parent(traced.env, arguments), SpanKind.SERVER,
            attributes=attributes(traced, arguments), start_time=traced.arrived + traced.to_unix)
        if root.is_recording():
            if traced.outcome not in GOOD:
                root.set_status(Status(StatusCode.ERROR, description(traced)))
            self.add_phases(root, traced)
        root.end(traced.ended + traced.to_unix)

    def parent(self, env: Mapping[str, str], arguments: Mapping[str, str]) -> Context:
        """Return the caller's span from the environment, otherwise from CNI_ARGS. Ignore an invalid span."""
        for values in (env, arguments):
            if ARGUMENT in values:
                carrier = {"traceparent": values[ARGUMENT], "tracestate": values.get("TRACESTATE", "")}
                if found := self.propagator.extract(carrier, Context()):
                    return found
        return Context()

    def add_phases(self, root: Span, traced: Traced) -> None:
        """Add a child span for the time in the queue, and a child span for each phase."""
        outer = [(root, traced.ended)]              # the spans around the next phase, and when they end
        phases = [("queue", traced.arrived, traced.queued - traced.arrived), *traced.phases]
        contexts: dict[Span, Context] = {}
        for what, start, took in sorted(phases, key=lambda phase: (phase[1], -phase[2])):
            while len(outer) > 1 and start + took > outer[-1][1]:
                outer.pop()
            parent = outer[-1][0]
            context = contexts.get(parent) or contexts.setdefault(parent, set_span_in_context(parent, Context()))
            span = self.tracer.start_span(NAMES.get(what) or str(what), context, start_time=start + traced.to_unix)
            span.end(start + took + traced.to_unix)
            outer.append((span, start + took))


def attributes(traced: Traced, arguments: Mapping[str, str]) -> dict[str, str | int]:
    """Return the attributes of a request's span, without empty values."""
    found: dict[str, str | int] = {"cni.command": traced.command, "cni.plugin": traced.plugin,
                                   "cni.network": traced.network, "cni.outcome": traced.outcome,
                                   "fastcni.request_id": traced.id, "cni.caller_pid": traced.pid}
    found |= {attribute: traced.env.get(name, "") for name, attribute in VARIABLES.items()}
    found |= {attribute: arguments.get(key, "") for key, attribute in POD.items()}
    if traced.outcome not in GOOD:
        found["error.type"] = traced.outcome
    if traced.merged:                # phases beyond MAX_PHASES
        found["fastcni.merged_phases"] = ", ".join(f"{NAMES.get(what) or what} {took / 1e6:.3f} ms"
                                                   for what, took in traced.merged.items())
    return {name: to_utf8(value) if isinstance(value, str) else value for name, value in found.items() if value != ""}


def description(traced: Traced) -> str:
    """Return the description of an error status: "CNI error 7: bridge: expected a string"."""
    try:
        document = json.loads(traced.error)
    except ValueError:
        document = None
    text = f"CNI error {traced.outcome}" if traced.outcome.isdigit() else traced.outcome
    more = document.get("msg") if isinstance(document, dict) else traced.error
    return to_utf8(secrets.hide(f"{text}: {more}" if more else text))[:MAX_DESCRIPTION]


def read_arguments(text: str) -> dict[str, str]:
    """Return the keys and values of CNI_ARGS. Ignore parts without "="."""
    pairs: Sequence[tuple[str, str, str]] = [pair.partition("=") for pair in text.split(";")]
    return {key: value for key, equals, value in pairs if equals}
