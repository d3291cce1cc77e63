"""Show the requests of a server's history as text: a line for each request, its phases as a waterfall, and the steps of
its story.

    15:36:02.123 ADD bridge mynet pod1/eth0: done in 1.93 ms
      ipam       0.31 |    =====                                       |
      netlink    0.83 |  ==        ====  ===                           |
      nftables   0.42 |                        =========               |
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

from fastcni.node.activity.netlink_text import DONE, lines
from fastcni.spec.errors import FAILED_AT

WIDTH = 48                      # columns of a waterfall
ASKS = "_GET"                   # part of the names of messages that only read
NAMED = re.compile(r'plugin type="([^"]+)" \(index \d+\) failed')         # text of spec.errors.NestedError
WAYS = {"sent": ">", "received": "<"}
OUTCOMES = {"0": "done", "declined": "declined, it went one-shot", "caller_gone": "its caller left",
            "abandoned": "abandoned", "fault": "a fault of fastcni, see the server's log"}


def headline(request: dict[str, Any]) -> str:
    """Return a request's names, its outcome and its duration in one line. The time of day is in this machine's zone."""
    arrived = request["time"]
    clock = time.strftime("%H:%M:%S", time.localtime(arrived)) + f".{int(arrived % 1 * 1000):03d}"
    inner = failed_in_chain(request)
    names = [clock, request["command"], request["plugin"] + (f" ({inner})" if inner else ""), request["network"],
             "/".join(filter(None, (request["container"], request["ifname"])))]
    outcome = OUTCOMES.get(request["outcome"]) or f"error {request['outcome']}"
    took = f"{'in' if request['outcome'] == '0' else 'after'} {request['ms']:.2f} ms"
    queued = f", {request['queueMs']:.2f} ms in the queue" if request["queueMs"] >= 1 else ""
    return f"{' '.join(filter(None, names))}: {outcome} {took}{queued}"


def failed_in_chain(request: dict[str, Any]) -> str:
    """Return the type of the chain's plugin that has failed; "" if no plugin of a chain has failed."""
    story = request.get("story", {})
    found = story.get("error")
    if not isinstance(found, dict):
        return ""
    index, plugins = found.get(FAILED_AT), (story.get("configuration") or {}).get("plugins")
    if isinstance(index, int) and isinstance(plugins, list) and index < len(plugins):
        return str(plugins[index].get("type", ""))
    named = NAMED.match(str(found.get("msg", "")))
    return named[1] if named else ""


def waterfall(request: dict[str, Any], width: int = WIDTH) -> Iterator[str]:
    """Yield a line for each kind of phase: its name, the sum of its milliseconds, and its position in the request."""
    kinds: dict[str, list[dict[str, Any]]] = {}
    for phase in request["phases"]:
        kinds.setdefault(phase["name"], []).append(phase)
    scale = width / max(request["ms"], 0.001)
    for name, phases in sorted(kinds.items(), key=lambda kind: min(phase["startMs"] for phase in kind[1])):
        bar = [" "] * width
        for phase in phases:
            first = min(width - 1, max(0, int(phase["startMs"] * scale)))
            last = min(width, max(first + 1, round((phase["startMs"] + phase["ms"]) * scale)))
            bar[first:last] = "=" * (last - first)
        yield f"  {name:<9} {sum(phase['ms'] for phase in phases):7.2f} |{''.join(bar)}|"


def error(request: dict[str, Any]) -> Iterator[str]:
    """Yield the lines of a failed request's error: the message, then the details."""
    found = request.get("story", {}).get("error")
    if isinstance(found, dict):
        yield f"  {found.get('msg', '')}"
        yield from (f"    {text}" for text in str(found.get("details") or "").splitlines())
    elif found:
        yield f"  {found}"


def steps(request: dict[str, Any], *, brief: bool) -> Iterator[str]:
    """Yield the steps of a request's story with their milliseconds. brief: only for a failed request, yield only the
    changes that the kernel rejected, each with the request before, and the steps that are no netlink messages."""
    if brief and request["outcome"] == "0":
        return
    story = request.get("story", {})
    sent: list[str] = []
    done = False
    for step in story.get("steps", ()):
        at = f"  {step['ms']:9.3f} "
        if "text" in step:
            yield f"{at}{step['text']}"
            continue
        found = [f"{at}{WAYS[step['kind']]} {text}" for text in lines(bytes.fromhex(step["data"]))]
        if not brief:
            if done and [text.partition("< ")[2] for text in found] == [DONE]:
                continue                # show one line for the answers to all messages of a request
            done = found[-1].endswith(f"< {DONE}")
            yield from found
        elif step["kind"] == "sent":
            sent = found
        else:
            refused = [text for text in found if text.split("< ", 1)[-1].startswith("E")]
            asked = sent and all(ASKS in text for text in sent)     # asking for a missing object is no fault
            if refused and not asked:
                yield from (*sent, *refused)
                sent = []
    if story.get("dropped"):
        yield f"  {story['dropped']} bytes of further messages were not kept"


def given(request: dict[str, Any]) -> Iterator[str]:
    """Yield the request's id. If the request has a story, yield also its variables and its configuration, without
    secrets."""
    from json import dumps

    story = request.get("story", {})
    yield f"  request {request['id']} of process {request['pid']}"
    yield from (f"  {name}={value}" for name, value in story.get("environment", {}).items())
    if "configuration" in story:
        yield from (f"  {text}" for text in dumps(story["configuration"], indent=2, ensure_ascii=False).splitlines())
