"""Make distributions with plugins for fastcni: install the example in an environment, or write a distribution's files
directly."""

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import textwrap
from pathlib import Path

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "plugin-hello"
ENV = {"PATH": os.environ["PATH"], "CNI_CONTAINERID": "c1", "CNI_IFNAME": "eth0", "CNI_PATH": "/nowhere",
       "CNI_NETNS": "/nowhere", "FASTCNI_SOCKET": ""}
# A plugin that changes nothing in the kernel, so that tests run it without root.
PLUGIN = """
def read(req):
    return None

def add(req, conf, undo):
    return {"ips": [{"address": "10.0.0.2/24"}]}

def delete(req, conf):
    pass

check = delete
"""


def call(*command, cwd=None, env=None):
    """Run a program that must succeed. Return its stdout."""
    args = [str(word) for word in command]
    done = subprocess.run(args, cwd=cwd, env=os.environ | (env or {}), capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, f"{args}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def add_distribution(directory, name, plugins, modules):
    """Write an installed distribution into `directory`. plugins: {CNI type: entry point}. modules: {path: source}."""
    info = directory / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    for path, source in modules.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_text(textwrap.dedent(source))
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in modules))
    (info / "entry_points.txt").write_text("[fastcni.plugins]\n" + "".join(
        f"{kind} = {module}\n" for kind, module in plugins.items()))


def make_environment(directory):
    """Make a virtual environment that imports fastcni and its dependencies from this Python's directories. Return the
    path of the environment's Python."""
    call(sys.executable, "-m", "venv", "--without-pip", directory)
    (packages,) = directory.glob("lib/python*/site-packages")
    (packages / "fastcni-of-this-checkout.pth").write_text(f"{ROOT}\n{sysconfig.get_path('purelib')}\n")
    return directory / "bin" / "python"


def install_example(python, directory):
    """Build a copy of the example with the installed setuptools. Install the example in the environment of `python`."""
    shutil.copytree(EXAMPLE, directory, ignore=shutil.ignore_patterns("__pycache__", "build", "*.egg-info", ".*"))
    call(sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-index", "--no-build-isolation",
         "--no-deps", directory)


def request(path, command, conf=None, **env):
    """Make one request to a plugin file. Return (exit status, the document on stdout or None if stdout is empty)."""
    done = subprocess.run([path], input=json.dumps(conf or {}).encode(), capture_output=True, timeout=120,
                          env=ENV | {"CNI_COMMAND": command} | env)
    return done.returncode, json.loads(done.stdout or b"null")
