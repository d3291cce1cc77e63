"""Convert records of cluster-wide addresses to objects of the Kubernetes API and back: names, labels and fields. No
function sends a request.

    Block("s", "10.0.0.64/26", "node-1", 1, ACTIVE, 1.5)

    apiVersion: ipam.fastcni.dev/v1alpha1
    kind: IPBlock
    metadata: {name: s.10-0-0-64-26, labels: {ipam.fastcni.dev/space: s, ipam.fastcni.dev/node: node-1}}
    spec: {space: s, cidr: 10.0.0.64/26, node: node-1, epoch: 1, state: active, since: "1970-01-01T00:00:01.5Z"}

An object's name follows from its block, address or node. So two nodes that claim the same block create the same name,
and the API server rejects the second object. Labels only select the objects of a list. After a list the store compares
the fields of each object. deploy/cluster-ipam-crds.yaml has the schemas.
"""

from __future__ import annotations

import time

from fastcni.kit.call.names import digest
from fastcni.kit.ipam.cluster.contract import Block, IPClaim, Node, Use
from fastcni.spec import address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Object = dict[str, Any]

GROUP = "ipam.fastcni.dev"
API_VERSION = f"{GROUP}/v1alpha1"
BASE = f"/apis/{API_VERSION}"
SPACES, NODES, BLOCKS, CLAIMS, USES = "ipspaces", "ipnodes", "ipblocks", "ipclaims", "ipuses"
KINDS = {SPACES: "IPSpace", NODES: "IPNode", BLOCKS: "IPBlock", CLAIMS: "IPClaim", USES: "IPUse"}
RECORDS: dict[str, Any] = {NODES: Node, BLOCKS: Block, CLAIMS: IPClaim, USES: Use}

LABELED = ("space", "node", "pod", "block")     # fields that are also labels
RENAMED = {"boot_id": "bootID"}
TIMES = ("since", "written")
LEFT_OUT = ("revision", "seen")
FORGOTTEN = "forgotten"                         # state of an IPNode that forget() is removing; the Node record has DEAD

ALPHANUMERIC = frozenset("abcdefghijklmnopqrstuvwxyz0123456789")
LABEL_BYTES, NAME_BYTES, DIGEST_LENGTH = 63, 253, 34


# Names

def space_name(space: str) -> str:
    """Return the name of an IPSpace. The names of its IPBlocks and IPClaims begin with it."""
    return space if is_label(space) and not space.startswith("x-") else digest(space, DIGEST_LENGTH, "x-")


def node_name(node: str) -> str:
    """Return the name of an IPNode: the node's name if it is a valid object name, else a name with a digest."""
    return node if is_name(node) and not node.startswith("x-") else digest(node, DIGEST_LENGTH, "x-")


def block_name(space: str, cidr: str) -> str:
    """Return the name of an IPBlock or IPUse: "s.10-0-0-64-26"."""
    packed, prefix = address.read_cidr(cidr)
    return f"{space_name(space)}.{ip_part(packed)}-{prefix}"


def claim_name(space: str, ip: str) -> str:
    """Return the name of an IPClaim: "s.10-0-0-70", "s.fd00-9-0-0-0-0-0-40"."""
    return f"{space_name(space)}.{ip_part(address.read_ip(ip))}"


def name_of(record: Node | Block | IPClaim | Use) -> str:
    """Return the name of a record's object."""
    if isinstance(record, Node):
        return node_name(record.name)
    if isinstance(record, IPClaim):
        return claim_name(record.space, record.address)
    return block_name(record.space, record.cidr)


def ip_part(packed: bytes) -> str:
    if len(packed) == 4:
        return "-".join(map(str, packed))
    return "-".join(f"{packed[i] << 8 | packed[i + 1]:x}" for i in range(0, 16, 2))


def is_label(text: str) -> bool:
    """Return whether a text is a label by RFC 1123."""
    return (0 < len(text) <= LABEL_BYTES and ALPHANUMERIC.issuperset(text.replace("-", ""))
            and text[0] != "-" and text[-1] != "-")


def is_name(text: str) -> bool:
    """Return whether a text is a valid object name: RFC 1123 labels with dots between them."""
    return len(text) <= NAME_BYTES and all(map(is_label, text.split(".")))


# Labels

