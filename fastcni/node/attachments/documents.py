"""Convert the records of the inventory to plain JSON values."""

from __future__ import annotations

import time
from typing import Any

from fastcni.node.attachments.records import HostPort, NodeAttachment, Sighting

Document = dict[str, Any]


def moment(since: float) -> str | None:
    """Return a time as RFC 3339 text in UTC; None if it is unknown."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since)) if since else None


def port(it: HostPort) -> Document:
    return {"hostPort": it.port, "protocol": it.protocol, "hostIP": it.host_ip or None, "containerIP": it.to or None,
            "containerPort": it.to_port or None}


def sighting(it: Sighting) -> Document:
    return {"kind": it.kind, "place": it.place, "text": it.text, "since": moment(it.since)}


def unowned(it: Sighting) -> Document:
    """Return the document of an object without an attachment, with the names of its owner that it contains."""
    return {**sighting(it), "addresses": list(it.addresses), "links": list(it.links)}


def attachment(it: NodeAttachment) -> Document:
    return {"containerID": it.container_id, "pod": it.pod or None, "network": it.network or None,
            "ifname": it.ifname or None, "state": it.state, "why": it.why, "netns": it.netns or None,
            "addresses": list(it.addresses), "hostPorts": [port(each) for each in it.ports],
            "hostLinks": list(it.links), "plugins": list(it.plugins), "since": moment(it.since),
            "addedBy": it.author or None, "droppedBy": list(it.dropped_by), "datapath": it.datapath or None,
            "seen": [sighting(each) for each in it.sightings]}
