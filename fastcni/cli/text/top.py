"""Format a frame of `fastcni top`: turn the document of node/activity/summary.py into lines that fit a terminal.

A terminal of 80x24 is enough. Colours repeat what the text says.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich.cells import set_cell_size
from rich.text import Text

from fastcni.cli.text.flows import line
from fastcni.cli.text.inventory import SHORT_ID, age
from fastcni.cli.text.output import printable

MIN_COLUMNS, MIN_LINES = 60, 12
BUSY = 0.9                      # pools get a mark if a larger share of their addresses is held
COMMANDS = ("ADD", "DEL")       # commands that have their own column; a third column shows one other command
ERRORS_AT = 57                  # the column at which the errors begin, to the right of the times
WITH_TEXTS = 105                # a terminal of so many columns also shows the meanings of codes, and the requests' ids
MAX_PHASES = 6                  # limit of the rows of phases, below the row with the times of complete requests
NAME = 15                       # width of a network's name
DASH = "-"
# The orders that the key `s` cycles through: (name, sorting key of a network's row)
SORTS: tuple[tuple[str, Callable[[dict[str, Any]], Any]], ...] = (
    ("requests", lambda it: (-it["requests"], -it["attachments"])),
    ("failed", lambda it: -it["failed"]),
    ("p99", lambda it: -(it["p99Ms"] or 0.0)),
    ("pods", lambda it: -it["attachments"]),
    ("full", lambda it: -((it["pool"] or {}).get("full") or 0.0)),
    ("name", lambda it: it["network"]),
)
HELP = """\
s       sort networks by the next of: requests, failed, p99, pods, full, name
/       show only requests and networks with a text in network or container:
        type it, then Enter; Escape shows all again
space   freeze the figures; again: go on. Sorting and filters work meanwhile
q       quit (also Ctrl-C)
?       close this text

