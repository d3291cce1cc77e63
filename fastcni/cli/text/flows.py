"""Format flows, the documents of fastcni/flows/flow.py, as lines of text."""

from __future__ import annotations

import time
from typing import Any

import click

from fastcni.cli.text.inventory import SHORT_ID
from fastcni.cli.text.output import printable
from fastcni.node.attachments.attachment import bracketed

Document = dict[str, Any]               # JSON values that Flow.document() returns


def line(flow: Document, coloured: bool = False) -> str:
    """Return a flow as one line: the time, the verdict, the protocol, both ends, and the policy or firewall that
    decided."""
    when = time.strftime("%H:%M:%S", time.localtime(flow["time"]))
    verdict = f"{flow['verdict']:7}"
    if coloured:                    # click removes colours if stdout is not a terminal
        verdict = click.style(verdict, fg="red" if flow["verdict"] == "dropped" else "green")
    by = " ".join(filter(None, (flow["by"], flow["policy"])))
    if flow["by"] == "firewall":
        by = f"firewall {flow['chain']}"
    ends = f"{end_text(flow['source'], with_port=False)} > {end_text(flow['destination'])}"
    asked = f"  {printable(request_text(flow['request']))}" if flow.get("request") else ""
    decided = f"  by {printable(by)}" if by else ""
    return f"{when}  {verdict}  {flow['protocol']:5}  {printable(ends)}{decided}{asked}"


def request_text(document: Document) -> str:
    """Return an HTTP request as text: "GET web/public/a 200"; a denied request with the reason: "POST web/a 403: no
    rule for ingress allows it"."""
    text = " ".join(filter(None, (document["method"] or "TLS", f"{document['host']}{document['path']}",
                                  str(document["status"] or ""))))
    return f"{text}: {document['reason']}" if document["reason"] else text


def end_text(end: Document, with_port: bool = True) -> str:
    """Return one end of a flow: "shop/web@net:80" for a pod in a network, "192.0.2.7:80" for an address without a
    pod."""
    name = end["pod"] if end["pod"] != end["container"] else end["pod"][:SHORT_ID]
    text = f"{name}@{end['network']}" if name else bracketed(end["address"])
    return f"{text}:{end['port']}" if with_port and end["port"] is not None else text
