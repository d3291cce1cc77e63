"""Separate processes read the policy files, with limits that the kernel enforces."""

import json
import os
import signal
import time
from pathlib import Path

import pytest
from stopping import stop

from fastcni.agent.policy.sources import reader as module
from fastcni.agent.policy.sources.reader import Reader
from fastcni.testing.witnesses import eventually

POLICY = {"kind": "NetworkPolicy", "metadata": {"name": "p"}, "spec": {}}


@pytest.fixture
def forked_children():
    """Start the process that reads files as the agent does, by another Python."""


@pytest.fixture
def reader(tmp_path):
    found = Reader(str(tmp_path))
    begin(found)
    yield found
    found.close()


def begin(reader):
    """Wait until the reader's process is ready. The process then reads the next file immediately."""
    assert eventually(lambda: not reader.take() and reader._ready)


def write(tmp_path, *names, text=None):
    for name in names:
        (tmp_path / name).write_text(json.dumps(POLICY) if text is None else text)


def collect(reader, count, seconds=60):
    """Return {name: Read} of the next `count` answers."""
    found, until = {}, time.monotonic() + seconds
    while len(found) < count:
        assert time.monotonic() < until, found
        reader.poll.poll(0.1)
        found.update((read.name, read) for read in reader.take())
    return found


def children(pid):
    return Path(f"/proc/{pid}/task/{pid}/children").read_text().split()


def test_each_file_is_answered_once_also_if_there_are_many(reader, tmp_path):
    names = [f"{number}.json" for number in range(600)]
    write(tmp_path, *names)
    reader.ask(names)
    found = collect(reader, 600)
    assert found.keys() == set(names)
    assert eventually(lambda: not reader.take() and not reader.busy)
    assert {read.documents[0][1] for read in found.values()} == {
        b'{"kind":"NetworkPolicy","metadata":{"name":"p"},"spec":{}}'}


def test_other_documents_and_keys_are_left_out(reader, tmp_path):
    """A Pod has 8 KB, of which the agent needs 300 bytes."""
    pod = {"kind": "Pod", "metadata": {"name": "a", "annotations": {"x": "y" * 9999}}, "spec": {"volumes": [1]}}
    write(tmp_path, "a.json", text=json.dumps({"kind": "List", "items": [
        pod, {"kind": "Secret", "data": {"x": "y"}}, {**POLICY, "apiVersion": "projectcalico.org/v3"}]}))
    reader.ask(["a.json"])
    assert collect(reader, 1)["a.json"].documents == [
        ("items[0]", b'{"kind":"Pod","metadata":{"name":"a"},"spec":{}}'),
        ("items[2]", b'{"apiVersion":"projectcalico.org/v3","kind":"NetworkPolicy","metadata":{"name":"p"}}')]


def test_a_file_that_takes_too_long_ends_its_child_and_no_other_waits(tmp_path, monkeypatch):
    """In the child that reads slow.json, the parser runs an endless loop."""
    monkeypatch.setattr(module, "MAIN", module.MAIN.replace("serve({fd}", (
        "import fastcni.agent.policy.sources.reader as r; r.PROCESSOR_S = 0.2; old = r.read_file; "
        "r.read_file = lambda directory, name: "
        "[0 for _ in iter(int, 1)] if name.startswith('slow') else old(directory, name); serve({fd}")))
    write(tmp_path, "slow.json", "good.json", "other.json")
    reader = Reader(str(tmp_path))
    try:
        reader.ask(["slow.json"])
        reader.ask(["good.json", "other.json"])
        found = collect(reader, 3)
        assert list(found) in (["good.json", "other.json", "slow.json"], ["other.json", "good.json", "slow.json"])
        assert found["slow.json"].again and "more than" in found["slow.json"].broken[0][1]
        # few children read these files
        reader.ask(["slow1.json", "good.json", *(f"{number}.json" for number in range(9))])
        found = collect(reader, 11)
        assert found["good.json"].documents and not found["slow1.json"].documents
    finally:
        reader.close()


def test_a_file_that_takes_too_much_memory_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAIN", module.MAIN.replace("serve({fd}", (
        "import fastcni.agent.policy.sources.reader as r; r.read_file = lambda directory, name: bytes(r.MEMORY_BYTES); "
        "serve({fd}")))
    reader = Reader(str(tmp_path))
    try:
        reader.ask(["a.json"])
        assert "96 MB of memory" in collect(reader, 1)["a.json"].broken[0][1]
    finally:
        reader.close()


def test_a_file_that_changes_while_it_is_read_is_read_again(reader, tmp_path):
    write(tmp_path, "a.json", text="{}")
    reader.ask(["a.json"])
    write(tmp_path, "a.json")
    reader.ask(["a.json"])
    reads = []
    while reader.busy:
        reader.poll.poll(1)
        reads += reader.take()
    assert len(reads) == 2 and reads[-1].documents


