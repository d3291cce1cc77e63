"""Wait until the API server of a kubeconfig is ready, and apply fastcni's CRDs as kubectl does: apply_crds.py
KUBECONFIG"""

import sys
import time

from cluster.kubernetes.api_server import documents

from fastcni.clients.errors import Away
from fastcni.clients.kubernetes import Conflict
from fastcni.kit.ipam.cluster.stores import open_store

CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
READY_S = 120


def main():
    api = open_store({"type": "kubernetes", "kubeconfig": sys.argv[1]}).api
    end = time.monotonic() + READY_S
    while True:
        try:
            api.list_all(CRDS)
            break
        except Away as e:
            if time.monotonic() > end:
                sys.exit(f"no API server: {e}")
            time.sleep(0.5)
    for crd in documents("cluster-ipam-crds.yaml"):
        try:
            api.create(CRDS, crd)
        except Conflict as e:
            print(e)
        while not established(api, crd["metadata"]["name"]):
            time.sleep(0.1)


def established(api, name):
    """Return whether the API server accepts objects of the CRD. Exits if the API server rejects the schema."""
    status = api.get(f"{CRDS}/{name}").get("status") or {}
    conditions = {it["type"]: it for it in status.get("conditions") or ()}
    if conditions.get("NonStructuralSchema", {}).get("status") == "True":
        sys.exit(f"{name}: {conditions['NonStructuralSchema']['message']}")
    return conditions.get("Established", {}).get("status") == "True"


if __name__ == "__main__":
    main()
