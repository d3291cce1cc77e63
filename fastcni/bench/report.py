"""What is kept of a run: its samples as JSON, its tables as Markdown and on the terminal, its plots."""

import os
import platform
import shutil
import subprocess
import sys
from datetime import UTC, datetime

import orjson
from rich.box import SIMPLE_HEAD
from rich.console import Group
from rich.table import Table
from rich.text import Text

import fastcni
from fastcni.bench import tables
from fastcni.server import cpu_latency
from fastcni.spec import errors
from fastcni.spec.errors import CniError

SAMPLES, PAGE = "report.json", "report.md"
WITH_PLOTS = "plots need matplotlib: pip install 'fastcni[bench]'"
PLOTS = {"latency": "Latency, one at a time", "rate": "Rate against calls at once",
         "density": "Latency against pods that are there already"}
INTRODUCTION = """\
**Go** is the reference plugins, **one-shot** fastcni's plugins without a server, **warm** the same files with
`fastcni serve` running, **floor** what the kernel itself takes: the launcher answered at once, and the netlink
requests that nobody can do without, from a process that is warm. Warm and floor keep processors awake in the same way:
from each request on, for as long as the table says. All in one run, in turn and shuffled.
"""


def machine(options):
    """{words: words}: where, with what, and how much is measured."""
    plan = options.plan
    return {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "processors": f"{os.cpu_count()} x {processor()}",
        "Python": f"{platform.python_version()}, {os.path.realpath(sys.executable)}",
        "fastcni": fastcni.__version__,
        "Go plugins": go_plugins(options.peer),
        "latency request of warm and floor": latency_request(),
        "calls": f"{plan.rounds} x {plan.burst} of each, one at a time; {plan.repeats} x {plan.pods} pods at once; "
                 f"{plan.density_rounds} x {plan.burst} at each density; seed {plan.seed}",
    }


def latency_request():
    """What warm and floor ask of processors that would go to sleep."""
    seconds = float(os.environ.get("FASTCNI_LATENCY_REQUEST_S") or cpu_latency.DEFAULT_S)
    if not seconds:
        return "none: FASTCNI_LATENCY_REQUEST_S is 0"
    try:
        os.close(os.open(cpu_latency.DEVICE, os.O_WRONLY))
    except OSError as e:
        return f"none: {e}"
    return f"{cpu_latency.limit_us()} us ({cpu_latency.DEVICE}), until {seconds * 1e3:g} ms after a request"


def processor():
    with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        return next((line.partition(":")[2].strip() for line in file if line.startswith("model name")), "unknown")


def go_plugins(peer):
    """What the Go bridge says of itself; a distribution's build may say less than its package manager."""
    path = f"{peer}/bridge"
    try:
        ran = subprocess.run([path], env={}, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
                             timeout=10)
    except (OSError, subprocess.SubprocessError):
        return f"none in {peer}"
    said = (ran.stderr + ran.stdout).strip().partition("\n")[0]
    if "unknown" in said and shutil.which("dpkg-query"):
        owner = query("-S", os.path.realpath(path)) or query("-S", path)
        version = query("-W", owner.partition(":")[0]) if owner else ""
        said = version.strip().replace("\t", " ") or said
    return f"{said} in {peer}"


def query(*words):
    return subprocess.run(["dpkg-query", *words], capture_output=True, text=True, check=False).stdout


def to_rich(table):
    """For the terminal."""
    shown = Table(title=table.title, title_justify="left", box=SIMPLE_HEAD)
    for at, column in enumerate(table.columns):
        name = column.replace(" : ", "\n: ")
        shown.add_column(name, justify="left" if at < table.words else "right", no_wrap=at < table.words)
    before = None
    for row in table.rows:
        again = row[0] == before
        before = row[0]
        shown.add_row(*(Text("" if again and at == 0 else cell) for at, cell in enumerate(row)))
    return Group(shown, Text(f"{table.note}\n", style="dim"))


def to_markdown(table):
    lines = [f"## {table.title}", ""]
    lines += [f"| {' | '.join(table.columns)} |",
              f"|{'|'.join('---' if at < table.words else '---:' for at in range(len(table.columns)))}|"]
    lines += [f"| {' | '.join(row)} |" for row in table.rows]
    return "\n".join([*lines, "", *([table.note, ""] if table.note else [])])


def page(data):
    """report.md: the machine, the plots and every table."""
    parts = [part for part in tables.TABLES if part in data]
    facts = [f"| {name} | {value} |" for name, value in data["machine"].items()]
    lines = ["# fastcni against the Go plugins", "", INTRODUCTION, "```", data["command"], "```", "",
             "| | |", "|---|---|", *facts, ""]
    lines += [f"- {' '.join(note.split())}" for note in data["notes"]] + [""] * bool(data["notes"])
    lines += [f"![{alt}]({part}.svg)" for part, alt in PLOTS.items() if part in data]
    return "\n".join([*lines, "", *(to_markdown(tables.TABLES[part](data)) for part in parts)])


def finish(options, data, out):
    """Write the report, if one is asked for."""
    if options.report:
        os.makedirs(options.report, exist_ok=True)
        with open(f"{options.report}/{SAMPLES}", "wb") as file:
            file.write(orjson.dumps(data) + b"\n")
        draw(options.report, data, out)
    else:
        out.print("--report DIR writes the samples, these tables and plots.", highlight=False)


def replot(folder, out):
    """Tables and plots again, from the samples of an earlier run. Raises CniError."""
    try:
        with open(f"{folder}/{SAMPLES}", "rb") as file:
            data = orjson.loads(file.read())
    except (OSError, ValueError) as e:
        raise CniError(errors.IO_FAILURE, f"no report to draw again: {folder}/{SAMPLES}: {e}") from e
    draw(folder, data, out)


def draw(folder, data, out):
    with open(f"{folder}/{PAGE}", "w", encoding="utf-8") as file:
        file.write(page(data))
    written = [PAGE]
    try:
        from fastcni.bench.plots import write
    except ImportError:
        out.print(WITH_PLOTS, highlight=False, markup=False)
    else:
        written += write(folder, data)
    out.print(f"wrote {', '.join(written)} to {folder}", highlight=False, markup=False)
