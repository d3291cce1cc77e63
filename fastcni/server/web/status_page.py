"""Serve the status page of `--http`: one HTML document, and the JSON that its script reads.

    /               the page
    /status.json    the data of `fastcni top`, see node/activity/summary.py
    /topology.json  the attachments of this node, see node/attachments/topology.py

A thread makes a JSON document only when a client asks for it.
"""

from __future__ import annotations

from base64 import b64encode
from hashlib import sha256
from json import dumps  # C code: fastcni.spec.json takes twice as long
from pathlib import Path
from typing import TYPE_CHECKING

from fastcni.server.latest import Latest
from fastcni.server.web.listener import NotReady, Page

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from fastcni.daemon.log import Logger
    from fastcni.server.service import Server
    from fastcni.server.web.site import Site

    Document = dict[str, Any]
    Ask = Callable[[int], Document]             # see history.History.after()

STATUS_S, TOPOLOGY_S = 1.5, 5.0                 # seconds for which a document is valid
JSON = "application/json"
HEADERS = ("Cache-Control: no-store\r\nCross-Origin-Resource-Policy: same-origin\r\nReferrer-Policy: no-referrer\r\n"
           "X-Frame-Options: DENY\r\n")


class StatusPage:
    """The status page of a site. make_status(describe, ask): returns the function that makes /status.json; ask is None
    if the server keeps no history. make_topology: makes /topology.json."""

    def __init__(self, site: Site, make_status: Callable[[Callable[[], Document], Ask | None], Callable[[], Document]],
                 make_topology: Callable[[], Document], log: Logger) -> None:
        self.site, self.make_status, self.make_topology, self.log = site, make_status, make_topology, log

    def attach(self, server: Server) -> None:
        """Add the pages that show this server."""
        local = not isinstance(self.site.where, str)        # no browser connects to a unix socket by itself
        content, policy = read_page()
        self.site.pages["/"] = Page("text/html; charset=utf-8", lambda: content, f"{HEADERS}{policy}\r\n", local)
        status = self.make_status(server.describe, server.history.after if server.history else None)
        for name, make, good_s in (("status", status, STATUS_S), ("topology", self.make_topology, TOPOLOGY_S)):
            self.site.pages[f"/{name}.json"] = Page(JSON, latest(make, good_s, self.log, name), HEADERS, local)
        self.site.announce("page_ready")

    def start(self) -> None:
        """Do nothing: the site starts the listener."""

    def stop(self) -> None:
        """Do nothing: the site stops the listener."""


def latest(make: Callable[[], Document], good_s: float, log: Logger, name: str) -> Callable[[], bytes]:
    """Return the function `make` of a Page, which returns the latest document or raises NotReady."""
    # ASCII only, because file names may not be UTF-8
    them = Latest(lambda: dumps(make()).encode(), b"", good_s, log, f"page-{name}")

    def content() -> bytes:
        if found := them.get():
            return found
        raise NotReady

    return content


def read_page() -> tuple[bytes, str]:
    """Return the HTML with its style and script, and the header line that allows only this style and this script."""
    html, style, script = (Path(__file__).with_name(f"page.{kind}").read_bytes() for kind in ("html", "css", "js"))
    policy = (f"Content-Security-Policy: default-src 'none'; style-src {digest(style)}; script-src {digest(script)}; "
              "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
    return html.replace(b"{style}", style).replace(b"{script}", script), policy


def digest(content: bytes) -> str:
    return f"'sha256-{b64encode(sha256(content).digest()).decode()}'"
