"""Run deploy/fastcni-node, the script of the image's containers, with a program of the test in the place of
`fastcni`."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/fastcni-node"
USAGE = "usage: fastcni-node install|serve|agent|uninstall [option]... | configure|credentials|wait"


@pytest.fixture
def node(tmp_path):
    """Return a function that runs the script with the image's and the node's directories below tmp_path. The function
    returns (exit status, the words of each fastcni command, stderr)."""
    (tmp_path / "image/3.11.7-abc/bin").mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for name, text in (("fastcni", f'printf "%s\\n" fastcni "$@" "" >> {tmp_path}/words'), ("mount", "")):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    text = SCRIPT.read_text()
    for line, new in (("from=/usr/share/fastcni/python", f"from={tmp_path}/image"),
                      ("to=/opt/fastcni/python", f"to={tmp_path}/node"),
                      ("conf_dir=/etc/cni/net.d", f"conf_dir={tmp_path}")):
        assert f"\n{line}" in text
        text = text.replace(f"\n{line}", f"\n{new}")
    (tmp_path / "script").write_text(text)

    def run(*words):
        done = subprocess.run(["sh", tmp_path / "script", *words], capture_output=True, text=True, timeout=60,
                              env={"PATH": f"{tmp_path}/bin:{os.environ['PATH']}"})
        called = (tmp_path / "words").read_text() if (tmp_path / "words").exists() else ""
        return done.returncode, [call.split("\n")[:-1] for call in called.split("fastcni\n")[1:]], done.stderr

    return run


@pytest.mark.parametrize(("verb", "own"), [
    ("serve", ["serve"]), ("agent", ["agent", "--kubernetes", "--conflist", ""]),
    ("install", ["install", "--bin-dir", "/opt/cni/bin", "--interpreter", "{}/node/3.11.7-abc/bin/python3.11.7"]),
    ("uninstall", ["uninstall", "--bin-dir", "/opt/cni/bin"])])
@pytest.mark.parametrize("options", [[], ["--policies", "kubernetes"], ["--x", "two words", ""]])
def test_options_reach_the_command(node, tmp_path, verb, own, options):
    """The script dropped all arguments after the first. So `fastcni-node agent --policies kubernetes`, a command of
    docs/policy.md, ran an agent without policies."""
    status, called, errors = node(verb, *options)
    assert (status, errors) == (0, "")
    assert called == [[*(word.format(tmp_path) for word in own), *options, ""]]


@pytest.mark.parametrize("words", [[], ["unknown"], ["configure", "--x"], ["credentials", "x"], ["wait", "10"], [""]])
def test_what_the_script_does_not_know_is_an_error(node, words):
    status, called, errors = node(*words)
    assert (status, called) == (2, [])
    assert errors.startswith(USAGE)
