"""The server with ptp and the datapath "auto". The trace of an ADD says which datapath the pod's packets take."""

import errno
import os

import pytest
from lab.datapath_pods import bpffs, marks  # noqa: F401 - a fixture

from fastcni.kernel.bpf import objects
from fastcni.testing.witnesses import eventually

pytestmark = marks


@pytest.mark.parametrize(("refused", "says"), [
    (False, "datapath: ebpf"), (True, "datapath: the host's stack alone: Operation not permitted (errno 1)")])
def test_a_trace_says_which_datapath_auto_took(local, node, pod, bpffs, monkeypatch, refused, says):  # noqa: F811
    def create(*sizes):
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    if refused:
        monkeypatch.setattr(objects, "create_hash", create)
    server, ended = local(), []
    server.queue.recording = True
    server.acceptor.records.receivers.append(ended.append)
    conf = node.conf("10.22.0.0/24", type="ptp", datapath="auto")
    server.ok("ADD", conf, pod)
    assert eventually(lambda: ended)
    notes = [data.decode() for _, kind, data in ended[0].phases.steps.entries if kind == "!"]
    assert [note for note in notes if note.startswith("datapath: ")] == [says]
    server.ok("DEL", conf, pod)
