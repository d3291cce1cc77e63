"""Traces of requests for OpenTelemetry: `fastcni serve --otlp URL`. docs/traces-and-events.md describes them.

    traces      the queue of ended requests, and the thread that sends their spans
    spans       the spans of a request, by OpenTelemetry's SDK
"""
