"""`fastcni bench` for an operator: the page in a browser, and Ctrl-C in a terminal."""

import json
import os
import shlex
import sys
import tempfile
from pathlib import Path

import pytest
from observability.browser import Browser
from observability.test_top import Tmux
from project.bench_data import complete_run

from fastcni.bench.node import PREFIX
from fastcni.bench.web_page import web_page

SAMPLES = Path(__file__).parents[2] / "benchmarks/report/report.json"
# JavaScript: the texts of plots that are cut off; the size of the smallest text in pixels
CUT_OFF = """[...document.querySelectorAll("figure svg text")].filter(it => {
    const box = it.getBBox(), all = it.ownerSVGElement.viewBox.baseVal
    return box.x < -0.5 || box.y < -0.5 || box.x + box.width > all.width + 0.5 || box.y + box.height > all.height + 0.5
}).map(it => it.textContent)"""
SMALLEST = """Math.min(...[...document.querySelectorAll("figure svg text")].map(it =>
    parseFloat(getComputedStyle(it).fontSize) * it.getScreenCTM().a))"""
OPEN_ALL = """document.querySelectorAll("details").forEach(it => it.open = true)"""


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with Browser(tmp_path_factory.mktemp("profile")) as it:
        yield it


@pytest.fixture(scope="module", params=["complete", "published"])
def page(request, tmp_path_factory):
    """Return the path of a page: of a small run with all parts, or of the published samples."""
    small = {**complete_run(), "peer": "/opt/cni/bin"}
    data = small if request.param == "complete" else json.loads(SAMPLES.read_bytes())
    path = tmp_path_factory.mktemp("page") / "bench.html"
    path.write_text(web_page(data), encoding="utf-8")
    return path


@pytest.mark.parametrize("width", [1280, 375])
def test_the_page_is_readable(browser, page, width):
    browser.open(page, width)
    assert [it["request"]["url"] for it in browser.reported("Network.requestWillBeSent")] == [page.as_uri()]
    assert not browser.reported("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    assert "the Go plugins" in browser.value("document.querySelector('h1').innerText")
    browser.value(OPEN_ALL)
    assert browser.value("document.documentElement.scrollWidth") <= width
    assert browser.value("document.querySelectorAll('figure svg').length") >= 7
    assert browser.value(CUT_OFF) == []
    assert browser.value(SMALLEST) >= 9.5


def test_the_page_is_dark_where_the_system_is(browser, page):
    colors = "getComputedStyle(document.body).backgroundColor + getComputedStyle(document.body).color"
    browser.open(page, 1280)
    light = browser.value(colors)
    browser.open(page, 1280, "dark")
    assert light == "rgb(251, 250, 248)rgb(29, 33, 38)" and browser.value(colors) == "rgb(20, 23, 26)rgb(233, 231, 227)"


@pytest.fixture
def directory():
    """Yield a directory with a short path, because the run makes unix sockets in it."""
    with tempfile.TemporaryDirectory() as it:
        yield Path(it)


@pytest.mark.needs("root")
def test_ctrl_c_in_a_terminal_leaves_nothing(tmp_path, directory):
    line = [sys.executable, "-m", "fastcni", "bench", "--quick", "--force", "--only", "ptp", "--part", "idle", "--html",
            str(directory / "page.html")]
    with Tmux(tmp_path) as tmux:
        tmux.run(f"TMPDIR={directory} {shlex.join(line)}")
        tmux.sees("This takes about", "1/1 after a pause: ptp", "left")
        # The name contains the process id
        (mine,) = {path.name.rpartition("-")[0] for path in directory.glob(f"{PREFIX}*")}
        tmux.keys("C-c")
        tmux.sees("aborted", "ready$")
    assert list(directory.iterdir()) == []
    assert not [name for place in ("/run/netns", "/dev/shm") for name in os.listdir(place) if name.startswith(mine)]
    assert not [command for command in commands() if f"{mine}-" in command]


def commands():
    """Return the command lines of all processes of the machine."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            yield path.read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
        except OSError:
            continue
