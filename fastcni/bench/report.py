"""Write the report of a run: samples as JSON, tables as Markdown and for the terminal, and plots."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

import fastcni
from fastcni.bench import tables
from fastcni.server import cpu_latency
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.bench.cases import Options

SAMPLES, PAGE = "report.json", "report.md"
WITH_PLOTS = "plots need matplotlib: pip install 'fastcni[plots]'"
PLOTS = {"latency": "Latency, one at a time", "rate": "Rate against calls at once",
         "density": "Latency against the number of existing pods"}
INTRODUCTION = """\
**Go** is the reference plugins, **one-shot** fastcni's plugins without a server, **warm** the same files with
`fastcni serve`. **floor** is a launcher that gets its answer immediately, and the netlink requests that any plugin has
to send, from a warm process. Warm and floor make the same latency request, shown in the table. All sides ran in one
run, in turn and in random order.
"""


def machine(options: Options, busy: float = 0.0) -> dict[str, str]:
    """Return {name: text} that describes the machine, the software and the number of measurements. busy: the result of
    guard.busy_share() before the run."""
    plan = options.plan
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": f"{os.cpu_count()} x {processor()}",
        "busy before the run": f"{busy:.0%} of the processors' time",
        "Python": f"{platform.python_version()}, {os.path.realpath(sys.executable)}",
        "fastcni": fastcni.__version__,
        "Go plugins": go_plugins(options.peer) if options.peer else "none found",
        "latency request of warm and floor": latency_request(),
        "calls": f"{plan.rounds} x {plan.burst} of each, one at a time; {plan.idle_rounds} after {plan.pause:g} s; "
                 f"{plan.repeats} x {plan.pods} pods at once; {plan.density_rounds} x {plan.burst} at each density; "
                 f"seed {plan.seed}",
    }


def latency_request() -> str:
    """Return the CPU latency request of the implementations warm and floor as text."""
    seconds = float(os.environ.get("FASTCNI_LATENCY_REQUEST_S") or cpu_latency.DEFAULT_S)
    if not seconds:
        return "none: FASTCNI_LATENCY_REQUEST_S is 0"
    try:
        os.close(os.open(cpu_latency.DEVICE, os.O_WRONLY))
    except OSError as e:
        return f"none: {e}"
    return f"{cpu_latency.limit_us()} us ({cpu_latency.DEVICE}), until {seconds * 1e3:g} ms after a request"


def processor() -> str:
    """Return the name of the machine's processor."""
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "unknown")


def go_plugins(peer: str) -> str:
    """Return the version and the directory of the Go plugins as text. The version is what the Go plugin bridge prints;
    if that is unknown, the version of its Debian package."""
    path = f"{peer}/bridge"
    try:
        ran = subprocess.run([path], env={}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                             timeout=10)
    except (OSError, subprocess.SubprocessError):
        return f"none in {peer}"
    text = (ran.stderr + ran.stdout).strip().partition("\n")[0]
    if "unknown" in text and shutil.which("dpkg-query"):
        owner = query("-S", os.path.realpath(path)) or query("-S", path)
        version = query("-W", owner.partition(":")[0]) if owner else ""
        text = version.strip().replace("\t", " ") or text
    return f"{text} in {peer}"


def query(*arguments: str) -> str:
    """Return the output of dpkg-query with these arguments."""
    return subprocess.run(["dpkg-query", *arguments], capture_output=True, text=True, check=False).stdout


def to_rich(table: tables.Table) -> Group:
    """Return a table in the form for the terminal."""
    shown = Table(title=table.title, title_justify="left", box=SIMPLE_HEAD)
    for at, column in enumerate(table.columns):
        name = column.replace(" : ", "\n: ")
        shown.add_column(name, justify="left" if at < table.labels else "right", no_wrap=at < table.labels)
    before = None
    for row in table.rows:
        again = row[0] == before
        before = row[0]
        shown.add_row(*(Text("" if again and at == 0 else cell) for at, cell in enumerate(row)))
    return Group(shown, Text(f"{table.note}\n", style="dim"))


def to_markdown(table: tables.Table) -> str:
    """Return a table as Markdown."""
    lines = [f"## {table.title}", ""]
    lines += [f"| {' | '.join(table.columns)} |",
              f"|{'|'.join('---' if at < table.labels else '---:' for at in range(len(table.columns)))}|"]
    lines += [f"| {' | '.join(row)} |" for row in table.rows]
    return "\n".join([*lines, "", *([table.note, ""] if table.note else [])])


def page(data: dict[str, Any]) -> str:
    """Return the text of report.md, which has the machine, the plots and every table."""
    parts = [part for part in tables.TABLES if part in data]
    facts = [f"| {name} | {value} |" for name, value in data["machine"].items()]
    lines = ["# fastcni against the Go plugins", "", INTRODUCTION, "```", data["command"], "```", "",
             "| | |", "|---|---|", *facts, ""]
    lines += [f"- {' '.join(note.split())}" for note in data["notes"]] + [""] * bool(data["notes"])
    lines += [f"![{alt}]({part}.svg)" for part, alt in PLOTS.items() if part in data]
    return "\n".join([*lines, "", *(to_markdown(tables.TABLES[part](data)) for part in parts)])


def finish(options: Options, data: dict[str, Any], out: Console) -> None:
    """Write the files of --report and --html. Without these options, print a hint."""
    if options.report:
        os.makedirs(options.report, exist_ok=True)
        with open(f"{options.report}/{SAMPLES}", "wb") as file:
            file.write(json.dumps(data).encode() + b"\n")
        draw(options.report, data, out)
    if options.html:
        write_html(options.html, data, out)
    if not options.report and not options.html:
        out.print("--html FILE writes a page with verdict and plots, --report DIR the samples, tables and plots.",
                  highlight=False)


def replot(directory: str, html: str | None, out: Console) -> None:
    """Write the tables and plots again from the samples of an earlier run in `directory`. If `html` is a path, write
    only the HTML page. Raise CniError."""
    try:
        with open(f"{directory}/{SAMPLES}", "rb") as file:
            data = json.load(file)
    except (OSError, ValueError) as e:
        raise CniError(errors.IO_FAILURE, f"read the samples {directory}/{SAMPLES}: {e}") from e
    if html:
        write_html(html, data, out)
    else:
        draw(directory, data, out)


def check_directory(path: str) -> None:
    """Raise CniError if the directory of the file `path` does not exist. A run calls check_directory() before it
    measures, so that no measurements are lost."""
    directory = os.path.dirname(path) or "."
    if not os.path.isdir(directory):
        raise CniError(errors.IO_FAILURE, f"write the page {path}: there is no directory {directory}")


def write_html(path: str, data: dict[str, Any], out: Console) -> None:
    """Write the HTML page. Raise CniError."""
    from fastcni.bench.web_page import web_page

    try:
        with open(path, "w", encoding="utf-8") as file:
            file.write(web_page(data))
    except OSError as e:
        raise CniError(errors.IO_FAILURE, f"write the page {path}: {e.strerror}") from e
    out.print(f"wrote {path}", highlight=False, markup=False, soft_wrap=True)


def draw(directory: str, data: dict[str, Any], out: Console) -> None:
    """Write report.md and, if matplotlib is installed, the plots."""
    with open(f"{directory}/{PAGE}", "w", encoding="utf-8") as file:
        file.write(page(data))
    written = [PAGE]
    try:
        from fastcni.bench.plots import write
    except ImportError:
        out.print(WITH_PLOTS, highlight=False, markup=False)
    else:
        written += write(directory, data)
    out.print(f"wrote {', '.join(written)} to {directory}", highlight=False, markup=False)
