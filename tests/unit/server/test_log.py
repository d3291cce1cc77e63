"""Lines in logfmt, and the limit for the lines that a caller can cause."""

import contextlib
import fcntl
import io
import os
import re
import socket
import sys
import threading

import pytest

from fastcni.daemon import log
from fastcni.daemon.stream import Stream
from fastcni.dhcp import daemon_log

PIPE_BYTES = 16 << 10


@pytest.mark.parametrize(("value", "shown"), [
    ("c1", "c1"), (1.5, "1.5"), (None, "None"), ("", '""'), ("a b", '"a b"'), ("a=b", '"a=b"'), ('a"b', '"a\\"b"'),
    ("a\\b", '"a\\\\b"'), ("a\nb", '"a\\nb"'), ("\udcff", '"?"'), ("dé", "dé"),
])
def test_only_a_value_with_special_characters_is_quoted(value, shown):
    event = {"timestamp": "now", "level": "info", "event": "request_done", "command": "ADD", "container": value,
             "ms": 0.25}
    line = log.logfmt(event)
    assert line == f"timestamp=now level=info event=request_done command=ADD container={shown} ms=0.25"


def test_the_last_value_is_quoted_if_it_is_empty():
    assert log.logfmt_fields({"ms": 0.25, "error": ""}) == 'ms=0.25 error=""'


@pytest.mark.parametrize(("value", "shown"), [("dé", '"dé"'), ("\udcff", '"?"'), ('"\n', '"\\"\\n"'), (0.5, "0.5")])
def test_a_line_of_json_is_utf8(value, shown):
    assert log.as_json({"event": "done", "container": value}) == f'{{"event":"done","container":{shown}}}'


