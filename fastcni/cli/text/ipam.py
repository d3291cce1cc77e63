"""Format cluster-wide addresses for a terminal of 80 columns."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fastcni.cli.text.inventory import SHORT_ID, age, put, put_row
from fastcni.cli.text.output import printable
from fastcni.kit.ipam.cluster.contract import ACTIVE, ALIVE, ASKED, DEAD, KEPT, LOST, QUARANTINE, REFUSED, SHARED
from fastcni.node.attachments.explain import Explanation
from fastcni.node.checks.findings import plural, some
from fastcni.node.cluster.import_whereabouts import Plan
from fastcni.node.cluster.repair import Forgetting
from fastcni.node.cluster.survey import HeldBlock, Holder, NodeView, Place, Survey, sentence

STYLES = {ALIVE: "green", LOST: "yellow", DEAD: "red", ACTIVE: "green", QUARANTINE: "red", SHARED: "", KEPT: "yellow",
          ASKED: "yellow", REFUSED: "red"}
MAX_NAMED = 5                   # limit of the blocks or addresses that get their own line


def table_of(columns: Sequence[str], rows: Iterable[Sequence[str]], whole: Sequence[str] = ()) -> Table:
    """Return a table without border lines. The values of the columns in `whole` are not broken, so that the user can
    copy them."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold", no_wrap=column in whole)
    for row in rows:
        table.add_row(*(Text(printable(text), style=STYLES.get(text, "")) for text in row))
    return table


def when(since: float, now: float) -> str:
    """Return the time `since` and its age at `now`: "2026-01-31 12:00:00, 3h ago"."""
    return f"{time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(since))}, {age(since, now)} ago" if since else "unknown"


def print_blocks(where: str, found: Survey, blocks: Sequence[HeldBlock], addresses: bool,
                 console: Console | None = None) -> None:
    """Print the blocks of each address space. addresses: print the holders of the blocks' addresses instead. where: the
    store's name."""
    console, now = console or Console(), time.time()
    for space in sorted({it.block.space for it in blocks}):
        inside = [it for it in blocks if it.block.space == space]
        prefixes = " and ".join(f"/{length}" for _, length in sorted(found.grids.get(space, {}).items()))
        held, size = sum(it.held for it in inside), sum(it.size for it in inside)
        grid = f"blocks of {prefixes}; " if prefixes else ""
        put(console, f"space {space}: {grid}{plural(len(inside), 'block')}, {held} of {size} addresses held", "bold")
        if addresses:
            print_holders([holder for it in inside for holder in it.holders], now, console)
        else:
            print_block_rows(inside, now, console)
        console.print()
    if not all(it.reported for it in blocks):
        put(console, "?: its node has not reported who has the addresses; that node's server does so")
    put(console, f"{plural(len(blocks), 'block') if blocks else 'no block is claimed'} in {where}")


def print_block_rows(blocks: Sequence[HeldBlock], now: float, console: Console) -> None:
    """Print a table with a row for each block."""
    rows = [(it.block.cidr, it.block.state, it.block.node or "-", f"{it.held if it.reported else '?'}/{it.size}",
             age(it.block.since or 0.0, now)) for it in blocks]
    console.print(table_of(("BLOCK", "STATE", "NODE", "HELD", "AGE"), rows, ("STATE", "HELD", "AGE")))


def print_holders(found: Sequence[Holder], now: float, console: Console) -> None:
    """Print a table with a row for each held address."""
    rows = [(it.address, it.state, it.node or "-", it.pod or "-", it.container[:SHORT_ID], age(it.since, now))
            for it in found]
    console.print(table_of(("ADDRESS", "STATE", "NODE", "POD", "CONTAINER", "AGE"), rows, ("STATE", "CONTAINER",
                                                                                         "AGE")))


def print_nodes(where: str, views: Sequence[NodeView], console: Console | None = None) -> None:
    """Print a row for each node, then what the user can do about lost and dead nodes."""
    console, now = console or Console(), time.time()
    if views:
        rows = [(it.node.name, it.node.state, str(it.node.epoch), seen(it, now), str(it.blocks),
                 *(str(number) if it.reported else "?" for number in (it.held, it.free))) for it in views]
        console.print(table_of(("NODE", "STATE", "EPOCH", "SEEN", "BLOCKS", "HELD", "FREE"), rows,
                               ("STATE", "EPOCH", "SEEN", "BLOCKS", "HELD", "FREE")))
    states = ", ".join(f"{count} {state}" for state in (ALIVE, LOST, DEAD)
                       if (count := sum(it.node.state == state for it in views)))
    put(console, f"{plural(len(views), 'node') if views else 'no node'}{': ' if states else ''}{states}; {where}")
    for it in views:
        if it.node.state == DEAD:
            put(console, f"{it.node.name} was declared dead: no node gives the {it.quarantine} addresses of its "
                "blocks. If its pods have stopped, free them:")
            console.print(Text(f"  fastcni ipam forget-node {printable(it.node.name)}"), soft_wrap=True)