def test_a_process_that_something_has_ended_is_started_again(reader, tmp_path):
    write(tmp_path, "a.json")
    os.kill(reader._process.pid, signal.SIGKILL)
    os.waitid(os.P_PID, reader._process.pid, os.WEXITED | os.WNOWAIT)
    reader.ask(["a.json"])
    assert collect(reader, 1)["a.json"].documents


def test_nothing_is_left_of_a_reader_also_while_it_reads(tmp_path):
    os.mkfifo(tmp_path / "a.json")
    reader = Reader(str(tmp_path))
    begin(reader)
    pid = reader._process.pid
    write(tmp_path, *(f"{number}.json" for number in range(99)))
    reader.ask([f"{number}.json" for number in range(99)])
    there = children(pid)
    reader.close()
    assert eventually(lambda: not any(Path(f"/proc/{each}").exists() for each in (pid, *there)))


def test_the_processes_end_with_an_agent_that_is_killed(tmp_path):
    pid = os.fork()
    if pid == 0:
        try:
            reader = Reader(str(tmp_path))
            (tmp_path / "pid").write_text(str(reader._process.pid))
            signal.pause()
        finally:
            os._exit(1)
    try:
        assert eventually(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text())
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    process = Path("/proc", (tmp_path / "pid").read_text(), "stat")
    assert eventually(lambda: not process.exists() or process.read_text().split()[2] == "Z")


def test_a_process_that_never_starts_is_tried_again_after_growing_pauses(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAIN", module.MAIN.replace("serve({fd}", "sys.exit() if {fd} else serve({fd}"))
    write(tmp_path, "a.json")
    reader = Reader(str(tmp_path))
    try:
        reader.ask(["a.json"])
        started, pauses = set(), set()

        def tried():
            assert reader.take() == [] and reader.busy
            started.add(reader._process and reader._process.pid)
            pauses.add(reader._pause)
            return len(started - {None}) >= 3
        assert eventually(tried)
        assert reader.why == "the process that reads files has ended; it is started again" and len(pauses) >= 3
        monkeypatch.undo()
        assert collect(reader, 1)["a.json"].documents and not reader.why
    finally:
        reader.close()


@pytest.mark.parametrize("starting", [True, False])
def test_a_process_that_is_stopped_is_ended_and_started_again(tmp_path, monkeypatch, starting):
    write(tmp_path, "a.json", "b.json")
    reader = Reader(str(tmp_path))
    try:
        if not starting:
            reader.ask(["a.json"])
            collect(reader, 1)
            assert eventually(lambda: not reader.take() and not reader.busy)
        monkeypatch.setattr(module, "START_S" if starting else "ANSWER_S", 0.3)
        if starting:
            reader._until = time.monotonic() + 0.3
        stop(first := reader._process.pid)
        reader.ask(["b.json"])
        said = set()

        def answered():
            monkeypatch.setattr(module, "START_S", 10.0)
            said.add(reader.why)
            return any(read.documents for read in reader.take())
        assert eventually(answered)
        assert said == {"", "the process that reads files does not answer; it is started again"}
        assert not Path(f"/proc/{first}").exists() and not reader.why
    finally:
        reader.close()


def test_a_child_that_is_stopped_is_ended_and_only_its_first_file_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAIN", module.MAIN.replace("serve({fd}", (
        "import os, fastcni.agent.policy.sources.reader as r; old = r.read_file; r.read_file = lambda directory, name: "
        "os.kill(os.getpid(), 19) if name == 'stop.json' else old(directory, name); serve({fd}")))
    monkeypatch.setattr(module, "MAX_CHILDREN", 1)
    monkeypatch.setattr(module, "ELAPSED_S", 0.3)
    monkeypatch.setattr(module, "ANSWER_S", 2.0)
    write(tmp_path, "stop.json", "good.json")
    reader = Reader(str(tmp_path))
    try:
        reader.ask(["stop.json", "good.json"])
        found = collect(reader, 2)
        assert found["stop.json"].again and found["good.json"].documents
    finally:
        reader.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: raises the priority of a process")
def test_only_the_first_file_of_a_request_is_read_with_priority_and_only_if_it_is_small(tmp_path, monkeypatch):
    """Once, on a busy node, the reading process waited for the processor longer than a change of the kernel's rules
    took."""
    def read(directory, name):
        return module.Read(name, [("nice", b"%d" % os.getpriority(os.PRIO_PROCESS, 0))], [])

    monkeypatch.setattr(module, "read_bounded", read)
    write(tmp_path, "a.json", "b.json")
    write(tmp_path, "long.json", text=" " * (module.SMALL_BYTES + 1))
    for names, expected in ((["a.json", "b.json"], [b"-10", b"0"]), (["long.json", "a.json"], [b"0", b"0"])):
        reads, writes = os.pipe()
        if (pid := os.fork()) == 0:
            module.raise_priority()
            module.work(writes, str(tmp_path), names)
        os.close(writes)
        with open(reads, "rb") as answer:
            lines = answer.read().splitlines()
        os.waitpid(pid, 0)
        assert [line.split(b"\t")[1] for line in lines if b"\t" in line] == expected
