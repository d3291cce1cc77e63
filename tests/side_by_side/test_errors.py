"""Send bad input to both implementations. Both print one error with the same text. fastcni's error has the spec's code,
and the failed call changes nothing."""

import json
import os
import re
import time

import pytest
from side_by_side.bad_input import BAD
from side_by_side.sides import Inside, at_once, run
from side_by_side.state import difference, state_of

from fastcni.testing.witnesses import eventually

# Changes that a failed ADD leaves in both implementations: sysctls, shared tables, the round-robin cursor, and lo's
# address if lo was up.
LASTING = re.compile(r"host/sysctls/net/.*/(ip_forward|forwarding|br0/accept_ra)|last_reserved_ip\.."
                     r"|pod0/.*(127\.0\.0\.|links/lo/qdisc|links/lo/operstate).*|.*/tentative")


# Plugins whose complete error text must equal the reference's, because programs compare it
BARE = ("bandwidth", "bridge", "macvlan", "sbr")


def plugin_of(bad):
    return bad.plugin or bad.conf["type"]


class Try:
    """A bad request to one implementation."""

    def __init__(self, side, bad):
        self.side, self.bad, self.pod = side, bad, side.pod()
        for command in bad.before:
            if command == "fill":
                side.add({key: value for key, value in bad.conf.items() if key != "runtimeConfig"}, self.pod,
                         cid="first")
            elif command.startswith("pod:"):
                with Inside(os.path.basename(self.pod)):
                    run(*command[4:].split())
            else:
                side.on_host(*command.split())
        if bad.twice:
            side.add(bad.conf, self.pod)
            assert eventually(lambda: "state DOWN" not in side.on_host("ip", "link", "show", "br0", check=False)), (
                "br0 does not come up")

    def state(self):
        return {**state_of(self.side, self.pod), **self.side.held("net-a")}

    def changed_since(self, before, seconds=20.0):
        """Wait until the kernel has removed deleted links. Return the differences from the state `before`."""
        deadline = time.monotonic() + seconds
        while True:
            changed = {path: pair for path, pair in difference(before, self.state()).items()
                       if not LASTING.fullmatch(path)}
            if not changed or time.monotonic() > deadline:
                return changed
            time.sleep(0.05)

    def call(self):
        bad = self.bad
        return self.side.call(bad.command, bad.conf, self.pod, plugin=bad.plugin, **bad.variables)

    def plain(self, answer):
        """Return (code, msg, details) of an answer with placeholders for this implementation's names."""
        document = answer.document
        assert set(document) <= {"code", "msg", "details"}, str(answer)
        names = {self.side.directory: "<directory>", self.side.bin_dir: "<plugins>", self.pod: "<pod>",
                 ' "1.1.0"': "", " 1.1.0]": "]"}           # a version that Go 1.1.1 lacks
        pattern = re.compile("|".join(map(re.escape, names)))
        return document["code"], *(re.sub("veth[0-9a-f]{8}", "<host end>", pattern.sub(lambda m: names[m[0]], text))
                                   for text in (document["msg"], document.get("details", "")))


@pytest.mark.parametrize("title", BAD)
def test_both_refuse_with_the_same_text_and_fastcni_leaves_nothing(title, three_sides):
    bad = BAD[title]
    tries = at_once(lambda side: Try(side, bad), three_sides)
    before = at_once(Try.state, tries[:-1])
    *answers, go = at_once(Try.call, tries)
    for tried, state, fastcni in zip(tries, before, answers, strict=False):
        taken = [name for name, answer in (("fastcni", fastcni), ("go", go)) if answer.status == 0]
        assert taken == ([bad.taken_by] if bad.taken_by else []), f"{tried.side.name}: {fastcni}\n{go}"
        if fastcni.status:
            assert not tried.changed_since(state)
        if not taken:
            compare(bad, title, tried.plain(fastcni), tries[-1].plain(go))


def compare(bad, title, ours, theirs):
    """Compare (code, msg, details) of fastcni and Go."""
    (code, msg, details), (their_code, their_msg, their_details) = ours, theirs
    assert code
    assert (msg == their_msg) is not bool(bad.differs), f"{ours}\n{theirs}"
    assert their_code in (code, 999)        # the Go plugins answer 999 instead of plugin-specific codes
    assert not their_details or details == their_details
    if msg == their_msg and plugin_of(bad) in BARE and title != "a delegate's error":
        assert details == their_details


def test_an_unknown_plugin_type_of_a_launcher_does_not_matter(sides):
    """Both implementations choose the plugin by the name of the called file, not by the key `type`."""
    for side in sides:
        answer = side.call("VERSION", b"", plugin="ptp")
        assert answer.status == 0
        assert "1.0.0" in answer.document["supportedVersions"]


def test_without_a_command_the_about_text_is_printed_without_an_error(sides):
    fastcni, go = (side.call(None, b"", plugin="bridge") for side in sides)
    assert (fastcni.status, fastcni.stdout) == (go.status, go.stdout) == (0, "")
    assert [len(each.stderr.splitlines()) for each in (fastcni, go)] == [2, 2]
    assert [each.stderr.splitlines()[1].split(": ")[0] for each in (fastcni, go)] == 2 * [
        "CNI protocol versions supported"]


def test_a_version_reply_is_one_line_of_json(sides):
    fastcni, go = (side.call("VERSION", b"", plugin="host-local") for side in sides)
    assert fastcni.stdout.count("\n") == go.stdout.count("\n") == 1
    assert fastcni.stdout.endswith("\n")
    known = [json.loads(each.stdout)["supportedVersions"] for each in (fastcni, go)]
    assert known[0] == [*known[1], "1.1.0"]
