"""Format results, plans and configuration faults as text. Control characters from plugins and files are replaced."""

import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from fastcni.cli.plan import Step
from fastcni.cli.text.output import printable
from fastcni.runtime import RuntimeConf
from fastcni.runtime.validate import Finding
from fastcni.spec import json
from fastcni.spec import result as results


def result(document: dict[str, Any], network: str, rt: RuntimeConf, console: Console | None = None) -> None:
    """Print a result of any CNI version: a row for each interface, then the routes and the DNS settings."""
    console = console or Console()
    shape = results.to_version(document, "1.1.0")
    title = Text(printable(f"{rt.container_id} in {network}"))
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    for column in ("interface", "mac", "where", "addresses", "gateway"):
        # Break only the column "where": a path may be long, and users copy the other values.
        table.add_column(column, overflow="fold", no_wrap=column != "where")
    ips = shape.get("ips", [])
    for index, interface in enumerate(shape.get("interfaces", [])):
        texts = interface.get("name", ""), interface.get("mac", ""), interface.get("sandbox") or "host"
        add_row(table, *texts, [ip for ip in ips if ip.get("interface") == index])
    if nowhere := [ip for ip in ips if not is_index(ip.get("interface"), shape)]:
        add_row(table, "", "", "", nowhere)
    console.print(table)
    for route in shape.get("routes", []):
        via = f" via {route['gw']}" if route.get("gw") else ""
        console.print(Text(printable(f"route  {route.get('dst', '')}{via}{extras(route)}")))
    for key, value in shape.get("dns", {}).items():
        text = value if isinstance(value, str) else " ".join(value)
        console.print(Text(printable(f"dns    {key}: {text}")))


def is_index(value: Any, shape: dict[str, Any]) -> bool:
    return isinstance(value, int) and 0 <= value < len(shape.get("interfaces", []))


def extras(route: dict[str, Any]) -> str:
    return "".join(f" {key} {value}" for key, value in route.items() if key not in ("dst", "gw"))


def add_row(table: Table, name: str, mac: str, where: str, ips: Sequence[dict[str, Any]]) -> None:
    addresses = "\n".join(ip.get("address", "") for ip in ips)
    gateways = "\n".join(ip.get("gateway", "") for ip in ips)
    table.add_row(*(Text(printable(text)) for text in (name, mac, where, addresses, gateways)))


def plan(steps: Sequence[Step], console: Console | None = None) -> None:
    """Print for each plugin its path, its CNI variables and its stdin."""

    console = console or Console()
    for number, step in enumerate(steps, 1):
        console.print(Text(printable(f"{number}. {step.type}  {step.path or 'not found'}"), style="bold"))
        if step.skipped:
            console.print(Text(printable(f"   not called: {step.skipped}")), soft_wrap=True)
            continue
        for name, value in step.env.items():
            console.print(Text(printable(f"   {name}={value}")), soft_wrap=True)
        stdin = json.write(json.read(step.stdin), indent=4).decode()
        console.print(Text(printable(stdin)), soft_wrap=True)


def findings(network: str, found: Sequence[Finding], console: Console | None = None) -> None:
    """Print the faults of a network's configuration."""
    console, file = console or Console(), ""
    if not found:
        console.print(Text(printable(f"Network {network}: nothing found.")))
    for one in found:
        if one.file != file:
            file = one.file
            console.print(Text(printable(file)), soft_wrap=True)
        console.print(Text(printable(f"{one.severity}: {one.where}"), style="bold"), soft_wrap=True)
        for text in filter(None, (one.what, one.hint)):
            console.print(Padding(Text(printable(text)), (0, 0, 0, 4)))


def wrapped(start: str, names: Iterable[str]) -> list[str]:
    """Return `start` and the names, separated by commas, as lines of at most 79 characters. All lines after the first
    are indented."""
    return textwrap.wrap(start + ", ".join(names), 79, subsequent_indent="    ", break_long_words=False,
                         break_on_hyphens=False, drop_whitespace=True) or [start]
