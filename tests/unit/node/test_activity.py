"""Figures and text of `fastcni top` and of the status page, in a frame of 80 columns and 24 rows."""

import pytest

from fastcni.cli.text import top as top_frame
from fastcni.cli.text.top import SORTS, View, frame
from fastcni.cli.top import press
from fastcni.node.activity import summary
from fastcni.node.activity.summary import Recent, document, percentile
from fastcni.server.metrics.pools import Pool

NOW = 1_763_900_000.0


def entry(number, ms=2.0, *, ago=10.0, command="ADD", network="net-a", container="c-1", outcome="0", queue_ms=0.5,
          phases=(), plugin="bridge"):
    """Return an entry of the server's history. ago: seconds since the request ended."""
    return {"number": number, "id": f"ab12-{number}", "time": NOW - ago - (queue_ms + ms) / 1e3, "command": command,
            "plugin": plugin, "network": network, "container": container, "ifname": "eth0", "pid": 7,
            "outcome": outcome, "queueMs": queue_ms, "ms": ms,
            "phases": [{"name": name, "startMs": 0.0, "ms": took} for name, took in phases]}


class Ring:
    """A server's history. It answers as fastcni.server.records.history.ask() does."""

    def __init__(self, size=1000, page=100):
        self.entries, self.size, self.page, self.pid = [], size, page, 812
        self.failed = []                # the history keeps failed requests longer than other requests

    def add(self, *entries):
        self.entries += entries

    def ask(self, after):
        held = self.entries[-self.size:]
        first = held[0]["number"] if held else 1
        newest = self.entries[-1]["number"] if self.entries else 0
        kept = [it for it in self.failed if it["number"] < first]
        found = [it for it in [*kept, *held] if it["number"] > after][:self.page]
        return {"pid": self.pid, "first": first, "next": found[-1]["number"] if found else newest,
                "lost": max(0, first - 1 - after) if held and after else 0, "requests": found}


def sample(*entries):
    ring = Ring()
    ring.add(*entries)
    recent = Recent(ring.ask)
    recent.poll(NOW)
    return recent.sample(NOW)


def of(rows, **chosen):
    (found,) = (it for it in rows if all(it[key] == value for key, value in chosen.items()))
    return found


@pytest.mark.parametrize("values, share, expected", [
    ((), 0.5, None), ((1.0,), 0.99, 1.0), ((1.0, 2.0), 0.5, 1.0), ((1.0, 2.0, 3.0), 0.5, 2.0),
    (tuple(map(float, range(1, 101))), 0.99, 99.0), (tuple(map(float, range(1, 102))), 0.99, 100.0)])
def test_a_percentile_is_the_nearest_rank(values, share, expected):
    assert percentile(values, share) == expected


def test_rates_and_times_by_command_and_phase():
    found = document(sample(
        *(entry(at, at * 1.0, phases=[("netlink", 0.25), ("netlink", 0.25), ("ipam", at)]) for at in range(1, 101)),
        *(entry(at, 1.0, command="DEL") for at in range(101, 121))), summary.Node())
    assert (found["requests"], found["perSecond"], found["seconds"], found["failed"]) == (120, 2.0, 60.0, 0)
    assert of(found["commands"], command="ADD") == {
        "command": "ADD", "requests": 100, "perSecond": 1.67, "failed": 0, "p50Ms": 50.5, "p99Ms": 99.5, "maxMs": 100.5}
    assert of(found["phases"], phase="netlink") == {
        "phase": "netlink", "command": "ADD", "requests": 100, "p50Ms": 0.5, "p99Ms": 0.5, "maxMs": 0.5}
    assert of(found["phases"], phase="ipam")["p99Ms"] == 99.0
    assert [(it["phase"], it["command"]) for it in found["phases"]] == [
        ("queue", "ADD"), ("queue", "DEL"), ("ipam", "ADD"), ("netlink", "ADD")]
    assert [it["number"] for it in found["slowest"]] == list(range(100, 80, -1))


def test_old_requests_do_not_count():
    found = document(sample(entry(1, ago=61), entry(2, ago=59)), summary.Node())
    assert [it["number"] for it in found["slowest"]] == [2]


def test_the_figures_cover_no_time_before_the_server_was_there():
    found = document(sample(entry(1, ago=5), entry(2, ago=5)), summary.Node({"uptimeSeconds": 10.0, "pid": 812}))
    assert (found["seconds"], found["perSecond"]) == (10.0, 0.2)


