"""Convert the records of the inventory to plain JSON values."""

from __future__ import annotations

import time
from typing import Any

from fastcni.node.attachments.attachment import HostPort, NodeAttachment, Sighting

Document = dict[str, Any]


def moment(since: float) -> str | None:
    """Return a time as RFC 3339 text in UTC; None if the time is unknown (0.0)."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(since)) if since else None


def port(host_port: HostPort) -> Document:
    return {"hostPort": host_port.port, "protocol": host_port.protocol, "hostIP": host_port.host_ip or None,
            "containerIP": host_port.to or None,
            "containerPort": host_port.to_port or None}


def sighting(sighting: Sighting) -> Document:
    return {"kind": sighting.kind, "place": sighting.place, "text": sighting.text, "since": moment(sighting.since)}


def unowned(found: Sighting) -> Document:
    """Return the document of an object without an attachment, with the addresses and links of the object."""
    return {**sighting(found), "addresses": list(found.addresses), "links": list(found.links)}


def attachment(attachment: NodeAttachment) -> Document:
    return {"containerID": attachment.container_id, "pod": attachment.pod or None,
            "network": attachment.network or None,
            "ifname": attachment.ifname or None, "state": attachment.state, "why": attachment.why,
            "netns": attachment.netns or None,
            "addresses": list(attachment.addresses), "hostPorts": [port(each) for each in attachment.ports],
            "hostLinks": list(attachment.links), "plugins": list(attachment.plugins), "since": moment(attachment.since),
            "addedBy": attachment.author or None, "droppedBy": list(attachment.dropped_by),
            "datapath": attachment.datapath or None, "flowtable": attachment.flowtable,
            "seen": [sighting(each) for each in attachment.sightings]}