The figures are of the requests that ended in the time above, the last
minute. TIME is in milliseconds: all of a request with its time in the
queue, then its phases, which can lie inside each other (netlink in ipam).
p50: half of the requests took at most so long. p99: 99 of 100.
PODS are the attachments in the result cache. FULL, FREE and RANGE are of
the network's fullest range of addresses; ! marks more than 90%.
The slowest requests: CODE 0 is success, MOST the phase that took more
than half of the time, if there is one.
"""


@dataclass(slots=True)
class View:
    """The user's choices in the view. sort: an index of SORTS. chosen: the filter. typing: the filter while the user
    types it, or None. trouble: why the figures are out of date; "" if they are current."""

    sort: int = 0
    chosen: str = ""
    typing: str | None = None
    frozen: bool = False
    help: bool = False
    trouble: str = ""


def frame(document: dict[str, Any], view: View, columns: int, lines: int, *, keys: bool = True) -> Text:
    """Return the frame as text of at most `lines` lines, each of at most `columns` cells. keys: whether the last line
    lists the keys."""
    rows = [*head(document, view)]
    if columns < MIN_COLUMNS or lines < MIN_LINES:
        rows.append(Text(f"The terminal is too small: {MIN_COLUMNS}x{MIN_LINES} is needed, 80x24 is good."))
    elif view.help:
        rows += [Text(), *map(Text, HELP.splitlines())]
    else:
        left = lines - len(rows) - keys
        rows += timings(document, columns)[:left]
        left = lines - len(rows) - keys - 4             # each of the two tables has an empty line and a headline
        networks = min(len(document["networks"]), max(1, left // 2 if document["slowest"] else left))
        rows += network_lines(document, view, max(0, networks))
        rows += slowest_lines(document, max(0, left - networks), columns)
    rows = rows[:lines - keys]
    if keys:
        rows += [Text()] * (lines - len(rows) - 1) + [key_line(view)]
    for it in rows:
        it.truncate(columns, overflow="ellipsis")
    return Text("\n", no_wrap=True, end="").join(rows)


def head(document: dict[str, Any], view: View) -> Iterable[Text]:
    """Return three lines: the server; its load; why the figures are out of date or incomplete, or the last dropped
    packet."""
    server, now = document["server"], document["time"]
    title = Text("fastcni top", style="bold")
    if server:
        up = age(now - server["uptimeSeconds"], now)
        title.append(f"  version {server['version']}, pid {server['pid']}, up {up}", style="not bold")
    title.append(time.strftime("  %H:%M:%S", time.localtime(now)), style="not bold")
    for text in ["FROZEN"] * view.frozen + [f"filter: {printable(view.chosen)}"] * bool(view.chosen):
        title.append("  ").append(f" {text} ", style="reverse")
    yield title
    failed = document["failed"]
    load = Text(f"{number(document['perSecond'])} requests/s in {document['seconds']:.0f} s   ")
    load.append(f"{failed} failed", style="bold red" if failed else "")
    if server:
        load.append(f"   running {server['running']} of {server['workers']}   "
                    f"queue {server['waiting']} of {server['queueSize']}")
    yield load
    if view.trouble:
        yield Text(printable(view.trouble), style="bold yellow")
    elif document["lost"]:
        yield Text(f"A sample: {document['lost']} requests left the server's history unread, only requests/s has them",
                   style="yellow")
    elif server and server["flows"] and server["flows"]["last"]:
        dropped, last = server["flows"]["dropped"], server["flows"]["last"][-1]
        yield Text(f"{dropped} dropped in 60 s, the last: {line(last)}", style="yellow")
    else:
        yield Text()


def timings(document: dict[str, Any], columns: int) -> list[Text]:
    """Return lines with the times of each phase in milliseconds, and with the errors to the right of the times."""
    phases = list(dict.fromkeys(it["phase"] for it in document["phases"]))[:MAX_PHASES]
    by_key = {(it["phase"], it["command"]): it for it in document["phases"]}
    others = [it["command"] for it in document["commands"] if it["command"] not in COMMANDS]
    other = others[0] if others else "STATUS"           # of all commands except ADD and DEL, the most frequent
    shown = (*COMMANDS, other)
    totals = {it["command"]: it for it in document["commands"]}
    left = [Text("TIME".ljust(9) + "".join(f"{name:>16}" for name in shown), style="bold"),
            Text(" " * 9 + f"{'p50':>8}{'p99':>8}" * len(shown), style="bold")]
    for name, rows in [("all", totals), *((name, {command: by_key.get((name, command), {}) for command in shown})
                                          for name in phases)]:
        cells = (rows.get(command, {}).get(key) for command in shown for key in ("p50Ms", "p99Ms"))
        left.append(Text(fit(name, 9) + "".join(f"{number(it):>8}" for it in cells)))
    return beside(left, error_lines(document, columns), columns)


def error_lines(document: dict[str, Any], columns: int) -> list[Text]:
    errors = document["errors"]
    if not errors:
        return [Text("NO ERRORS", style="bold")]
    lines = [Text("ERRORS", style="bold"), Text("number  code", style="bold")]
    wide = columns >= WITH_TEXTS
    return lines + [Text(f"{it['requests']:>6}  {fit(it['outcome'], 12)} {it['text'] if wide else ''}", style="red")
                    for it in errors]


def beside(left: Sequence[Text], right: Sequence[Text], columns: int) -> list[Text]:
    """Return the lines of `left`. If the terminal is wider than ERRORS_AT columns, append the lines of `right` to them,
    one to each.

    If `right` is longer than `left`, lines of `right` are appended up to line MAX_PHASES + 3.
    """
    count = max(len(left), min(len(right), MAX_PHASES + 3))
    found = []
    for at in range(count):
        line = left[at].copy() if at < len(left) else Text()
        if at < len(right) and columns > ERRORS_AT:
            line.pad_right(max(0, ERRORS_AT + 2 - line.cell_len))
            line.append_text(right[at])
        found.append(line)
    return found


def network_lines(document: dict[str, Any], view: View, most: int) -> list[Text]:
    """Return an empty line, a headline that marks the sorting key, and lines of at most `most` networks."""
    name, key = SORTS[view.sort]
    titles = {"name": fit("NETWORK", NAME), "pods": f"{'PODS':>6}", "requests": f"{'REQ/S':>7}",
              "failed": f"{'FAILED':>7}", "p50": f"{'P50':>7}", "p99": f"{'P99':>7}", "full": f"{'FULL':>6}"}
    lines = [Text(), Text("", style="bold")]
    for each, title in titles.items():
        lines[1].append(title, style="underline" if each == name else "")
    lines[1].append(f"{'FREE':>6}  RANGE")
    rows = sorted(document["networks"], key=key)
    if len(rows) > most:
        lines[1].append(f"  ({most} of {len(rows)} networks)")
    for it in rows[:most]:
        pool = it["pool"] or {}
        full = pool.get("full")
        share = DASH if full is None else f"{'!' if full > BUSY else ''}{full:.0%}"
        lines.append(Text(f"{fit(it['network'] or DASH, NAME)}{it['attachments']:>6}{number(it['perSecond']):>7}"
                          f"{number(it['failed']):>7}{number(it['p50Ms']):>7}{number(it['p99Ms']):>7}{share:>6}"
                          f"{number(pool.get('free')):>6}  {short_range(printable(pool.get('range', '')))}",
                          style="yellow" if it["failed"] or (full or 0) > BUSY else ""))
    return lines if rows else [*lines, Text("no networks", style="dim")]


def slowest_lines(document: dict[str, Any], most: int, columns: int) -> list[Text]:
    """Return an empty line, a headline, and lines of at most `most` slowest requests. A wide terminal also shows the
    requests' ids."""
    wide = columns >= WITH_TEXTS
    lines = [Text(), Text(f"{'SLOWEST':>8}  {'COMMAND':8}{'PLUGIN':12}{'NETWORK':13}{'CONTAINER':{SHORT_ID + 1}}"
                          f"{'ENDED':10}{'CODE':6}{'MOST      ID' if wide else 'MOST'}", style="bold")]
    for it in document["slowest"][:most]:
        total, spent = it["queueMs"] + it["ms"], {"queue": it["queueMs"], **it["phases"]}
        longest = max(spent, key=spent.__getitem__)
        most_of_it = printable(longest) if spent[longest] * 2 > total else DASH
        ended = time.strftime("%H:%M:%S", time.localtime(it["ended"]))
        lines.append(Text(f"{number(total):>8}  {fit(it['command'], 8)}{fit(it['plugin'], 12)}"
                          f"{fit(it['network'] or DASH, 13)}{fit(it['container'][:SHORT_ID] or DASH, SHORT_ID + 1)}"
                          f"{ended:10}{fit(it['outcome'], 6)}"
                          f"{fit(most_of_it, 10) + it['id'] if wide else most_of_it}",
                          style="" if it["outcome"] == "0" else "red"))
    return lines if document["slowest"] else [*lines, Text("no requests in this time", style="dim")]


