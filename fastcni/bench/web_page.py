"""Make the HTML page of a run for operators: one file with the verdict in words, plots, tables and caveats.

The page needs no script, no font file and no other site; its Content-Security-Policy forbids the browser to load any.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from itertools import groupby
from typing import Any

from fastcni.bench import svg, tables, verdict
from fastcni.bench.guard import MAX_BUSY
from fastcni.bench.web_plots import Figure, figures
from fastcni.bench.web_style import STYLE

POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
MARKS = {verdict.FASTER: "▲", verdict.SLOWER: "▼", verdict.SAME: "="}
SIDES = {
    "Go": "Go: the Go plugins", "one-shot": "one-shot: fastcni's plugins, without a server",
    "warm": "warm: the same plugins, with fastcni serve", "before": "before: warm, of another fastcni",
    "floor": "floor: what any plugin needs: a process, and the kernel's part",
}
SHORT = {"Go": "Go plugins", "warm": "with its server (warm)", "one-shot": "without a server (one-shot)"}
UNSURE = 0.3                    # the page has a warning if the rounds differ by more than this share

Data = dict[str, Any]


def web_page(data: Data) -> str:
    """Return the HTML page as text. data: the samples of a run, as in report.json."""
    parts = [part for part in tables.TABLES if data.get(part)]
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<link rel="icon" href="data:,">
<title>fastcni bench, {escape(data["machine"].get("date", ""))}</title>
<style>{STYLE}</style>
</head>
<body>
<main>
<header>
<p class="kicker">fastcni bench, {escape(", ".join(kicker(data)))}</p>
<h1>{escape(verdict.headline(data))}</h1>
{paragraphs(verdict.summary(data))}
</header>
{verdict_table(data)}
{"".join(map(plots, figures(data)))}
<section>
<h2>All figures</h2>
{"".join(details(tables.TABLES[part](data)) for part in parts)}
</section>
<section>
<h2>How sure these figures are</h2>
{listed(caveats(data))}
</section>
<section>
<h2>The machine</h2>
<dl>{"".join(f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in data["machine"].items())}</dl>
<h2>The command</h2>
<pre>{escape(data["command"])}</pre>
</section>
</main>
</body>
</html>
"""


def kicker(data: Data) -> list[str]:
    return [data["machine"][name] for name in ("date", "kernel", "processors") if data["machine"].get(name)]


def paragraphs(sentences: Iterable[str]) -> str:
    return "\n".join(f'<p class="lead">{escape(sentence)}</p>' for sentence in sentences)


def listed(items: Iterable[str]) -> str:
    return f'<ul class="plain">{"".join(f"<li>{escape(item)}</li>" for item in items)}</ul>'


def verdict_table(data: Data) -> str:
    """Return the table of the verdict: a row for each call, a column for each implementation of fastcni."""
    rows = verdict.rows(data)
    sides = [side for side in ("warm", "one-shot") if any(side in row.cells for row in rows)]
    has_go = any("Go" in row.cells for row in rows)
    if not rows or not sides:
        return ""
    shown = [*sides, *["Go"] * has_go]
    head = "".join(f'<th scope="col">{escape(SHORT[side])}</th>' for side in shown)
    body = ""
    for group, members in groupby(rows, lambda row: row.group):
        body += f'<tr class="group"><th scope="colgroup" colspan="{len(shown) + 1}">{escape(group)}</th></tr>\n'
        for row in members:
            cells = "".join(verdict_cell(row, side) for side in shown)
            body += f'<tr><th scope="row">{escape(row.label)}</th>{cells}</tr>\n'
    corner = "fastcni, compared with Go" if has_go else "fastcni"
    return (f'<table class="verdict"><thead><tr><th scope="col">{corner}</th>{head}</tr></thead>\n'
            f"<tbody>{body}</tbody></table>")


def verdict_cell(row: verdict.Row, side: str) -> str:
    """Return a cell of the verdict: the comparison in words, and the time on which the words are based."""
    text, ratio = row.cells.get(side, ("not measured", None))
    if not ratio:
        return f'<td data-side="{escape(SHORT[side])}">{escape(text)}</td>'
    small = ", ".join(filter(None, (text, ratio.range)))
    return (f'<td data-side="{escape(SHORT[side])}"><span class="tone {ratio.tone}">'
            f'<span aria-hidden="true">{MARKS[ratio.tone]} </span>{escape(ratio.words)}</span> '
            f'<span class="small">{escape(small)}</span></td>')


def plots(figure: Figure) -> str:
    """Return an HTML section with a group of plots."""
    drawn = "".join(f"<figure><h3>{escape(heading)}</h3>{drawing}</figure>" for heading, drawing in figure.plots)
    key = svg.legend({side: SIDES[side] for side in figure.sides}) if figure.sides else ""
    return (f'<section>\n<h2>{escape(figure.heading)}</h2>\n<p class="note">{escape(figure.note)}</p>\n{key}\n'
            f'<div class="plots">{drawn}</div>\n</section>\n')


def details(table: tables.Table) -> str:
    """Return a table as an HTML element that the reader can expand."""
    def cell(kind: str, at: int, content: str) -> str:
        of_kind = ' class="label"' if at < table.labels else ""
        scope = ' scope="col"' if kind == "th" else ""
        return f"<{kind}{scope}{of_kind}>{escape(content)}</{kind}>"

    head = "".join(cell("th", at, column) for at, column in enumerate(table.columns))
    rows = "\n".join(f'<tr>{"".join(cell("td", at, content) for at, content in enumerate(row))}</tr>'
                     for row in table.rows)
    note = f'<p class="note">{escape(table.note)}</p>' if table.note else ""
    return (f'<details><summary>{escape(table.title)}</summary>\n{note}<div class="scroll" role="region" tabindex="0" '
            f'aria-label="{escape(table.title)}"><table class="figures"><thead><tr>{head}</tr></thead>\n'
            f"<tbody>{rows}</tbody></table></div></details>\n")


def caveats(data: Data) -> Iterator[str]:
    """Yield the caveats that readers of the figures must know, and then the notes of the run."""
    apart = verdict.spread(data)
    if apart:
        yield ("From round to round the median of a call differs. The usual range of nine in ten rounds, as a share of "
               f"the median: {', '.join(f'{side} {share:.0%}' for side, share in apart.items())}.")
    unsure = [side for side, share in apart.items() if share > UNSURE and side != "floor"]
    if unsure:
        yield (f"That is much for {', '.join(unsure)}. More rounds (--rounds) and a quiet node make it less; see "
               "the range of the rounds beside each verdict.")
    if data.get("busy", 0) > MAX_BUSY:
        yield (f"The processors were busy for {data['busy']:.0%} of the time before the run, which --force allowed. "
               "So the figures are less sure.")
    if "Go" in data["sides"]:
        yield "If a range of rounds has both faster and slower ones in it, the verdict is \"about as fast\"."
        yield ("All sides ran on this machine in one run, in turn and in random order. Another machine has "
               "other figures.")
        yield ("For masquerade and host ports the Go plugins use iptables unless they are configured otherwise, and "
               "fastcni uses nftables: this is part of the difference.")
    yield ("Calls are measured from the start of the plugin's process to its end, as a runtime waits for it. Pods are "
           "network namespaces without containers.")
    yield from (" ".join(note.split()) for note in data["notes"])
