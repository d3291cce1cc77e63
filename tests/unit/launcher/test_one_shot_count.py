"""The count of one-shot requests in a file next to the server's socket."""

import os
from pathlib import Path

import pytest
from unit.launcher.stub_server import DECLINED, LONG, closed_unread, reply, run, serving, variables, went_away

from fastcni.server.metrics.one_shot import SHORTEN_BYTES, SUFFIX, OneShotCount

FULL_BYTES = 1 << 20
CAUSES = {"declined": (reply(DECLINED), b"{}", b"d"), "closed unread": (closed_unread, b"{}", b"d"),
          "lost": (went_away, b"{}", b"l"), "too long": (reply(0), LONG, b"t"), "answered": (reply(0), b"{}", b"")}


@pytest.fixture
def count(directory):
    """Yield the count file of the socket that serving() uses."""
    path = directory / f"server{SUFFIX}"
    path.touch()
    yield path
    path.unlink(missing_ok=True)


@pytest.mark.parametrize("cause", CAUSES)
def test_a_request_that_goes_one_shot_leaves_its_reason(bridge, directory, count, cause):
    answer, stdin, letter = CAUSES[cause]
    with serving(directory, answer) as server:
        run(bridge, env=variables(server, "DEL"), stdin=stdin)
    assert count.read_bytes() == letter


def test_requests_without_a_server_are_counted_and_those_that_ask_for_none_are_not(bridge, directory, count):
    for path in (directory / "server", directory / "server", ""):
        run(bridge, env=variables(str(path)))
    run(bridge, env=variables(str(directory / "server"), FASTCNI_WIRE="1"))
    assert count.read_bytes() == b"nn"


def test_no_file_is_made(bridge, directory):
    run(bridge, env=variables(str(directory / "server")))
    assert not (directory / f"server{SUFFIX}").exists()


@pytest.mark.parametrize("path", ["/nowhere/socket", "/" + "x" * 107, "/" + "x" * 108, "x" * 5000, "server"])
def test_a_path_without_a_file_changes_nothing(bridge, path):
    assert run(bridge, env=variables(path)) == run(bridge, env=variables(""))


def test_a_file_that_may_not_be_the_servers_is_left_alone(bridge, directory, count):
    """In a directory like /tmp, another user could make this name a link to a file of root."""
    other = directory / "other"
    other.write_bytes(b"precious")
    count.unlink()
    for link in (os.link, os.symlink):
        link(other, count)
        run(bridge, env=variables(str(directory / "server")))
        assert other.read_bytes() == b"precious"
        count.unlink()
    other.unlink()
    os.mkfifo(count)
    run(bridge, env=variables(str(directory / "server")))
    count.unlink()
    count.mkdir()
    run(bridge, env=variables(str(directory / "server")))
    count.rmdir()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: gives a file to another user")
def test_another_users_file_is_left_alone(bridge, directory, count):
    os.chown(count, 65534, 65534)
    run(bridge, env=variables(str(directory / "server")))
    assert count.read_bytes() == b""


def test_the_file_has_a_limit(bridge, directory, count):
    for size, expected in ((FULL_BYTES - 1, FULL_BYTES), (FULL_BYTES, FULL_BYTES)):
        os.truncate(count, size)
        run(bridge, env=variables(str(directory / "server")))
        assert count.stat().st_size == expected


def test_the_server_counts_by_reason_and_empties_a_long_file(directory):
    counts = OneShotCount(str(directory / "server"))
    path = Path(counts.path)
    with open(path, "ab") as file:
        file.write(b"nnd?")
        file.flush()
        found = counts.read()
        assert {name: number for name, number in found.items() if number} == {"no_server": 2, "declined": 1, "other": 1}
        file.write(b"n" * SHORTEN_BYTES)
        file.flush()
        assert counts.read()["no_server"] == SHORTEN_BYTES + 2
        assert path.stat().st_size == 0
        file.write(b"l")
    assert (counts.read()["lost"], counts.read()["lost"]) == (1, 1)
    os.truncate(path, 0)                # an operator empties the file
    counts.read()
    path.write_bytes(b"b")
    assert counts.read()["busy"] == 1
    counts.close()
    again = OneShotCount(str(directory / "server"))        # the next server reads the same file
    assert again.read()["busy"] == 1
    again.close()
    path.unlink()


def test_the_server_refuses_a_file_of_two_names(directory):
    other, path = directory / "other", directory / f"server{SUFFIX}"
    other.touch()
    os.link(other, path)
    with pytest.raises(PermissionError, match="another user's"):
        OneShotCount(str(directory / "server"))
    path.unlink()
    other.unlink()
