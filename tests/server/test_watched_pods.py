"""What the server keeps of the pods that it watches."""

import tracemalloc

from fastcni.clients.kubernetes_watch import follow
from fastcni.kit.networks.api_objects import PODS, Pod
from fastcni.kit.networks.selection import NETWORKS
from fastcni.server.networks.watch import Watch

MAX_BYTES = 2 << 20             # of 1,000 pods; the daemon of Multus takes 3.9 MB


def pod(number):
    """A pod as the API has it, some 3 kB."""
    return {"metadata": {"name": f"web-{number:05}", "namespace": f"shop-{number % 20}", "uid": f"{number:036}",
                         "resourceVersion": str(number), "labels": {f"label-{i}": f"{number}-{i}" for i in range(8)},
                         "annotations": {NETWORKS: f"storage,backup@bak{number % 5}", "notes": f"{number} " * 100}},
            "spec": {"containers": [{"name": "web", "env": [{"name": f"NAME_{i}", "value": f"{number} {i}" * 5}
                                                            for i in range(20)]}]}}


class Api:
    """An API server with 1,000 pods. Its watch ends, after it has measured what the list has left."""

    size = 0

    def list_with_revision(self, *_):
        return [pod(number) for number in range(1000)], "1000"

    def watch(self, *_):
        self.size, _ = tracemalloc.get_traced_memory()
        return iter(())


def test_a_thousand_watched_pods_take_less_than_two_megabytes():
    api, watch = Api(), Watch(None, PODS, Pod, None, -1)
    tracemalloc.start()
    try:
        follow(api, PODS, PODS, watch._tell, lambda: api.size > 0, watch._list_ended)
    finally:
        tracemalloc.stop()
    assert len(watch.found) == 1000
    print(f"{api.size:,} bytes")
    assert api.size < MAX_BYTES
