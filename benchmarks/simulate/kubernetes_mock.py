"""Run the mock of the Kubernetes API as a process. It prints its URL, and ends when its stdin ends."""

import sys

from cluster.kubernetes.api_server import Running

with Running() as running:
    print(running.url, flush=True)
    sys.stdin.read()
