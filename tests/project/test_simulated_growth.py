"""The growth of the figures of `make simulate` with the number of nodes, and the plot."""

import pytest
from simulate.growth import growth, plot

COUNTS = (50, 200, 1000)


@pytest.mark.parametrize(("power", "name"), [(0, "flat"), (1, "linear"), (2, "quadratic")])
@pytest.mark.parametrize("counts", [COUNTS[:2], COUNTS])
def test_the_growth_of_a_power_is_named(counts, power, name):
    points = [(nodes, 40.0 + 0.01 * nodes ** power) for nodes in counts]
    assert growth(points, 40.0, 0.1) == name


@pytest.mark.parametrize(("power", "name"), [(1, "linear"), (2, "quadratic")])
def test_the_growth_is_named_although_each_figure_is_a_tenth_too_large_or_too_small(power, name):
    for wrong in (0.9, 1.1):
        points = [(nodes, nodes ** power * (wrong if nodes == 200 else 1.0)) for nodes in COUNTS]
        assert growth(points, 0.0, 0.1) == name


def test_a_growth_below_the_noise_is_none():
    assert growth([(50, 40.2), (200, 41.4)], 40.0, 2.0) == "flat"


def test_a_bar_is_ten_characters_longer_for_a_value_ten_times_as_large():
    one, two, nothing = plot([(50, 3.0), (200, 30.0), (300, 0.0)]).splitlines()
    assert two.count("#") - one.count("#") == 10
    assert nothing.count("#") == 0
    assert plot([(50, 0.0)]).split() == ["50", "0.0"]
