"""The shell completes commands, and the names of networks, containers and plugins."""

import os
import subprocess
import sys

import pytest
from lab.forked import run_command

CASES = [
    ("fastcni do", "doctor"), ("fastcni add n", "net1"), ("fastcni selftest ", "net1"),
    ("fastcni list --network ", "net1"),
    ("fastcni inspect 8e", "8e4f2a"), ("fastcni explain 8e", "8e4f2a"), ("fastcni trace --past 8e", "8e4f2a"),
    ("fastcni pod down 8e", "8e4f2a"), ("fastcni pod up c1 /x --network n", "net1"), ("fastcni plugins bri", "bridge"),
    ("fastcni version fla", "flannel"), ("fastcni install --plugin por", "portmap"),
    ("fastcni add net1 /x --container-id 8", "8e4f2a"),
    ("fastcni why 8e", "8e4f2a"), ("fastcni why sh", "shop/web"), ("fastcni why 8e4f2a shop", "shop/web"),
    ("fastcni inspect sh", "shop/web"), ("fastcni explain sh", "shop/web"), ("fastcni flows --pod sh", "shop/web"),
    ("fastcni policy test sh", "shop/web"), ("fastcni policy test 8e", ""), ("fastcni schema portm", "portmap"),
    ("fastcni add q", ""), ("fastcni inspect q", "")]

# Replace the default directory of the cache in each module that has imported its name, and complete.
CODE = """
import sys
import fastcni.runtime.cache as cache
default, directory = cache.DEFAULT_DIR, sys.argv.pop()
for module in [*sys.modules.values()]:
    if getattr(module, "DEFAULT_DIR", "") == default:
        module.DEFAULT_DIR = directory
from fastcni.cli import main
main()
"""


def started(words, code, env):
    """Run the command by another Python, as the shell does. The signature is that of run_command()."""
    return subprocess.run([sys.executable, "-c", code, *words], env={**os.environ, **env}, capture_output=True,
                          text=True, timeout=60)


def completed(line, directories, conf_dir="", run=run_command):
    env = {"_FASTCNI_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" ")),
           "NETCONFPATH": conf_dir or str(directories.conf)}
    done = run([str(directories.cache)], code=CODE, env=env)
    assert done.stderr == ""
    return " ".join(text.partition(",")[2] for text in done.stdout.splitlines())


@pytest.mark.parametrize("line, found", CASES)
def test_a_name_is_completed(directories, line, found):
    directories.configure()
    directories.cached("8e4f2a", cniArgs=[["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "web"]])
    assert completed(line, directories) == found


def test_what_cannot_be_read_completes_to_nothing(directories):
    (directories.conf / "10-broken.conflist").write_text("{")
    assert completed("fastcni add ", directories, run=started) == ""
    assert completed("fastcni add ", directories, str(directories.conf / "10-broken.conflist")) == ""
