"""Find how a figure grows with the number of nodes, and plot the figure in text."""

import math

NAMES = ("flat", "linear", "quadratic")         # the index is the power of the number of nodes


def growth(points, floor, noise):
    """Return NAMES[k] for the k with which floor + b * nodes ** k is nearest to the points, for the best b.

    points: [(nodes, value)]. floor: the value with one node. noise: a growth below `noise` counts as flat.
    """
    grown = [(nodes, value - floor) for nodes, value in points]
    if max(value for _, value in grown) - min(0.0, *(value for _, value in grown)) < noise:
        return NAMES[0]

    def distance(power):
        factor = sum(value * nodes ** power for nodes, value in grown) / sum(nodes ** (2 * power) for nodes, _ in grown)
        return sum((value - factor * nodes ** power) ** 2 for nodes, value in grown)

    return NAMES[min(range(len(NAMES)), key=distance)]


def plot(points):
    """Return a line with a bar for each point. The scale is logarithmic: a bar that is ten characters longer stands for
    a value that is ten times as large."""
    least = min((value for _, value in points if value > 0), default=1.0)
    lines = []
    for nodes, value in points:
        length = 4 + round(10 * math.log10(value / least)) if value > 0 else 0
        lines.append(f"    {nodes:>6,} {'#' * length} {value:,.1f}")
    return "\n".join(lines)
