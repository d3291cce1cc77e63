"""The table of stores, and the keys that choose one: `ipam.store`, see docs/ipam.md. Only the store in use is imported.

A store's module has the class that the table names, made from the Settings' dict. contract.Store has its methods.
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

# {type: (module, class)}
STORES = {
    "etcd": ("fastcni.kit.ipam.cluster.stores.etcd", "EtcdStore"),
    "kubernetes": ("fastcni.kit.ipam.cluster.stores.kubernetes", "KubernetesStore"),
    "local": ("fastcni.kit.ipam.cluster.stores.local", "LocalStore"),
}
TEXTS = {       # the keys with a text, of each type
    "etcd": ("ca", "cert", "key", "username", "password", "password_file", "prefix"),
    "kubernetes": ("kubeconfig", "k8s_api_root", "context", "namespace"),
    "local": ("path",),
}
# Keys of every type, in seconds. node_ttl: without a heartbeat for so long a node is LOST (NODE_TTL_S). dead_after: so
# long LOST, it is declared dead (600).
TIMES = ("node_ttl", "dead_after")
PATHS = ("ca", "cert", "key", "password_file", "kubeconfig", "path")
PLACES = ("type", "path", "prefix", "kubeconfig", "k8s_api_root", "context")     # with another value: another store
LOCAL_PATH = "/var/lib/cni/cluster-store"
ETCD_PREFIX = "/fastcni/v1"


def read_settings(ipam: Section) -> Settings:
    """The store that a configuration names, {"type": ..., and its keys}: `store`; else `kubernetes` of whereabouts;
    else a local one. Raises CniError 7; the Lenient Section of a DEL does so unless the bad key is a time."""
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
    """The store of a configuration, opened once for the mode."""
    return mode.cluster_store(key_of(settings), lambda: open_store(settings))


def key_of(settings: Settings) -> str:
    """Return a text that identifies a store: equal settings give equal texts."""
    return json.write(settings, sort=True).decode()


def same_store(key: str, settings: Settings) -> bool:
    """Whether settings name the store of an earlier key_of(), as far as they show. One endpoint in common is enough;
    credentials and times do not matter. "": there is no earlier one."""
    if not key:
        return True
    before = json.read(key.encode())
    endpoints = before.get("endpoints")
    return all(before.get(name) == settings.get(name) for name in PLACES) and (
        not endpoints or not set(endpoints).isdisjoint(settings["endpoints"]))


def open_store(settings: Settings) -> Store:
    """Return a new Store, which connects at its first use."""
    module, name = STORES[settings["type"]]
    __import__(module)
    store: Store = getattr(sys.modules[module], name)(settings)
    return store


def store_text(settings: Settings) -> str:
    """A store for people: "etcd https://10.0.0.1:2379"."""
    where = settings.get("endpoints") or [settings.get("path") or settings.get("kubeconfig") or "in this cluster"]
    return f"{settings['type']} {', '.join(where)}"
