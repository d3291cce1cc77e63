"""The table of states.py, compared with the drawing in the docstring of states.py."""

import textwrap

from fastcni.kit.ipam.cluster import states
from fastcni.kit.ipam.cluster.contract import ACTIVE, ALIVE, DEAD, LOST, QUARANTINE, SHARED

NODES, BLOCKS = (states.UNKNOWN, ALIVE, LOST, DEAD), (states.FREE, ACTIVE, QUARANTINE, SHARED)
WIDTH = 30                      # characters of a column


def arrows(of):
    """Return {(state, next state, event): [guard]} of the node's or the block's states. of: these states."""
    found = {}
    for (state, event, guard), (after, _) in states.TRANSITIONS.items():
        if state in of:
            found.setdefault((state, after, event), []).append(guard)
    return found


def drawing(of):
    """Return the drawing of these states: a column for each state, a line for each arrow. An event that keeps the state
    is a text without an arrow."""
    lines = ["".join(state.upper().ljust(WIDTH) for state in of)]
    for (state, after, event), guards in arrows(of).items():
        guards = [guard for guard in guards if guard != states.ANY]
        label = f" {event}: {', '.join(guards)} " if guards else f" {event} "
        row = list("".join("|".ljust(WIDTH) for _ in of))
        begin, end = (of.index(one) * WIDTH for one in sorted((state, after), key=of.index))
        if begin == end:
            row[begin + 1:begin + 1 + len(label)] = label
        else:
            line = label.center(end - begin - 3, "-")
            row[begin + 1:end] = f"-{line}>" if of.index(after) > of.index(state) else f"<{line}-"
        lines.append("".join(row))
    return textwrap.indent("\n".join(line.rstrip() for line in lines), "    ")


def test_the_drawings_show_each_transition_of_the_table():
    for of in (NODES, BLOCKS):
        assert drawing(of) in states.__doc__, f"draw in states.py:\n{drawing(of)}"
