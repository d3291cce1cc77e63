"""The process of the mock of the Kubernetes API: it prints its URL, and ends with its stdin."""

import sys

from cluster.kubernetes.api_server import Running

with Running() as running:
    print(running.url, flush=True)
    sys.stdin.read()
