"""Send traces of requests to OpenTelemetry: `fastcni serve --otlp URL`. docs/traces-and-events.md describes the traces.

    traces      the queue of ended requests, and the thread that sends their spans
    spans       the spans of a request, by OpenTelemetry's SDK
"""