def label_value(text: str) -> str:
    """Return a label's value for a text: the text, or its digest if the text is no valid value."""
    value = text.replace("/", ".").replace(":", "-")
    good = ALPHANUMERIC.issuperset(value.lower().replace("-", "").replace(".", "").replace("_", ""))
    if good and len(value) <= LABEL_BYTES and value[0].isalnum() and value[-1].isalnum():
        return value
    return digest(text, DIGEST_LENGTH, "x-")


def labels_of(fields: dict[str, Any]) -> dict[str, str | None]:
    """Return the labels for the fields of LABELED; the label of an empty field is None."""
    return {f"{GROUP}/{key}": label_value(str(fields[key])) if fields[key] else None for key in LABELED
            if key in fields}


def selector(fields: dict[str, str]) -> str:
    """Return the query of a list of the objects with these fields; "" if no field is set."""
    chosen = "%2C".join(f"{key}%3D{value}" for key, value in labels_of(fields).items() if value)
    return f"labelSelector={chosen}" if chosen else ""


# Fields

def spec_of(record: Node | Block | IPClaim | Use) -> Object:
    """Return the `spec` of a record's object: each field in the form of the API, None for an empty field."""
    spec: Object = {}
    for name in record.__slots__:
        if name not in LEFT_OUT:
            value: Any = getattr(record, name)
            spec[RENAMED.get(name, name)] = None if value == "" else converted(name, value, to_time)
    return spec


def converted(name: str, value: Any, convert_time: Callable[[Any], Any]) -> Any:
    """Return the value of the field `name` with converted times. In the field `holders`, leave out empty values."""
    if name in TIMES:
        return convert_time(value)
    if name == "holders":
        return [{key: converted(key, held, convert_time) for key, held in holder.items() if held != ""}
                for holder in value]
    return value


def to_object(plural: str, name: str, spec: Object) -> Object:
    """Return an object to create."""
    fields = {key: value for key, value in spec.items() if value is not None}
    metadata: Object = {"name": name}
    labels = {key: value for key, value in labels_of(fields).items() if value}
    if labels:
        metadata["labels"] = labels
    return {"apiVersion": API_VERSION, "kind": KINDS[plural], "metadata": metadata, "spec": fields}


def to_patch(spec: Object, revision: str = "") -> Object:
    """Return a merge patch that sets `spec` and the labels. revision: the patch fails unless the object has this
    resourceVersion; "": any."""
    metadata: Object = {}
    if labels := labels_of(spec):
        metadata["labels"] = labels
    if revision:
        metadata["resourceVersion"] = revision
    return {"metadata": metadata, "spec": spec}


def to_record(plural: str, document: Object) -> Any:
    """Return the record of an object. A Node gets the stored `state`, without regard to heartbeats, and `seen` 0."""
    known = RECORDS[plural]
    spec = document.get("spec") or {}
    fields = {name: converted(name, spec[key], read_time) for name in known.__slots__
              if (key := RENAMED.get(name, name)) in spec and name not in LEFT_OUT}
    if plural == NODES:
        fields["seen"] = 0.0
    return known.from_dict(fields, revision_of(plural, document))


def revision_of(plural: str, document: Object) -> str:
    """Return the revision of a record. Every change of an IPClaim makes a new revision; for other objects, every change
    of `spec`."""
    metadata = document["metadata"]
    return f"{metadata['uid']}/{metadata['resourceVersion' if plural == CLAIMS else 'generation']}"


# Times

def to_time(seconds: float) -> str:
    """Return a unix time in the API's form, with nanoseconds, so that read_time() returns the same float."""
    whole = int(seconds // 1)
    nanoseconds = min(round((seconds - whole) * 1_000_000_000), 999_999_999)
    fraction = f".{nanoseconds:09d}".rstrip("0").rstrip(".")
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}{fraction}Z"


def read_time(text: str) -> float:
    """Return the unix time of a time in the API's form, 0 if the text is no time."""
    from datetime import datetime

    moment, _, fraction = text.removesuffix("Z").partition(".")
    try:
        if not text.endswith("Z"):
            return datetime.fromisoformat(text).timestamp()
        return datetime.fromisoformat(f"{moment}+00:00").timestamp() + float(f"0.{fraction or 0}")
    except ValueError:
        return 0.0
