"""The status page in a browser, with pods in the test's own namespaces."""

import os
import time

import pytest
from observability.browser import Browser
from unit.node.conftest import Host
from unit.server.client import Server

ADDRESS = "127.0.0.1:9465"
HOSTILE = """<img src=x onerror="window.hacked=1"></script><script>window.hacked=2</script>'"""
IDS = [f"{0x8e4f2a1b3c4d + at * 0x1a2b3c4d5e6f & (1 << 48) - 1:012x}" * 3 for at in range(9)]
LOADED = "document.querySelector('#picture svg, #picture p') && document.querySelector('#figures div')"
FOUND = "[...document.querySelectorAll('svg .found')].map(it => it.getAttribute('aria-label'))"
# JavaScript: the texts of the picture that do not fit into their boxes
CUT_OFF = """[...document.querySelectorAll("svg g > text")].filter(it => it.textContent).filter(it => {
    const box = it.getBBox(), all = it.parentNode.querySelector(".box").getBBox()
    return box.x < all.x || box.x + box.width > all.x + all.width
}).map(it => it.textContent)"""


@pytest.fixture
def host(tmp_path, host_netns):
    """Return a runtime whose directories have a network of bridge and a network of ptp."""
    it = Host(tmp_path / "node")
    it.configure()
    it.configure({"cniVersion": "1.0.0", "name": "storage", "plugins": [
        {"type": "ptp", "ipam": {"type": "host-local", "subnet": "10.89.0.0/24"}}]}, "20-storage.conflist")
    return it


@pytest.fixture
def pods(host, pod_netns):
    """Add two pods to the network "storage", and the other pods to the bridge. Two pods of the bridge have host
    ports."""
    for at, container in enumerate(IDS):
        host.add(container, os.path.basename(pod_netns()), "storage" if at % 4 == 3 else "net1",
                 [(8080 + at, 80)] if at % 5 == 0 else [])


@pytest.fixture
def server(host, tmp_path):
    with Server(tmp_path, "--cache-dir", str(host.cache), "--http", ADDRESS) as it:
        yield it


@pytest.fixture
def browser(server, tmp_path):
    with Browser(tmp_path / "profile") as it:
        yield it


def load(browser, width=1280, scheme="light"):
    browser.open(f"http://{ADDRESS}/", width, scheme)
    wait_for(browser, LOADED)


def wait_for(browser, condition):
    deadline = time.monotonic() + 40
    while not browser.value(f"!!({condition})"):
        assert time.monotonic() < deadline, browser.value("document.body.innerText")
        time.sleep(0.05)


def search(browser, text):
    browser.value(f"search.value = {text!r}; search.dispatchEvent(new Event('input'))")
    return browser.value(FOUND)


def test_it_shows_the_pods_and_finds_them(pods, browser):
    load(browser)
    assert not browser.reported("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    asked = {it["request"]["url"] for it in browser.reported("Network.requestWillBeSent")}
    assert asked == {f"http://{ADDRESS}/{name}" for name in ("", "status.json", "topology.json")}
    assert browser.value("document.querySelectorAll('svg .pod').length") == len(IDS)
    text = browser.value("document.getElementById('picture').textContent")
    for part in ("br0", "10.88.0.1", "7 pods", "2 pods", "routed by the node", ":8080", ":8085", IDS[0][:12]):
        assert part in text
    for query, at in (("10.88.0.2", 0), (IDS[1], 1), (IDS[2][:9], 2), ("8080", 0), (":8085/tcp", 5),
                      ("10.89.0.2/24", 3)):
        (label,) = search(browser, query)
        assert label.startswith(f"{IDS[at]}, eth0, "), query
        details = browser.value("document.getElementById('details').innerText")
        assert IDS[at] in details and "/run/netns/" in details and "running" in details
    assert len(search(browser, "storage")) == 2
    assert search(browser, "10.99.0.1") == []
    assert "Nothing on this node" in browser.value("document.getElementById('details').innerText")
    assert search(browser, "") == []
    browser.value("document.querySelector('svg .pod').dispatchEvent(new Event('click'))")
    assert "8080/tcp -> 10.88.0.2:80" in browser.value("document.getElementById('details').innerText")


def test_it_is_readable_in_light_and_dark_and_on_a_phone(pods, browser):
    colors = set()
    for width in (1280, 375):
        for scheme in ("light", "dark"):
            load(browser, width, scheme)
            search(browser, "8080")
            assert browser.value("document.documentElement.scrollWidth") <= width
            assert browser.value(CUT_OFF) == []
            colors.add(browser.value("getComputedStyle(document.body).backgroundColor"))
            colors.add(browser.value("getComputedStyle(document.querySelector('.pod text')).fill"))
    assert len(colors) == 4


def test_numbers_are_readable(browser):
    """The page showed 18446744073709552000 free addresses of a /64, and listed a port of both families twice."""
    load(browser)
    for free, text in ((2**64 - 5, "0%, over 10^19 free"), (65533, "0%, 65533 free")):
        assert browser.value(f"meter({{full: 0, free: {free}}}).textContent") == text
    ports = "portNumbers({hostPorts: [{hostPort: 80}, {hostPort: 80}, {hostPort: 443}]}).join()"
    assert browser.value(ports) == "80,443"


def test_names_of_pods_are_text(host, browser):
    for network, ifname in ((HOSTILE.replace("/", "|"), "eth0"), ("net1", HOSTILE.replace("/", "|"))):
        host.cached(f"pod{HOSTILE}".replace("/", "|"), network, ifname, networks={}, netns=f"/nowhere/{HOSTILE}")
    load(browser)
    for query in ("", "pod", "onerror"):
        search(browser, query)
        assert browser.value("document.querySelectorAll('svg .pod').length") == 2
    browser.value("document.querySelector('svg .pod').dispatchEvent(new Event('click'))")
    assert "onerror" in browser.value("document.getElementById('details').textContent")
    assert browser.value("document.querySelectorAll('img').length") == 0
    assert browser.value("document.querySelectorAll('script').length") == 1
    assert browser.value("window.hacked") is None
    # The page's Content-Security-Policy must stop an inserted script
    browser.value("document.body.append(Object.assign(document.createElement('script'), {text: 'window.hacked = 3'}))")
    assert browser.value("window.hacked") is None


def test_many_pods_are_dots_until_their_bridge_is_opened(host, browser):
    result = {"cniVersion": "1.0.0", "ips": [{"address": "10.88.0.2/24"}]}
    for at in range(250):
        result["ips"][0]["address"] = f"10.88.{at // 200}.{at % 200 + 2}/16"
        host.cached(f"{at:04x}" * 8, result=result, netns=f"/proc/{os.getpid()}/ns/net")
    load(browser)
    assert browser.value("document.querySelectorAll('svg .dot').length") == 250
    assert browser.value("document.querySelector('#picture').clientHeight") < 300
    (label,) = search(browser, "10.88.1.7")
    assert "10.88.1.7" in label
    browser.value("document.querySelector('svg .parent').dispatchEvent(new Event('click'))")
    assert browser.value("document.querySelectorAll('svg .pod:not(.dot)').length") == 250
    assert browser.value(CUT_OFF) == []


def test_it_says_that_the_server_has_ended(browser, server):
    load(browser)
    assert "No pods on this node" in browser.value("document.body.innerText")
    server.stop()
    wait_for(browser, "document.getElementById('live').dataset.state === 'lost'")