def key_line(view: View) -> Text:
    if view.typing is not None:
        return Text(f" filter (network or container): {printable(view.typing)}_   Enter: use it  Escape: show all",
                    style="reverse")
    freeze = "go on" if view.frozen else "freeze"
    return Text(f" q quit   s sort: {SORTS[view.sort][0]}   / filter   space {freeze}   ? help ", style="reverse")


def fit(text: str, cells: int) -> str:
    """Return the text in exactly `cells` cells, of which the last is empty; a longer text is cut and ends with "~"."""
    text = printable(text)
    return set_cell_size(text if len(text) < cells else f"{text[:cells - 2]}~", cells)


def short_range(text: str) -> str:
    """Return a range of addresses in short form: "10.1.0.1-254" for "10.1.0.1-10.1.0.254"."""
    first, _, last = text.partition("-")
    same = max(first.rfind("."), first.rfind(":")) + 1
    return f"{first}-{last[same:]}" if last and first[:same] == last[:same] else text


def number(value: float | None) -> str:
    """Return a number in at most six characters: "1.94", "740", "123k"; a dash for None."""
    if value is None:
        return DASH
    if value < 100_000:
        return f"{value:.{0 if isinstance(value, int) or value >= 100 else 1 if value >= 10 else 2}f}"
    for unit, factor in (("k", 1e3), ("M", 1e6), ("G", 1e9)):
        if value < 1000 * factor:
            return f"{value / factor:.0f}{unit}"
    return f"{value:.0e}"
