"""A directory for tests of the runtime library. Its plugins record their calls and give prepared answers."""

import json
from pathlib import Path

import pytest
from unit.runtime.two_networks import NETNS, conflist, result_of

from fastcni.runtime import CNI, PodNetworks, parse_list

# Each call writes NNN-<plugin>-<command>.env and .stdin, and prints the prepared files of its answer.
PLUGIN = """#!/bin/sh
stage="$(dirname "$0")/.."
call="$stage/calls/$(printf %03d "$(ls "$stage/calls" | wc -l)")-${0##*/}-$CNI_COMMAND"
cat > "$call.stdin"
env > "$call.env"
answer="$stage/answers/${0##*/}.$CNI_COMMAND"
[ -e "$answer.err" ] && cat "$answer.err" >&2
[ -e "$answer.out" ] && cat "$answer.out"
[ -e "$answer.status" ] && exit "$(cat "$answer.status")"
exit 0
"""


class Call:
    """A recorded call of a plugin."""

    def __init__(self, stdin_file: Path):
        _, self.plugin, self.command = stdin_file.stem.rsplit("-", 2)
        self.raw = stdin_file.read_bytes()
        lines = stdin_file.with_suffix(".env").read_text().splitlines()
        self.env = dict(line.partition("=")[::2] for line in lines if "=" in line)

    @property
    def stdin(self):
        return json.loads(self.raw)


class Stage:
    """A directory with plugins in `bin`, configurations in `net.d`, a result cache, and the records of calls."""

    def __init__(self, where: Path):
        self.where = where
        self.bin, self.net_d, self.cache = where / "bin", where / "net.d", where / "var" / "cni"
        for directory in (self.bin, self.net_d, where / "calls", where / "answers"):
            directory.mkdir()

    def plugin(self, *names):
        for name in names:
            file = self.bin / name
            file.write_text(PLUGIN)
            file.chmod(0o755)

    def answer(self, name, command, out="", err="", status=0):
        base = self.where / "answers" / f"{name}.{command}"
        for suffix, text in (("out", out), ("err", err), ("status", str(status))):
            file = Path(f"{base}.{suffix}")
            if text:
                file.write_text(text if isinstance(text, str) else json.dumps(text))

    def calls(self):
        return [Call(file) for file in sorted((self.where / "calls").glob("*.stdin"))]

    def called(self):
        """Return the calls in their order, for example ["a ADD", "b ADD"]."""
        return [f"{call.plugin} {call.command}" for call in self.calls()]

    def forget_calls(self):
        for file in (self.where / "calls").iterdir():
            file.unlink()

    def conf(self, name, content):
        """Write a configuration file. content: bytes, text or a JSON value."""
        file = self.net_d / name
        file.parent.mkdir(exist_ok=True)
        if isinstance(content, bytes):
            file.write_bytes(content)
        else:
            file.write_text(content if isinstance(content, str) else json.dumps(content))
        return file


@pytest.fixture
def stage(tmp_path):
    return Stage(tmp_path)


@pytest.fixture
def cni(stage):
    """Return a runtime (CNI) with the plugins a, b and c. Each plugin answers an ADD."""
    stage.plugin("a", "b", "c")
    for name in ("a", "b", "c"):
        stage.answer(name, "ADD", out='{"cniVersion":"1.1.0","interfaces":[{"name":"eth0"}]}')
    return CNI([stage.bin], stage.net_d, stage.cache)


@pytest.fixture
def net_of():
    """Return a function net_of(*plugins) that returns a network list. A plugin is a type or a complete
    configuration."""
    def make(*plugins, version="1.1.0", name="net", **extra):
        plugins = [it if isinstance(it, dict) else {"type": it} for it in plugins]
        content = {"name": name, "plugins": plugins, **extra}
        if version is not None:
            content["cniVersion"] = version
        return parse_list(json.dumps(content).encode())
    return make


@pytest.fixture
def networks(stage):
    """Write the networks `first` with the plugin a, and `second` with the plugins b and c. Return their PodNetworks."""
    stage.plugin("a", "b", "c", "loopback")
    for name, address in (("a", "10.1.0.2/24"), ("b", "10.2.0.2/24"), ("c", "10.2.0.2/24")):
        stage.answer(name, "ADD", result_of(address))
    stage.answer("loopback", "ADD", {"cniVersion": "0.3.1", "interfaces": [{"name": "lo", "sandbox": NETNS}],
                                     "ips": [{"version": "4", "address": "127.0.0.1/8", "interface": 0}]})
    stage.conf("10-first.conflist", conflist("first", "a"))
    stage.conf("20-second.conflist", conflist("second", "b", "c"))
    return PodNetworks(CNI([stage.bin], stage.net_d, stage.cache))
