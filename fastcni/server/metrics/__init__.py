"""Provide the server's metrics for Prometheus: `fastcni serve --metrics ADDRESS`. docs/metrics.md describes the
metrics.

    service     the page /metrics, see server/web
    table       the metrics, each with its type, its labels and its help text
    requests    counts and histograms of the requests that have ended
    pools       addresses and attachments, counted periodically in a thread
    one_shot    requests that found no server, counted by the plugin files
    pool_watch  logs when the addresses of a range run out
    registry    the values of all metrics, for the Prometheus client
"""