def test_errors_by_code_and_what_has_no_time():
    found = document(sample(
        entry(1, 0.0, outcome="11", queue_ms=60_000.0, network="net-b"), entry(2, outcome="11"), entry(3, outcome="7"),
        entry(4, outcome="declined"), entry(5, outcome="caller_gone"), entry(6), entry(7, outcome="101")),
        summary.Node())
    assert [(it["outcome"], it["requests"]) for it in found["errors"]] == [
        ("11", 2), ("101", 1), ("7", 1), ("caller_gone", 1), ("declined", 1)]
    assert of(found["errors"], outcome="11")["text"] == "try again later"
    assert of(found["errors"], outcome="101")["text"] == "an error of the plugin"
    assert found["failed"] == 5             # a declined request counts, because the launcher repeated it one-shot
    assert of(found["commands"], command="ADD")["maxMs"] == 2.5
    assert of(found["networks"], network="net-b")["p50Ms"] is None


def test_networks_with_requests_with_attachments_and_with_pools():
    pools = (Pool("host-local", "net-a", "10.1.0.0/24", 10, 90), Pool("host-local", "net-a", "v6", 1, 9**9),
             Pool("host-local", "net-c", "none", 3))
    node = summary.Node({}, pools, {"net-a": 4, "net-b": 1})
    found = document(sample(entry(1), entry(2, network="net-d")), node)
    assert [(it["network"], it["attachments"]) for it in found["networks"]] == [
        ("net-a", 4), ("net-d", 0), ("net-b", 1), ("net-c", 0)]
    assert of(found["networks"], network="net-a")["pool"] == {
        "ipam": "host-local", "network": "net-a", "range": "10.1.0.0/24", "held": 10, "free": 90, "full": 0.1}
    assert of(found["networks"], network="net-c")["pool"]["full"] is None


def test_a_filter_is_for_network_and_container():
    one = sample(entry(1, network="net-a", container="web-1"), entry(2, network="net-a", container="db"),
                 entry(3, network="web"))
    found = document(one, summary.Node({}, (Pool("host-local", "net-b", "r", 1, 1),), {"net-b": 1}), "web")
    assert [it["number"] for it in found["slowest"]] == [1, 3]
    assert {it["network"] for it in found["networks"]} == {"net-a", "web"}
    assert found["pools"] == []


def test_polls_read_on_where_the_last_one_ended():
    ring = Ring(page=3)
    recent = Recent(ring.ask)
    ring.add(*map(entry, range(1, 8)))
    recent.poll(NOW)
    ring.add(*map(entry, range(8, 10)))
    recent.poll(NOW)
    assert [it.number for it in recent.sample(NOW).requests] == list(range(1, 10))


def test_what_was_lost_between_polls_counts_in_the_rate_and_is_told():
    ring = Ring(size=5)
    recent = Recent(ring.ask)
    ring.add(entry(1))
    recent.poll(NOW)
    ring.add(*map(entry, range(2, 62)))
    recent.poll(NOW)
    found = document(recent.sample(NOW), summary.Node())
    assert (found["requests"], found["lost"], found["perSecond"]) == (6, 55, round(61 / 60, 2))
    text = frame(found, View(), 80, 24).plain
    assert "A sample: 55 requests left the server's history unread" in text
    assert document(recent.sample(NOW + 61), summary.Node())["lost"] == 0


@pytest.mark.parametrize("failed", [[], [1, 2]])
def test_a_full_history_at_the_first_poll_shortens_the_time(failed):
    ring = Ring(size=5)
    ring.add(*(entry(at, ago=30 - at) for at in range(1, 21)))
    ring.failed = [entry(at, ago=30 - at, outcome="11") for at in failed]
    recent = Recent(ring.ask)
    recent.poll(NOW)
    found = document(recent.sample(NOW), summary.Node())
    assert (found["lost"], found["requests"]) == (0, 5)
    assert found["seconds"] == 14.0         # number 16 is the oldest remaining entry


def test_a_bounded_number_of_requests_is_kept(monkeypatch):
    monkeypatch.setattr(summary, "MAX_REQUESTS", 10)
    ring = Ring()
    recent = Recent(ring.ask)
    ring.add(*(entry(at, ago=40 - at) for at in range(1, 9)))
    recent.poll(NOW)
    ring.add(*(entry(at, ago=40 - at) for at in range(9, 17)))
    recent.poll(NOW)
    found = document(recent.sample(NOW), summary.Node())
    assert (found["requests"], found["seconds"]) == (10, 33.0)      # number 7 is the oldest remaining entry


def test_a_server_that_was_restarted_is_read_from_its_beginning():
    ring = Ring()
    recent = Recent(ring.ask)
    ring.add(*map(entry, range(1, 8)))
    recent.poll(NOW)
    ring.entries, ring.pid = [entry(1), entry(2)], 900
    recent.poll(NOW)
    assert [it.number for it in recent.sample(NOW).requests] == [*range(1, 8), 1, 2]


LONG = [f"a-network-with-a-long-name-{at}" for at in range(9)]
BUSY_NODE = summary.Node(
    {"version": "0.1.0", "pid": 812, "uptimeSeconds": 9e5, "running": 32, "waiting": 1024, "queueSize": 1024,
     "workers": 32},
    tuple(Pool("host-local", name, "10.100.100.100-10.100.200.200", 10**6, at) for at, name in enumerate(LONG)),
    dict.fromkeys(LONG, 10**5))


