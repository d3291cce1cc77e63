"""fastcni.runtime sends a list of fastcni's own plugins to the server as one request."""

import contextlib
import errno
import json
import os
import socket
import threading
from types import SimpleNamespace

import pytest
from unit.server.client import Server

from fastcni.launcher.install import install
from fastcni.runtime import CNI, CniError, Exec, PluginError, RuntimeConf, Trace, parse_list, served
from fastcni.server.requests.protocol import DECLINED, HEAD, MAGIC, VERSION
from fastcni.spec import errors

PARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7"
OTHER = "00-4bf92f3577b34da6a3ce929d0e0e4737-00f067aa0ba902b8"
LOOPBACK = {"type": "loopback"}
PLUGINS = [LOOPBACK, {"type": "static", "ipam": {"type": "static", "addresses": [{"address": "10.9.0.2/24"}]}}]
RT = RuntimeConf("c1", "/run/netns/none", "eth0", capability_args={"ips": ["10.9.0.3/24"], "mac": "x"})


def net_of(*plugins, **keys):
    return parse_list(json.dumps({"cniVersion": "1.0.0", "name": "net", "plugins": plugins, **keys}).encode())


@pytest.fixture(scope="module")
def bin_dir(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bin")
    install(directory)
    return str(directory)


class Stub:
    """A server that gives each connection the next of its answers. If an answer is None, the server reads the request
    and closes the connection. If it is "unread", the server closes the connection without reading."""

    def __init__(self, path, answers):
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(path)
        self.listener.listen()
        self.answers, self.requests = list(answers), []
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        with contextlib.suppress(OSError):
            for answer in self.answers:
                conn, _ = self.listener.accept()
                with conn:
                    if answer != "unread":
                        self.requests.append(conn.recv(1 << 18))
                        if answer is not None:
                            conn.send(answer)

    def close(self):
        self.listener.shutdown(socket.SHUT_RDWR)        # accept() then fails, and the thread ends
        self.thread.join()
        self.listener.close()


class Counted(Exec):
    """An executor that runs no program. It records the calls and answers them itself."""

    def __init__(self, environ):
        super().__init__(environ)
        self.ran = []

    def run(self, where, env, stdin, timeout):
        self.ran.append(f"{env['CNI_COMMAND']} {os.path.basename(where)}")
        return b'{"cniVersion": "1.0.0"}'


def answer(status, document=None, stderr=b""):
    stdout = b"" if document is None else json.dumps(document).encode()
    return HEAD.pack(MAGIC, VERSION, status, len(stderr)) + stderr + stdout


@pytest.fixture
def stubbed(bin_dir, tmp_path):
    """Return a function stubbed(answer, ...) that returns (a runtime whose server gives these answers, this server)."""
    stubs = []

    def make(*answers, **keys):
        path = str(tmp_path / f"{len(stubs)}.sock")
        stubs.append(Stub(path, answers))
        return CNI([bin_dir], cache_dir=tmp_path, runner=Counted({"FASTCNI_SOCKET": path}), **keys), stubs[-1]

    yield make
    for stub in stubs:
        stub.close()


RESULT = {"cniVersion": "1.0.0", "ips": [{"address": "10.9.0.2/24"}]}


def test_a_list_is_one_request_with_all_plugins(stubbed):
    cni, stub = stubbed(answer(0, RESULT), answer(0), answer(0))
    net = net_of(LOOPBACK, {"type": "bridge", "capabilities": {"ips": True, "mac": False}})
    assert cni.add(net, RT)["ips"] == RESULT["ips"]
    cni.check(net, RT)
    assert [it.type for it in cni.delete(net, RT).called] == ["bridge", "loopback"]
    assert cni.runner.ran == []
    sent = [json.loads(data[data.index(b'{"cniV'):]) for data in stub.requests]
    assert sent[0] == {"cniVersion": "1.0.0", "name": "net", "type": "chain", "fastcni/list": True,
                       "runtimeConfig": {"ips": ["10.9.0.3/24"]},
                       "plugins": [LOOPBACK, {"type": "bridge", "capabilities": {"ips": True, "mac": False}}]}
    assert [data[HEAD.size:].partition(b"\0")[0] for data in stub.requests] == [b"chain"] * 3
    assert sent[1]["prevResult"] == sent[2]["prevResult"] == RESULT


@pytest.mark.parametrize("environ, trace, sent", [
    ({"TRACEPARENT": f"{PARENT}-01", "TRACESTATE": "a=1", "HOME": "/"}, None,
     [f"TRACEPARENT={PARENT}-01", "TRACESTATE=a=1"]),
    ({"TRACEPARENT": f"{PARENT}-01", "TRACESTATE": "a=1"}, Trace(f"{OTHER}-01"), [f"TRACEPARENT={OTHER}-01"]),
    ({}, None, []),
])
def test_the_request_joins_the_trace_of_the_call_or_else_of_the_environment(stubbed, environ, trace, sent):
    """Plugin files get the trace from their environment. Once, the single request for a list lacked it."""
    cni, stub = stubbed(answer(0, RESULT))
    cni.runner.environ |= environ
    cni.add(net_of(LOOPBACK, {"type": "bridge"}), RT, trace=trace)
    variables = stub.requests[0][HEAD.size:].partition(b"{")[0].decode().split("\0")
    assert [it for it in variables if it.startswith(("TRACE", "HOME"))] == sent


def test_an_error_is_that_of_the_plugin_by_itself(stubbed):
    document = {"code": 7, "msg": "no", "details": "why", errors.FAILED_AT: 1}
    cni, _ = stubbed(answer(1, document), answer(1, {**document, errors.FAILED_AT: 0}), answer(1, document))
    net = net_of(LOOPBACK, {"type": "bridge"})
    for do, text, done in ((cni.add, 'plugin type="bridge" (index 1) failed (add): no', []),
                           (cni.delete, 'plugin type="loopback" (index 0) failed (delete): no', ["bridge"]),
                           (cni.check, 'plugin type="bridge" (index 1) failed (check): no', ["loopback"])):
        with pytest.raises(PluginError) as caught:
            do(net, RT)
        error = caught.value
        assert (error.code, error.msg, error.details, [it.type for it in error.done]) == (7, text, "why", done)
    assert cni.runner.ran == []


@pytest.mark.parametrize("replied", [
    answer(DECLINED), "unread", HEAD.pack(MAGIC, VERSION + 1, 0, 0), HEAD.pack(b"icnf", VERSION, 0, 0), b"short"])
def test_a_request_that_the_server_has_not_worked_on_is_run_by_the_plugin_files(stubbed, replied):
    cni, _ = stubbed(replied)
    cni.add(net_of(LOOPBACK, {"type": "bridge"}), RT)
    assert cni.runner.ran == ["ADD loopback", "ADD bridge"]


def test_an_add_that_was_lost_is_an_error_and_a_rollback_deletes_all(stubbed):
    cni, _ = stubbed(None)
    with pytest.raises(PluginError) as caught:
        cni.add(net_of(LOOPBACK, {"type": "bridge"}), RT, rollback=True)
    assert (caught.value.code, cni.runner.ran) == (11, ["DEL bridge", "DEL loopback"])
    assert caught.value.msg.endswith("the fastcni server was lost while it worked on this ADD")


def test_a_del_that_was_lost_is_repeated_by_the_plugin_files(stubbed):
    cni, _ = stubbed(None)
    cni.delete(net_of(LOOPBACK, {"type": "bridge"}), RT)
    assert cni.runner.ran == ["DEL bridge", "DEL loopback"]


def test_after_a_rollback_by_the_server_the_runtime_deletes_nothing(stubbed):
    cni, _ = stubbed(answer(1, {"code": 7, "msg": "no", errors.FAILED_AT: 0}))
    with pytest.raises(PluginError):
        cni.add(net_of(LOOPBACK, {"type": "bridge"}), RT, rollback=True)
    assert cni.runner.ran == []


def test_a_foreign_plugin_a_chain_or_a_timeout_keeps_the_list_apart(stubbed, bin_dir, tmp_path):
    cni, stub = stubbed(answer(0, RESULT))
    (tmp_path / "acme").write_text("#!/bin/sh\n")
    cni.plugin_dirs.append(str(tmp_path))
    cni.add(net_of(LOOPBACK, {"type": "acme"}), RT)
    cni.add(net_of({"type": "chain", "plugins": [LOOPBACK]}), RT)
    cni.timeout = 5
    cni.add(net_of(LOOPBACK), RT)
    assert cni.runner.ran == ["ADD loopback", "ADD acme", "ADD chain", "ADD loopback"]
    assert stub.requests == []


@pytest.mark.parametrize("environ", [{"FASTCNI_SOCKET": ""}, {"FASTCNI_SOCKET": "/nowhere/x"}, {"FASTCNI_WIRE": "1"}])
def test_without_a_server_nothing_is_sent(environ):
    assert served.ask(environ, {"CNI_COMMAND": "ADD", "CNI_NETNS": ""}, b"{}") is None


@pytest.mark.parametrize("error, sent", [(errno.EMFILE, False), (errno.ENOENT, True)])
def test_without_a_descriptor_for_the_namespace_nothing_is_sent(stubbed, monkeypatch, error, sent):
    """If the path does not exist, the server reports the error."""
    def refuse(*_):
        raise OSError(error, os.strerror(error))

    cni, stub = stubbed(answer(0))
    monkeypatch.setattr(served, "os", SimpleNamespace(**{**vars(os), "open": refuse}))
    cni.delete(net_of(LOOPBACK), RT)
    assert any(stub.requests) == sent and cni.runner.ran == ([] if sent else ["DEL loopback"])


def test_the_server_gives_the_same_results_errors_and_caches_as_the_plugins_apart(host_netns, pod_netns, tmp_path,
                                                                                   bin_dir):
    """The runtime has already found the plugins, so the server works although it does not see the same directory of
    plugins."""
    ipam = {"type": "host-local", "subnet": "10.9.0.0/24", "dataDir": str(tmp_path)}
    bridge = {"type": "bridge", "bridge": "br9", "isGateway": True, "ipam": ipam}
    mapped = {"type": "portmap", "capabilities": {"portMappings": True}}
    good = net_of(bridge, mapped, {"type": "tuning", "mtu": 1300, "dataDir": str(tmp_path / "tuning")})
    bad = net_of(bridge, mapped, {"type": "vrf"})
    rt = RuntimeConf("c1", f"/run/netns/{pod_netns()}", "eth0",
                     capability_args={"portMappings": [{"hostPort": 8080, "containerPort": 80, "protocol": "tcp"}]})
    seen = {}
    with Server(tmp_path) as server:
        for name, timeout in (("together", None), ("apart", 30)):
            cni = CNI([bin_dir], cache_dir=tmp_path / name, timeout=timeout,
                      runner=Exec({"FASTCNI_SOCKET": str(server.path), "PATH": os.environ["PATH"]}))
            log = [without_chance(cni.add(good, rt)), cni.check(good, rt).called, cni.delete(good, rt).called]
            for net, do in ((bad, "add"), (bad, "delete"), (good, "check"), (good, "delete")):
                try:
                    log.append(getattr(cni, do)(net, rt).called)
                except CniError as e:
                    log.append((e.code, e.msg, e.details))
            seen[name] = log
            for file in (tmp_path / "net").glob("last_reserved_ip.*"):
                file.unlink()
        assert seen["together"] == seen["apart"]
        assert "vrf" in seen["together"][3][1]
        requests = [line for line in server.lines("command=") if "plugin=chain" in line]
        assert len(requests) == 7, server.log_text()


def without_chance(result):
    for it in result["interfaces"]:
        it["name"] = it["name"][:4]
        del it["mac"]
    return result
