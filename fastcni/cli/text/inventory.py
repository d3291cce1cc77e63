"""Format the inventory of attachments for a terminal of 80 columns: a list, one attachment, and the outcome of `fastcni
adopt`."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.text import Text

from fastcni.cli.text.output import printable
from fastcni.node.attachments.adopt import FAILED, WOULD_BUILD, Adoption
from fastcni.node.attachments.attachment import (
    GO,
    GONE,
    ORPHANED,
    RESTRICTED,
    RUNNING,
    STATES,
    Inventory,
    NodeAttachment,
)
from fastcni.node.attachments.explain import Explanation
from fastcni.node.attachments.inspect import Details, HostLink
from fastcni.node.checks.findings import plural
from fastcni.runtime.records import LO_IFNAME
from fastcni.spec import json

SHORT_ID = 12
PIECES = re.compile(r" *(?:`[^`]*`|[^ ])+")     # a word or a command in backquotes, with the space before it
STYLES = {RUNNING: "green", GONE: "yellow", ORPHANED: "yellow"}
MAX_NAMED = 5                   # limit of the objects without an attachment that the last line names
UNITS = ((86400, "d"), (3600, "h"), (60, "m"), (1, "s"))


def age(since: float, now: float) -> str:
    """Return the time from `since` to `now`, unix seconds, in the largest unit: "3d". "" if `since` is 0, unknown."""
    seconds = max(0, int(now - since))
    return next((f"{seconds // size}{unit}" for size, unit in UNITS if seconds >= size), "0s") if since else ""


def short_ids(ids: Iterable[str]) -> dict[str, str]:
    """Return {id: its beginning}. All beginnings have the same length: SHORT_ID, or more if two beginnings would be
    equal."""
    ids = set(ids)
    longest = max(map(len, ids), default=0)
    length = next((length for length in range(SHORT_ID, longest) if len({it[:length] for it in ids}) == len(ids)),
                  max(longest, SHORT_ID))
    return {it: it[:length] for it in ids}


def print_list(chosen: Sequence[NodeAttachment], inventory: Inventory, *, filtered: bool = False,
               console: Console | None = None) -> None:
    """Print a row for each attachment in `chosen`, then the number of these attachments in each state. filtered:
    whether the user has limited the list."""
    console = console or Console()
    if chosen:
        print_rows(chosen, inventory, console)
    hidden = sum(it.ifname == LO_IFNAME for it in inventory.attachments) - sum(it.ifname == LO_IFNAME for it in chosen)
    redirected = [it.datapath for it in chosen if it.datapath]
    datapath = (f"; {len(redirected)} in the datapath ebpf, policies restrict {redirected.count(RESTRICTED)} of these"
                if redirected else "")
    offloaded = sum(it.flowtable for it in chosen)
    flowtable = f"; {offloaded} in the agent's flowtable" if offloaded else ""
    more = f"; --all also shows {plural(hidden, 'loopback interface')}" if hidden and not filtered else ""
    put(console, summary(chosen, filtered) + datapath + flowtable + more)
    for it in chosen:
        if it.dropped_by:
            put(console, f"not let through: {it.name} ({' '.join(it.addresses)}) by {', '.join(it.dropped_by)}; "
                "`fastcni doctor` names the command", "yellow")
    print_rest(inventory, console)


def print_rows(chosen: Sequence[NodeAttachment], inventory: Inventory, console: Console) -> None:
    """Print a table with a row for each attachment in `chosen`."""
    ids, now = short_ids(it.container_id for it in inventory.attachments), time.time()
    titles = ("CONTAINER", "POD", "IFNAME", "NETWORK", "STATE", "AGE")
    table: list[tuple[str, ...]] = [titles]
    pods = {it.container_id: it.pod for it in inventory.attachments if it.pod}      # multus caches no pod names
    table += ((ids[it.container_id], pods.get(it.container_id, "-"), it.ifname or "?", it.network or "?", it.state,
               age(it.since, now)) for it in chosen)
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    lasts = [it.addresses for it in chosen]
    if not pods or sum(widths) + 2 * len(widths) > console.width:      # a long pod name gets its own line
        lasts = [(*filter(None, (pods.get(it.container_id),)), *it.addresses) for it in chosen]
        table = [(row[0], *row[2:]) for row in table]
        del widths[1]
    start = sum(widths) + 2 * len(widths)
    if start + max(len(text) for last in lasts for text in (*last, "ADDRESSES")) > console.width:
        start = 4                       # do not break addresses: each gets its own line
    for row, last in zip(table, [("ADDRESSES",), *lasts], strict=True):
        head = "  ".join(f"{printable(text):<{width}}" for text, width in zip(row, widths, strict=True))
        lines = ([head.rstrip()] if start == 4 or not last else []) + [f"{'':{start}}{ip}" for ip in last]
        if start > 4 and last:
            lines[0] = f"{head}  {last[0]}"
        text = Text("\n".join(lines), style="bold" if row is table[0] else "")
        if (state := row[-2]) in STYLES:
            at = sum(widths[:-2]) + 2 * len(widths[:-2])
            text.stylize(STYLES[state], at, at + len(state))
        console.print(text, soft_wrap=True)


def summary(chosen: Sequence[NodeAttachment], filtered: bool) -> str:
    """Return the number of attachments in each state: "3 attachments: 2 running, 1 orphaned"."""
    states = Counter(it.state for it in chosen)
    parts = ", ".join(f"{states[state]} {state}" for state in STATES if states[state])
    count = f"{len(chosen) or 'no'} {'attachment' if len(chosen) == 1 else 'attachments'}"
    return f"{count}{' chosen' if filtered else ''}{': ' if parts else ''}{parts}"


def print_rest(inventory: Inventory, console: Console) -> None:
    """Print the objects that belong to no attachment, then the texts that say what could not be read."""
    if inventory.unowned:
        named = ", ".join(f"{it.kind} {it.place}" for it in inventory.unowned[:MAX_NAMED])
        more = len(inventory.unowned) - MAX_NAMED
        put(console, f"of no attachment: {named}{f' and {more} more' if more > 0 else ''}")
    for text in inventory.unseen:
        put(console, f"not seen: {text}", "yellow")


def put(console: Console, text: str, style: str = "", title: str = "", title_style: str = "") -> None:
    """Print a text, wrapped between words at the width of the terminal. All lines are indented by the width of the
    title.

    put() does not break a path or a command in backquotes, so that the user can copy it.
    """
    for line in broken(printable(text), console.width - len(title)):
        console.print(Text.assemble((title, title_style), (line, style)), soft_wrap=True)
        title = " " * len(title)


def broken(text: str, width: int) -> list[str]:
    """Wrap a text into lines of at most `width` characters. A longer word or command (PIECES) gets a longer line."""
    lines = [""]
    for paragraph in text.split("\n"):
        for piece in PIECES.findall(paragraph):
            joined = f"{lines[-1]}{piece}"
            if lines[-1].strip() and len(joined.rstrip()) > width:
                lines.append(piece.lstrip())
            else:
                lines[-1] = joined
        lines.append("")
    return [line.rstrip() for line in lines[:-1]]


def put_row(console: Console, name: str, value: str, style: str = "") -> None:
    """Print a name and a value in a row. put_row() does not break a path or an id, so that the user can copy it."""
    put(console, value, style, f"{name:<12}", "bold")


def print_details(attachment: NodeAttachment, details: Details, unseen: Sequence[str],
                  console: Console | None = None) -> None:
    """Print everything that is known about one attachment. unseen: texts that say what could not be read."""
    console = console or Console()
    print_facts(attachment, console)
    for link in details.links:
        put_row(console, "host link", link_text(link))
    for route in details.result.get("routes", ()):
        put_row(console, "route", route["dst"] + (f" via {route['gw']}" if route.get("gw") else ""))
    if details.args:
        put_row(console, "CNI_ARGS", ";".join(f"{key}={value}" for key, value in details.args))
    print_sightings(attachment, console)
    for title, document in (("Capability arguments", details.capability_args), ("Result", details.result),
                            ("Configuration at ADD", details.config)):
        if document:
            console.print(Text(f"\n{title}", style="bold"))
            console.print(Text(printable(json.write(dict(document), indent=2).decode())), soft_wrap=True)
    for text in unseen:
        put(console, f"not seen: {text}", "yellow")


def print_facts(attachment: NodeAttachment, console: Console) -> None:
    """Print the properties of an attachment: names, state, addresses, ports."""
    put_row(console, "container", attachment.container_id)
    if attachment.pod:
        put_row(console, "pod", attachment.pod)
    put_row(console, "interface",
            f"{attachment.ifname or 'unknown'}{f' in {attachment.netns}' if attachment.netns else ''}")
    put_row(console, "network",
            f"{attachment.network or 'unknown'}{f' ({chr(44).join(attachment.plugins)})' if attachment.plugins else ''}"
            .replace(",", ", "))
    put_row(console, "state", f"{attachment.state}: {attachment.why}", STYLES.get(attachment.state, ""))
    by = f", by {'the ' if attachment.author == GO else ''}{attachment.author}" if attachment.author else ""
    if attachment.since:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(attachment.since))
        put_row(console, "added", f"{when}, {age(attachment.since, time.time())} ago{by}")
    elif by:
        put_row(console, "added", by.removeprefix(", "))
    for ip in attachment.addresses:
        put_row(console, "address", ip)
    for port in attachment.ports:
        put_row(console, "host port", str(port))
    if attachment.datapath:
        put_row(console, "datapath", f"ebpf: flows with pods of the datapath are {attachment.datapath}")
    if attachment.flowtable:
        put_row(console, "flowtable", "established connections with pods of the agent's flowtable skip all rules")
    for chain in attachment.dropped_by:
        put_row(console, "dropped by", f"{chain}; `fastcni doctor` names the command", "yellow")


def print_sightings(attachment: NodeAttachment, console: Console) -> None:
    """Print the places, such as files and rules, in which an attachment was found."""
    console.print(Text("\nSeen in", style="bold"))
    for each in attachment.sightings:
        text = f"  {each.text}" if each.text and each.text not in each.place else ""
        console.print(Text(printable(f"  {each.kind:<14}{each.place}{text}")), soft_wrap=True)


def print_explanations(found: Sequence[Explanation], inventory: Inventory, console: Console | None = None) -> None:
    """Print the explanations, then the attachments that own the objects: the only owner of an object in full, several
    owners as a table. Each owner is printed once."""
    console = console or Console()
    for it in found:
        put(console, it.what, "bold")
    printed: set[str] = set()
    for it in found:
        owners = [owner for owner in it.owners if owner.name not in printed]
        if len(it.owners) == 1 and owners:
            console.print()
            print_facts(owners[0], console)
            print_sightings(owners[0], console)
        elif owners:
            console.print()
            print_rows(owners, inventory, console)
        printed |= {owner.name for owner in owners}
    for text in inventory.unseen:
        put(console, f"not seen: {text}", "yellow")


def link_text(link: HostLink) -> str:
    """Return a line with a link of the host, and a second line with its packet counters."""
    counters = link.counters
    text = f"{link.name} ({link.kind}, index {link.index}, {'up' if link.up else 'DOWN'}, mtu {link.mtu}"
    text += f", port of {link.master})" if link.master else ")"
    if not counters:
        return text
    bad = sum(counters[key] for key in counters if "errors" in key or "dropped" in key)
    if link.kind == "ifb":              # the ifb device shapes the packets that the pod sends
        return (f"{text}\nlet {counters['tx_packets']} packets pass ({size(counters['tx_bytes'])}), "
                f"errors and drops {bad}")
    # rx and tx are the host end's: it receives the packets that the pod sends.
    return (f"{text}\npod sent {counters['rx_packets']} packets ({size(counters['rx_bytes'])}), "
            f"received {counters['tx_packets']} ({size(counters['tx_bytes'])}), errors and drops {bad}")


def size(count: int) -> str:
    """Return a number of bytes with a decimal unit: "1.5 MB"."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:.1f} TB"


def print_adoption(done: Adoption, console: Console | None = None) -> None:
    """Print which attachments fastcni recognises, and the index of each directory of host-local."""
    console = console or Console()
    verdicts = done.verdicts
    put(console, f"{sum(it.owned for it in verdicts)} of {summary([it.attachment for it in verdicts], False)}; "
        "fastcni recognises these, and can check and delete them"
        if verdicts else "no attachments on this node")
    ids = short_ids(it.attachment.container_id for it in verdicts)
    for verdict in sorted(verdicts, key=lambda it: it.owned):
        if verdict.why:
            it = verdict.attachment
            head = "note          " if verdict.owned else "cannot own    "
            put(console, f"{head}{ids[it.container_id]} {it.ifname or '?'} ({it.network or '?'}): {verdict.why}")
    for directory in done.directories:
        state = f"index {directory.state}" if directory.state != WOULD_BUILD else "would index"
        style = "red" if directory.state == FAILED else ""
        put_row(console, f"{state:<13}", f"{directory.path}: {directory.addresses} addresses"
                f"{f': {directory.error}' if directory.error else ''}", style)
    print_rest(done.inventory, console)
