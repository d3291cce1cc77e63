"""A plugin for the tests of handle(). It records its requests, and raises the exception that a test sets."""

import json
import types

import pytest

from fastcni.handle import handle
from fastcni.kit.call.mode import Mode

VERSIONS = ("0.1.0", "0.4.0", "1.0.0", "1.1.0")
REPLY = b'{"cniVersion":"1.1.0","supportedVersions":["0.1.0","0.4.0","1.0.0","1.1.0"]}\n'
STDIN = {"name": "n", "cniVersion": "1.1.0", "cni.dev/valid-attachments": []}
RESULT = {"ips": [{"address": "10.0.0.2/24"}]}
MISSING = "required env variables [{}] missing".format
FAULT = 'this is a fault of the plugin "stub"'
INCOMPATIBLE = "incompatible CNI versions"
PLUGIN_SPEAKS = 'plugin supports ["0.1.0" "0.4.0" "1.0.0" "1.1.0"]'


class StubPlugin:
    """A plugin whose list `ran` has the requests that reached it. If `fail` is not None, the plugin raises it."""

    def __init__(self):
        self.ran, self.fail = [], None
        self.module = types.ModuleType("stub")
        self.module.VERSIONS = VERSIONS
        self.module.read = lambda req: None
        self.module.add = lambda req, conf, undo: self.run(req) or RESULT
        for name in ("delete", "check", "gc", "status"):
            setattr(self.module, name, lambda req, conf: self.run(req))

    def run(self, req):
        if self.fail:
            raise self.fail
        self.ran.append(req)


def call(command, stdin=STDIN, **env):
    """Call handle() with the usual variables, and with those in `env`. A variable whose value is None is omitted."""
    env = {"CNI_COMMAND": command, "CNI_CONTAINERID": "c1", "CNI_NETNS": "/none", "CNI_IFNAME": "eth0",
           "CNI_PATH": "/bin"} | env
    env = {name: value for name, value in env.items() if value is not None}
    return handle("stub", env, stdin if isinstance(stdin, bytes) else json.dumps(stdin).encode(), Mode())


def error(reply):
    """Return (code, msg, details or None) of an error. Also assert the form of its document (row S36)."""
    assert reply.status == 1
    found = json.loads(reply.stdout)
    assert list(found) in (["code", "msg"], ["code", "msg", "details"])
    lines = reply.stdout.decode().split("\n")
    assert lines[0] == "{"
    assert lines[-1] == "}"
    assert all(line.startswith('    "') for line in lines[1:-1])
    return found["code"], found["msg"], found.get("details")


def row(number):
    """Return a test case whose id is the number of its row in the table for the CNI reference."""
    return pytest.param(number, id=number)
