"""Read `ipam.store` (docs/ipam.md) and open the store of cluster-wide addresses that it names. Only the store in use is
imported.

STORES names each store's module and its class. The class takes the Settings, a dict, and has the methods of
contract.Store.

    rules               rules that all stores share
    local               a file, for one node
    etcd                etcd; clients/etcd.py sends the requests
    etcd_keys           etcd's keys and values
    etcd_nodes          nodes and heartbeats in etcd
    etcd_watch          a copy of etcd's records, kept up to date by one watch
    kubernetes          the Kubernetes API; clients/kubernetes.py sends the requests
    kubernetes_objects  converts records to objects and back
    kubernetes_blocks   IPBlocks
    kubernetes_nodes    IPNodes and heartbeats
    whereabouts_pools   reads whereabouts' addresses
"""

from __future__ import annotations

import sys

from fastcni.spec import json
from fastcni.spec.config import shown

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.mode import Mode
    from fastcni.kit.ipam.cluster.contract import Store
    from fastcni.spec.config import Section

    Settings = dict[str, Any]

# {type of store: (module, class)}
STORES = {
    "etcd": ("fastcni.kit.ipam.cluster.stores.etcd", "EtcdStore"),
    "kubernetes": ("fastcni.kit.ipam.cluster.stores.kubernetes", "KubernetesStore"),
    "local": ("fastcni.kit.ipam.cluster.stores.local", "LocalStore"),
}
TEXTS = {       # {type of store: its keys with a text value}
    "etcd": ("ca", "cert", "key", "username", "password", "password_file", "prefix"),
    "kubernetes": ("kubeconfig", "k8s_api_root", "context", "namespace"),
    "local": ("path",),
}
# Keys of every type, in seconds. node_ttl: a node is LOST after so long without a heartbeat (default NODE_TTL_S).
# dead_after: a node that was LOST for so long is declared dead (default 600).
TIMES = ("node_ttl", "dead_after")
PATHS = ("ca", "cert", "key", "password_file", "kubeconfig", "path")
PLACES = ("type", "path", "prefix", "kubeconfig", "k8s_api_root", "context")     # keys that identify a store
LOCAL_PATH = "/var/lib/cni/cluster-store"
ETCD_PREFIX = "/fastcni/v1"


def read_settings(ipam: Section) -> Settings:
    """Return the Settings of a configuration's store, {"type": ..., and the store's keys}: from `store`, else from
    whereabouts' `kubernetes`, else of the local store. Raises CniError 7. A Lenient Section, which DEL uses, ignores
    wrong times."""
    kubernetes = ipam.strict.section("kubernetes")
    whereabouts = {key: kubernetes.text(key) for key in ("kubeconfig", "k8s_api_root") if kubernetes.text(key)}
    if not ipam.has("store"):
        return {"type": "kubernetes"} | whereabouts if whereabouts else {"type": "local", "path": LOCAL_PATH}
    store, times = ipam.strict.section("store"), ipam.section("store")
    kind = store.text("type")
    if kind not in STORES:
        raise store.wrong("type", f"expected one of {', '.join(STORES)}, got {shown(kind)}")
    found: Settings = {"type": kind} | {key: store.text(key) for key in TEXTS[kind] if store.text(key)}
    found |= {key: seconds for key in TIMES if (seconds := times.integer(key, low=1))}
    for key in PATHS:
        if not found.get(key, "/").startswith("/"):
            raise store.wrong(key, f"expected an absolute path, got {shown(found[key])}")
    if kind == "kubernetes":
        return whereabouts | found
    if kind == "local":
        return {"path": LOCAL_PATH} | found
    found["endpoints"] = store.texts("endpoints")
    if not found["endpoints"]:
        raise store.wrong("endpoints", 'missing; expected a list as ["https://10.0.0.1:2379"]')
    return {"prefix": ETCD_PREFIX} | found


def store_of(mode: Mode, settings: Settings) -> Store:
    """Return the Store for `settings`. The mode keeps it open for later requests."""
    return mode.cluster_store(key_of(settings), lambda: open_store(settings))


def key_of(settings: Settings) -> str:
    """Return a text that identifies a store: equal settings give equal texts."""
    return json.write(settings, sort=True).decode()


def same_store(key: str, settings: Settings) -> bool:
    """Return whether settings seem to name the same store as an earlier key_of(), `key`. One common endpoint is enough;
    credentials and times do not matter. True for the key "", which means that no earlier store is known."""
    if not key:
        return True
    before = json.read(key.encode())
    endpoints = before.get("endpoints")
    return all(before.get(name) == settings.get(name) for name in PLACES) and (
        not endpoints or not set(endpoints).isdisjoint(settings["endpoints"]))


def open_store(settings: Settings) -> Store:
    """Return a new Store. The Store connects at its first use."""
    module, name = STORES[settings["type"]]
    __import__(module)
    store: Store = getattr(sys.modules[module], name)(settings)
    return store


def store_text(settings: Settings) -> str:
    """Return the store's type and place as text, "etcd https://10.0.0.1:2379"."""
    where = settings.get("endpoints") or [settings.get("path") or settings.get("kubeconfig") or "in this cluster"]
    return f"{settings['type']} {', '.join(where)}"