def busy():
    names = ("ipam", "netlink", "nftables", "delegate", "program", "another-phase", "more")
    phases = [(name, 1234.5) for name in names]
    outcomes = ("0", "11", "caller_gone", "abandoned", "fault", "declined", "999", "100", "101", "102")
    return sample(*(entry(at, 99_999.9, command=("ADD", "DEL", "CHECK", "GC", "STATUS")[at % 5], phases=phases,
                          network=LONG[at % 9], container="8f" * 32, plugin="a-long-plugin-name",
                          outcome=outcomes[at % 10]) for at in range(1, 90)))


@pytest.mark.parametrize("columns, lines", [(80, 24), (60, 12), (200, 60), (20, 5), (79, 13)])
@pytest.mark.parametrize("view", [View(), View(help=True),
                                  View(typing="x", chosen="a" * 50, frozen=True, trouble="t" * 99)])
@pytest.mark.parametrize("what", [busy, sample])
def test_a_frame_fits_its_terminal(columns, lines, view, what):
    found = document(what(), BUSY_NODE if what is busy else summary.Node(), view.chosen if what is busy else "")
    text = frame(found, view, columns, lines)
    rows = text.split("\n", allow_blank=True)
    assert len(rows) <= lines
    assert max(row.cell_len for row in rows) <= columns


def test_a_frame_of_80x24_has_all_parts():
    text = frame(document(busy(), BUSY_NODE), View(), 80, 24).plain
    for part in ("pid 812, up 10d", "requests/s in 60 s", "running 32 of 32", "queue 1024 of 1024", "TIME", "queue",
                 "netlink", "ERRORS", "caller_gone", "NETWORK", "!100%", "SLOWEST", "8f8f8f8f8f8f", "q quit",
                 "s sort: requests"):
        assert part in text


def test_a_wide_frame_has_the_meaning_of_codes_and_the_ids_of_requests():
    found = document(sample(entry(17, outcome="11")), summary.Node())
    for columns, there in ((80, False), (105, True)):
        text = frame(found, View(), columns, 24).plain
        assert ("try again later" in text, "ab12-17" in text) == (there, there)
    longest = document(sample(entry(1, phases=[("nftables", 2.0)])), summary.Node())
    assert "nftables\n" in frame(longest, View(), 80, 24, keys=False).plain + "\n"


def test_control_characters_of_callers_do_not_reach_the_terminal():
    found = document(sample(entry(1, container="\x1b[2J", network="\r\n\x9b", plugin="\x07")), summary.Node())
    text = frame(found, View(), 80, 24).plain
    assert not set(text) & set("\x1b\r\x9b\x07")


def test_keys_sort_filter_freeze_and_quit():
    view = View()
    for key in ("s", "/", "w", "e", "x", "erase", "q", "enter", " ", "?"):
        assert press(key, view)
    assert (SORTS[view.sort][0], view.chosen, view.typing) == ("failed", "weq", None)
    assert view.frozen and view.help
    for key in (*"sssss", "escape", " "):
        assert press(key, view)
    assert (SORTS[view.sort][0], view.chosen, view.frozen, view.help) == ("requests", "", False, False)
    assert not press("q", view)


def test_each_key_sorts_the_networks():
    node = summary.Node({}, (Pool("host-local", "net-b", "r", 9, 1),), {"net-c": 7})
    found = document(sample(entry(1, network="net-z"), entry(2, network="net-z"),
                            entry(3, network="net-y", outcome="7", ms=1.0), entry(4, 9.0, network="net-x")), node)
    first = {}
    for at, (name, _) in enumerate(SORTS):
        lines = top_frame.network_lines(found, View(sort=at), 9)
        first[name] = lines[2].plain.split()[0]
    assert first == {"requests": "net-z", "failed": "net-y", "p99": "net-x", "pods": "net-c", "full": "net-b",
                     "name": "net-b"}


@pytest.mark.parametrize("text, expected", [
    ("10.1.0.1-10.1.0.254", "10.1.0.1-254"), ("10.1.0.1-10.1.255.254", "10.1.0.1-10.1.255.254"), ("none", "none"),
    ("fd00::10-fd00::1f", "fd00::10-1f"), ("10.1.0.0/16", "10.1.0.0/16"), ("", "")])
def test_a_range_does_not_repeat_its_network(text, expected):
    assert top_frame.short_range(text) == expected


@pytest.mark.parametrize("value, expected", [
    (None, "-"), (0, "0"), (7, "7"), (1.937, "1.94"), (12.34, "12.3"), (740.4, "740"), (99_999, "99999"),
    (100_000, "100k"), (1 << 24, "17M"), (1 << 64, "2e+19")])
def test_numbers_are_short(value, expected):
    assert top_frame.number(value) == expected