def seen(view: NodeView, now: float) -> str:
    """Return the age of a node's last heartbeat as text for a table row."""
    return f"{age(view.node.seen, now)} ago" if view.node.seen else "-"


def print_place(place: Place, console: Console | None = None) -> None:
    """Print the store's record of an address."""
    console, now = console or Console(), time.time()
    put(console, sentence(place, times=False), "bold")
    console.print()
    for name, value in facts(place, now):
        put_row(console, name, value)


def facts(place: Place, now: float) -> list[tuple[str, str]]:
    """Return [(name, text)] of the known properties of an address."""
    holder, node, found = place.holder, place.node, [("space", place.space), ("state", place.state)]
    if holder:
        found += [(name, text) for name, text in (
            ("pod", holder.pod), ("container", holder.container), ("interface", holder.ifname),
            ("network", holder.network)) if text]
        found += [("since", when(holder.since, now))]
        found += [("reported", f"{when(holder.written, now)}, by its node")] if holder.written else []
    if node:
        sign = f", last heartbeat {age(node.seen, now)} ago" if node.seen else ""
        found += [("node", f"{node.name} ({node.state}, epoch {node.epoch}{sign})")]
    if place.held:
        block = place.held.block
        claimed = f", claimed {age(block.since, now)} ago" if block.since else ""
        epoch = f", epoch {block.epoch}" if block.node else ""
        found += [("block", f"{block.cidr} ({block.state}{epoch}{claimed})")]
        found += [("of node", block.node)] if block.node and (not node or node.name != block.node) else []
    return found


def print_here(found: Sequence[Explanation], console: Console | None = None) -> None:
    """Print a row for each attachment of this node that has the address."""
    console = console or Console()
    for owner in dict.fromkeys(owner.name for it in found for owner in it.owners):
        it = next(one for each in found for one in each.owners if one.name == owner)
        put_row(console, "here", f"{it.state}: {it.why}")
        put_row(console, "more", f"fastcni inspect {it.name}")


def print_forgetting(plan: Forgetting, dry_run: bool, console: Console | None = None) -> None:
    """Print what forgetting a node frees, and what the user must confirm."""
    console, now = console or Console(), time.time()
    node = plan.node
    sign = f", last heartbeat {age(node.seen, now)} ago" if node.seen else ""
    put(console, f"node {node.name}: {node.state}, epoch {node.epoch}{sign}", "bold")
    named = ", ".join(it.block.cidr for it in plan.blocks[:MAX_NAMED])
    more = len(plan.blocks) - MAX_NAMED
    put(console, f"{'would free' if dry_run else 'frees'} {plural(len(plan.blocks), 'block')} and "
        f"{plural(len(plan.freed), 'address')}{f': {named}' if named else ''}{f' and {more} more' if more > 0 else ''}")
    if plan.freed:
        print_holders(plan.freed[:MAX_NAMED], now, console)
        if len(plan.freed) > MAX_NAMED:
            put(console, f"and {len(plan.freed) - MAX_NAMED} more addresses")
    if plan.kept:
        put(console, f"keeps {plural(len(plan.kept), 'sticky address')} for the next pods of their names")
    put(console, f"Then any node may give these addresses to its pods. So no pod of {node.name} may run any more.",
        "yellow")


def print_import(plan: Plan, lost: Sequence[str], dry_run: bool, console: Console | None = None) -> None:
    """Print the addresses that an import took over, then the addresses that could not be taken over."""
    console = console or Console()
    verb = "would take over" if dry_run else "took over"
    failed = len(lost)
    count = len(plan.ip_claims) - (0 if dry_run else min(failed, len(plan.ip_claims)))
    put(console, f"{verb} {plural(count, 'address')}, {plural(len(plan.blocks), 'shared block')}; "
        f"{plan.known} known from before", "bold")
    for space, cidr in plan.blocks[:MAX_NAMED]:
        put(console, f"  block {cidr} of space {space}")
    if len(plan.blocks) > MAX_NAMED:
        put(console, f"  and {len(plan.blocks) - MAX_NAMED} more blocks")
    if plan.gone:
        put(console, f"left out {plural(len(plan.gone), 'address')} of pods that do not exist: "
            f"{some(str(it.address) for it in plan.gone)}")
    if plan.ended:
        put(console, f"{'would release' if dry_run else 'released'} {plural(len(plan.ended), 'imported address')} of "
            f"pods that ended since: {some(it.address for it in plan.ended)}")
    for text in [*plan.conflicts, *lost]:
        put(console, f"CONFLICT  {text}", "red")
    if plan.conflicts or lost:
        put(console, "Delete the pod, or release the address where it is held, then import again.")
