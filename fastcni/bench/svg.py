"""Draw the plots of the HTML page as inline SVG, with the page's colours and with text of fixed size. The plots need no
script."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from fastcni.bench.cases import SIDES
from fastcni.bench.tables import ms

WIDTH = 380                     # SVG units of a plot's width, about a phone's screen in pixels
LEFT, RIGHT = 36, 118           # margins of a plot of curves: labels of the axis, labels of the curves
ROW, TOP, BOTTOM = 38, 20, 24
LABEL_HEIGHT = 14               # the minimum distance of curves' labels


@dataclass(frozen=True, slots=True)
class Curve:
    """A curve of a plot. side: the implementation. points: [(x, y)]. name: the label at the curve's end. line: "", or
    "dashed" or "dotted" for a case of OWN_KEYS."""

    side: str
    points: Sequence[tuple[float, float]]
    name: str
    line: str = ""


def plot(ident: str, name: str, description: str, height: float, parts: Sequence[str]) -> str:
    """Return the <svg> element of a plot. name, description: texts for screen readers. parts: the elements inside."""
    return (f'<svg viewBox="0 0 {WIDTH} {height:.0f}" role="img" aria-labelledby="{ident}-t {ident}-d">'
            f'<title id="{ident}-t">{escape(name)}</title><desc id="{ident}-d">{escape(description)}</desc>'
            f'{"".join(parts)}</svg>')


def text(x: float, y: float, content: str, kind: str = "", anchor: str = "start") -> str:
    of_kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{of_kind}>{escape(content)}</text>'


def line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<path class="{kind}" d="M{x1:.1f} {y1:.1f}L{x2:.1f} {y2:.1f}"/>'


def css(side: str) -> str:
    """Return the CSS class of an implementation, such as "s-warm"."""
    return f"s-{side.lower()}"


def mark(side: str, x: float, y: float, hint: str = "") -> str:
    """Return the mark of an implementation at (x, y) as SVG. Each implementation has its own shape, so that readers can
    distinguish the marks without colours. hint: the mark's tooltip."""
    tip = f"<title>{escape(hint)}</title>" if hint else ""
    if side == "warm":
        return f'<circle class="{css(side)}" cx="{x:.1f}" cy="{y:.1f}" r="5">{tip}</circle>'
    shape = {"Go": "M-4.4-4.4h8.8v8.8h-8.8z", "one-shot": "M0-6L6 0 0 6-6 0z", "before": "M0-5.5L5.5 4.5h-11z",
             "floor": "M-1.2-7h2.4v14h-2.4z"}[side]
    return f'<path class="{css(side)}" transform="translate({x:.1f} {y:.1f})" d="{shape}">{tip}</path>'


def legend(sides: Mapping[str, str]) -> str:
    """Return the legend of the plots as HTML. sides: {implementation: its description}."""
    shown = "".join(f'<li><svg viewBox="-8 -8 16 16" aria-hidden="true">{mark(side, 0, 0)}</svg>{escape(what)}</li>'
                    for side, what in sides.items())
    return f'<ul class="legend">{shown}</ul>'


def decades(low: float, high: float) -> list[float]:
    """Return the ticks 1, 3, 10, 30, ... of a logarithmic axis, from the last tick that is not above `low` to the first
    that is not below `high`."""
    steps = [step * 10.0 ** power for power in range(-4, 7) for step in (1, 3)]
    first = max(step for step in steps if step <= low)
    last = min(step for step in steps if step >= high)
    return [step for step in steps if first <= step <= last]


def log_dots(ident: str, name: str, rows: Sequence[tuple[str, Mapping[str, float], str]],
             span: tuple[float, float]) -> str:
    """Plot a row of marks for each case, on a logarithmic axis in milliseconds that spans span[0] to span[1].

    rows: [(case, {side: ms}, text to the right of the row)]."""
    ticks = decades(*span)
    wide = WIDTH - 28

    def at(value: float) -> float:
        return 10 + wide * math.log(value / ticks[0]) / math.log(ticks[-1] / ticks[0])

    height = TOP + ROW * len(rows) + BOTTOM
    parts, heard = [], []
    for tick in ticks if len(ticks) < 8 else [tick for tick in ticks if f"{tick:g}".lstrip("0.").startswith("1")]:
        parts.append(line(at(tick), TOP, at(tick), height - BOTTOM, "grid"))
        parts += [text(at(tick), y, f"{tick:,g}", "tick", "middle") for y in (TOP - 7, height - BOTTOM + 14)]
    for number, (case, found, right) in enumerate(rows):
        y = TOP + ROW * number
        parts += [text(0, y + 15, case, "case halo"), text(WIDTH, y + 15, right, "times halo", "end")]
        parts.append(line(at(min(found.values())), y + 27, at(max(found.values())), y + 27, "range"))
        shown = [side for side in SIDES if side in found]
        parts += [mark(side, at(found[side]), y + 27, f"{case}, {side}: {ms(found[side])} ms")
                  for side in sorted(shown, key="one-shot Go before floor warm".split().index)]
        heard.append(f"{case}: {', '.join(f'{side} {ms(found[side])} ms' for side in shown)}")
    return plot(ident, name, "; ".join(heard), height, parts)


