"""What README and docs point to is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def named(page):
    """Local files that a page links to, or names as a benchmark's."""
    text = page.read_text(encoding="utf-8")
    links = {target.partition("#")[0] for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target}
    benchmarks = re.findall(r"benchmarks/[\w./-]*\w", text)
    return {page.parent / link for link in links if link} | {ROOT / name for name in benchmarks}


def read(path):
    return path.read_text(encoding="utf-8") if path.exists() else ""


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_and_figures_that_a_page_names_exist(page):
    assert [str(path) for path in sorted(named(page)) if not path.exists()] == []


def test_tests_that_the_page_on_reliability_names_exist():
    text = (ROOT / "docs/reliability.md").read_text(encoding="utf-8")
    tests = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    campaigns = [(file, "campaign") for file in re.findall(r"`(faults/\w+\.py)`", text)]
    assert tests and campaigns
    assert [(file, name) for file, name in tests + campaigns if f"def {name}(" not in read(ROOT / "tests" / file)] == []


def test_the_readme_shows_figures():
    assert {"latency.svg", "rate.svg", "density.svg", "report.md"} <= {path.name for path in named(ROOT / "README.md")}