@pytest.mark.parametrize(("level", "events"), [("debug", "abcd"), ("warning", "cd"), ("error", "d")])
def test_a_logger_writes_the_lines_of_its_level_and_above(level, events, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    logger = log.make(level, "logfmt")
    for write, event in zip((logger.debug, logger.info, logger.warning, logger.error), "abcd", strict=True):
        write(event, logger="l", method="m", name="n")      # fields with the names of parameters
    lines = sys.stderr.getvalue().splitlines()
    assert [line.split(" ", 2)[2] for line in lines] == [f"event={event} logger=l method=m name=n" for event in events]


def test_a_caller_cannot_flood_the_log(monkeypatch):
    """Otherwise, any local user could fill the disk with one line for each rejected connection."""
    lines, clock = [], iter([100.0, 100.1, 109.9, 110.1, 110.2])
    monkeypatch.setattr(log, "monotonic", lambda: next(clock))
    refused = log.RateLimited(lambda event, **fields: lines.append((event, fields)), seconds=10.0)
    for _ in range(5):
        refused("user_refused", uid=1)
    assert lines == [("user_refused", {"uid": 1, "left_out": 0}), ("user_refused", {"uid": 1, "left_out": 2})]


def test_one_event_hides_no_other():
    """Once, the events of a changed store and of an unreadable space had one common limit, so the log had only the
    first line."""
    lines = []
    failed = log.RateLimited(lambda event, **fields: lines.append((event, fields["left_out"])))
    for event in ("cluster_changed", "cluster_failed", "cluster_changed"):
        failed(event)
    assert lines == [("cluster_changed", 0), ("cluster_failed", 0)]


@pytest.fixture
def stopped_reader():
    """Yield (the reader's end of a pipe with space for PIPE_BYTES, a Stream that writes to the pipe)."""
    here, there = os.pipe()
    fcntl.fcntl(there, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    with contextlib.suppress(BrokenPipeError), open(there, "w") as file:
        yield here, Stream(file)
    os.close(here)


def written(here):
    """Return the lines in the pipe, whose writer is open."""
    return os.read(here, 1 << 20).decode().split("\n")


def test_lines_to_a_reader_that_has_stopped_are_lost(stopped_reader):
    """Once, the server waited for a program that had stopped reading its log, and answered no request."""
    here, stream = stopped_reader
    for number in range(10_000):
        stream.write(f"line {number}")
    lines = written(here)
    assert lines[:2] == ["line 0", "line 1"] and 1000 < len(lines) < 10_000
    stream.write("the next line")
    assert written(here) == ["the next line", ""]


def test_a_long_line_to_a_reader_that_has_stopped_is_cut(stopped_reader):
    here, stream = stopped_reader
    stream.write("é" * PIPE_BYTES)
    stream.write("lost")
    assert {*written(here)[0]} == {"é"}
    stream.write("next")
    stream.write("last")
    assert written(here) == ["", "next", "last", ""]


def test_a_line_without_a_reader_is_lost(stopped_reader):
    here, stream = stopped_reader
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, here)                 # closes the reader's end
    os.close(null)
    stream.write("line")


def test_a_reader_that_is_slow_loses_no_line(stopped_reader):
    here, stream = stopped_reader
    lines = []
    fill = PIPE_BYTES // len("line 0000\n")
    reader = threading.Timer(0.02, lambda: lines.extend(written(here)))
    reader.start()
    assert all(stream.write(f"line {number:04}") for number in range(fill + 100))
    reader.join()
    assert len([line for line in lines + written(here) if line]) == fill + 100


@pytest.mark.parametrize("kind", ["server", "dhcp"])
def test_the_number_of_lost_lines_is_logged(stopped_reader, monkeypatch, kind):
    here, stream = stopped_reader
    monkeypatch.setattr(sys, "stderr", stream.file)
    made = log.make("info", "logfmt") if kind == "server" else daemon_log.Log()
    for number in range(2000):
        made.info("lease", number=number)
    seen = len(written(here)) - 1       # the last line may be cut
    made.info("lease", number=2000)
    made.info("lease", number=2001)
    *_, last, lost, after, end = written(here)
    assert last.endswith("number=2000") and after.endswith("number=2001") and not end
    assert "level=warning event=log_lines_lost lines=" in lost
    assert int(lost.rpartition("=")[2]) in (2000 - seen, 2000 - seen + 1)


def test_a_server_whose_log_has_a_stopped_reader_answers(node, start, tmp_path):
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDWR)
    fcntl.fcntl(reader, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    server = start("--workers", "1", before=("sh", "-c", f'exec "$@" 2> {pipe}', "sh"))
    for _ in range(150):
        server.ok("VERSION", node.conf())
    assert "event=request_done" in written(reader)[-2]
    os.close(reader)


def test_the_log_of_the_dhcp_daemon_does_not_wait_for_its_reader(stopped_reader, monkeypatch):
    here, stream = stopped_reader
    monkeypatch.setattr(sys, "stderr", stream.file)
    log = daemon_log.Log()
    for number in range(1000):
        log.info("lease", number=number)
    assert written(here)[0].endswith(" level=info event=lease number=0")


@pytest.mark.parametrize("text", ["line", "é" * 10_000])
def test_each_line_is_written_to_a_file(tmp_path, text):
    with open(tmp_path / "log", "w") as file:
        stream = Stream(file)
        stream.write(text)
        stream.write(text)
        assert (tmp_path / "log").read_text() == f"{text}\n{text}\n"


def test_line_goes_to_syslog_with_its_severity(tmp_path):
    path = str(tmp_path / "log")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(path)
        syslog = log.Syslog(path)
        for level, severity in (("debug", 7), ("info", 6), ("warning", 4), ("error", 3)):
            syslog.write(level, "event=server_ready")
            assert daemon.recv(1000) == f"<{24 + severity}>fastcni[{os.getpid()}]: event=server_ready".encode()


def test_a_line_goes_to_journald_as_fields(tmp_path, monkeypatch):
    path = str(tmp_path / "journal")
    monkeypatch.setattr(log, "JOURNAL", path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as daemon:
        daemon.bind(path)
        logger = log.make("info", "logfmt", "journald")
        logger.debug("address_warning")
        logger.warning("rules_restored", table="ip fastcni", elements=2, by="nft (812)")
        assert daemon.recv(1 << 16).decode().splitlines() == [
            'MESSAGE=event=rules_restored table="ip fastcni" elements=2 by="nft (812)"', "PRIORITY=4",
            "SYSLOG_IDENTIFIER=fastcni", "FASTCNI_EVENT=rules_restored", "FASTCNI_TABLE=ip fastcni",
            "FASTCNI_ELEMENTS=2", "FASTCNI_BY=nft (812)"]
        try:
            raise ValueError("\udcff")
        except ValueError:
            logger.exception("server_fault")
        entry = daemon.recv(1 << 16)
        assert b"PRIORITY=3\n" in entry and b"FASTCNI_EXCEPTION\n" in entry and b"ValueError: ?" in entry


def test_line_without_a_log_daemon_is_lost(tmp_path):
    log.Syslog(str(tmp_path / "log")).write("error", "event=server_fault")


@pytest.mark.parametrize(("fmt", "shown"), [
    ("logfmt", r'timestamp=T level=error event=server_fault id=7 exception="Traceback (most recent call last):\n'),
    ("json", r'{"id":7,"event":"server_fault","level":"error","timestamp":"T","exception":"Traceback (most recent call '
             r'last):\n')])
def test_the_traceback_is_the_last_field_and_ends_without_a_newline(fmt, shown, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    logger = log.make("error", fmt)
    try:
        raise ValueError("seven")
    except ValueError:
        logger.exception("server_fault", id=7)
    line = re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", "T", sys.stderr.getvalue())
    assert line.startswith(shown) and line.rstrip("}\n").endswith(r'\nValueError: seven"')


@pytest.mark.parametrize("to", ["", "journald"])
def test_a_receiver_gets_the_event_and_the_fields_of_a_written_line(to, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    monkeypatch.setattr(log, "JOURNAL", str(tmp_path / "journal"))
    received = []
    logger = log.make("warning", "logfmt", to, [lambda line: received.append({**line})])
    logger.info("pool_recovered", free=9)
    logger.warning("pool_nearly_full", free=1)
    assert received == [{"event": "pool_nearly_full", "free": 1}]
