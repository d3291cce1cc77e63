"""Read the state of a namespace by ip(8) and /proc/sys, independently of fastcni's own code."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from fastcni.testing.namespaces import Inside, ip

MAX_PAUSE_S = 0.05


def ip_json(*words: object, netns: str | None = None) -> list[dict[str, Any]]:
    """Return the decoded JSON list that `ip -j` with the arguments `words` prints; [] if it prints nothing."""
    out = ip("-j", *words, netns=netns)
    return json.loads(out) if out.strip() else []


def links(netns: str | None = None) -> dict[str, dict[str, Any]]:
    """Return {name of a link: its object in the output of `ip -j -d link`}."""
    return {item["ifname"]: item for item in ip_json("-d", "link", netns=netns)}


def addresses(name: str, netns: str | None = None) -> list[str]:
    """Return the global addresses of the link `name`, such as "10.22.0.2/16"."""
    return [f"{item['local']}/{item['prefixlen']}" for link in ip_json("addr", "show", "dev", name, netns=netns)
            for item in link["addr_info"] if item["scope"] == "global"]


def routes(netns: str | None = None, family: int = 4) -> dict[tuple[str, str], dict[str, Any]]:
    """Return {(destination, gateway or ""): its object in the output of `ip -j route`} for the main table, without
    IPv6 link-local routes."""
    found = ip_json(f"-{family}", "route", netns=netns)
    return {(item["dst"], item.get("gateway", "")): item for item in found if not item["dst"].startswith("fe80")}


def sysctl(name: str, netns: str | None = None) -> str:
    """Return the value of /proc/sys/`name` in the namespace `netns`; None: the calling thread's."""
    with Inside(netns), open(f"/proc/sys/{name}", encoding="ascii") as file:
        return file.read().strip()


def set_sysctl(name: str, value: str) -> None:
    """Write `value` to /proc/sys/`name` in the calling thread's namespace."""
    with open(f"/proc/sys/{name}", "w", encoding="ascii") as file:
        file.write(value)


def eventually(claim: Callable[[], Any], seconds: float = 30.0, pause: float = 0.01) -> Any:
    """Call claim() until it returns a true value, for at most `seconds`. Return its last value. pause: seconds between
    the first two calls; the next pauses grow to MAX_PAUSE_S, because many claims run programs. An example of a claim: a
    namespace that the kernel frees after a delay no longer exists."""
    deadline = time.monotonic() + seconds
    while not (found := claim()) and time.monotonic() < deadline:
        time.sleep(pause)
        pause = max(pause, min(pause * 1.25, MAX_PAUSE_S))
    return found