def nice_step(most: float, count: int = 4) -> float:
    """Return a round number by which an axis from 0 to `most` has about `count` steps."""
    rough = most / count
    power = 10.0 ** math.floor(math.log10(rough))
    return next(step * power for step in (1, 2, 2.5, 5, 10) if step * power >= rough * 0.999)


def curves(ident: str, name: str, found: Sequence[Curve], labels: tuple[str, str], ordinal: bool) -> str:
    """Plot curves, with a y axis that begins at 0. labels: the labels of the x axis and the y axis. ordinal: whether
    the x values are drawn at equal distances."""
    xs = sorted({x for curve in found for x, _ in curve.points})
    most = max(y for curve in found for _, y in curve.points)
    step = nice_step(most)
    top = step * math.ceil(most / step)
    height, foot, head = 216.0, 38.0, 24.0
    right = WIDTH - RIGHT

    def across(x: float) -> float:
        share = xs.index(x) / max(1, len(xs) - 1) if ordinal else (x - xs[0]) / max(1e-9, xs[-1] - xs[0])
        return LEFT + (right - LEFT) * share

    def up(y: float) -> float:
        return height - foot - (height - foot - head) * y / top

    parts = [text(0, 12, labels[1], "axis"), text((LEFT + right) / 2, height - 4, labels[0], "axis", "middle")]
    for number in range(round(top / step) + 1):
        parts.append(line(LEFT, up(number * step), right, up(number * step), "grid"))
        parts.append(text(LEFT - 5, up(number * step) + 4, f"{number * step:,g}", "tick", "end"))
    last = -math.inf
    for x in xs:
        if across(x) - last > 26 or x == xs[-1]:
            parts.append(text(across(x), height - foot + 16, f"{x:,.0f}", "tick", "middle"))
            last = across(x)
    ends = apart([up(curve.points[-1][1]) for curve in found], head, height - foot)
    for curve, y in zip(found, ends, strict=True):
        kind = f"curve {css(curve.side)} {curve.line}"
        path = "L".join(f"{across(x):.1f} {up(value):.1f}" for x, value in curve.points)
        parts.append(f'<path class="{kind}" d="M{path}"/>')
        if not curve.line and curve.side != "floor":
            parts += [mark(curve.side, across(x), up(value), f"{curve.name}, {x:,.0f} {labels[0]}: {ms(value)}")
                      for x, value in curve.points]
        parts.append(text(across(curve.points[-1][0]) + 10, y + 4, curve.name, f"{css(curve.side)} name"))
    heard = "; ".join(f"{curve.name}: {', '.join(f'{ms(y)} at {x:,.0f}' for x, y in curve.points)}" for curve in found)
    return plot(ident, name, f"{labels[1]} by {labels[0]}. {heard}", height, parts)


def apart(places: Sequence[float], low: float, high: float) -> list[float]:
    """Return the y coordinates of labels, moved so that the labels are at least LABEL_HEIGHT apart and between low and
    high."""
    order = sorted(range(len(places)), key=places.__getitem__)
    moved = list(places)
    for before, at in pairwise(order):
        moved[at] = max(moved[at], moved[before] + LABEL_HEIGHT)
    limit = high
    for at in reversed(order):
        moved[at] = max(low, min(moved[at], limit))
        limit = moved[at] - LABEL_HEIGHT
    return moved


def bars(ident: str, name: str, values: Mapping[str, float], unit: str) -> str:
    """Plot a bar for each implementation; bars begin at 0. values: {side: value}. unit: the values' unit."""
    shown, most = [side for side in SIDES if side in values], max(values.values())
    parts = []
    for number, side in enumerate(shown):
        y, wide = 4 + 30 * number, 220 * values[side] / most
        parts.append(text(62, y + 15, side, "name-of", "end"))
        parts.append(f'<rect class="{css(side)}" x="70" y="{y}" width="{max(1.5, wide):.1f}" height="21" rx="2"/>')
        parts.append(text(76 + wide, y + 15, f"{ms(values[side])} {unit}", "value"))
    heard = ", ".join(f"{side} {ms(values[side])} {unit}" for side in shown)
    return plot(ident, name, heard, 30 * len(shown) + 2, parts)
