"""Core objects of Kubernetes for the API mock: the kubelet's Lease, and schemas of Event and Lease in the form of
CRDs."""

import time

from fastcni.kit.ipam.cluster.stores.kubernetes_objects import to_time


def kubelet_lease(node, age=0, owner="Node"):
    """Return the Lease in kube-node-lease that a kubelet renewed `age` seconds ago. owner: the kind of the Lease's
    owner."""
    return {"metadata": {"name": node, "ownerReferences": [{"apiVersion": "v1", "kind": owner, "name": node,
                                                            "uid": "1"}]},
            "spec": {"holderIdentity": node, "leaseDurationSeconds": 40, "renewTime": to_time(time.time() - age)}}


# An Event of events.k8s.io/v1, with the rules by which Kubernetes' ValidateEvent checks new Events
EVENT = {"group": "events.k8s.io", "names": {"kind": "Event", "plural": "events"}, "versions": [{
    "name": "v1", "schema": {"openAPIV3Schema": {
        "type": "object",
        "required": ["eventTime", "reportingController", "reportingInstance", "action", "reason", "type", "regarding"],
        "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
            "eventTime": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$"},
            "reportingController": {"type": "string", "pattern": "^[a-z0-9.]+/[A-Za-z0-9._-]+$", "maxLength": 128},
            "reportingInstance": {"type": "string", "minLength": 1, "maxLength": 128},
            "action": {"type": "string", "minLength": 1, "maxLength": 128},
            "reason": {"type": "string", "minLength": 1, "maxLength": 128},
            "type": {"enum": ["Normal", "Warning"]}, "note": {"type": "string", "maxLength": 1024},
            "regarding": {"type": "object", "properties": {
                name: {"type": "string"} for name in ("apiVersion", "kind", "name", "namespace", "uid")}},
            "series": {"type": "object", "required": ["count", "lastObservedTime"], "properties": {
                "count": {"type": "integer", "minimum": 2},
                "lastObservedTime": {"type": "string", "pattern": r"\.\d{6}Z$"}}}}}}}]}
# A Lease of coordination.k8s.io/v1. Its times are MicroTime.
LEASE = {"group": "coordination.k8s.io", "names": {"kind": "Lease", "plural": "leases"}, "versions": [{
    "name": "v1", "schema": {"openAPIV3Schema": {
        "type": "object",
        "properties": {
            "apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"},
            "spec": {"type": "object", "properties": {
                "holderIdentity": {"type": "string"}, "leaseDurationSeconds": {"type": "integer", "minimum": 1},
                "acquireTime": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$"},
                "renewTime": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z$"},
                "leaseTransitions": {"type": "integer", "minimum": 0}}}}}}}]}
