"""Format flows as lines of text, see fastcni/flows/records.py."""

from __future__ import annotations

import time
from typing import Any

import click

from fastcni.cli.text.inventory import SHORT_ID
from fastcni.cli.text.output import printable
from fastcni.node.attachments.records import bracketed

Document = dict[str, Any]               # the result of Flow.document()


def line(flow: Document, coloured: bool = False) -> str:
    """Return a flow as one line: its time, verdict, protocol and ends, and what decided the verdict."""
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
    """ Return a request as text: "GET web/public/a 200", or with the reason "POST web/a 403: no rule for ingress allows
    it"."""
    text = " ".join(filter(None, (document["method"] or "TLS", f"{document['host']}{document['path']}",
                                  str(document["status"] or ""))))
    return f"{text}: {document['reason']}" if document["reason"] else text


def end_text(end: Document, with_port: bool = True) -> str:
    """Return a pod with its network, "shop/web@net:80", or an address."""
    name = end["pod"] if end["pod"] != end["container"] else end["pod"][:SHORT_ID]
    text = f"{name}@{end['network']}" if name else bracketed(end["address"])
    return f"{text}:{end['port']}" if with_port and end["port"] is not None else text
