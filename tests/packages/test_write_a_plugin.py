"""Run the commands of docs/write-a-plugin.md in order, and compare the page's code with the example's code."""

import os
import re
import subprocess
import sys
import sysconfig

import pytest
from project.third_party import EXAMPLE, ROOT

PAGE = (ROOT / "docs" / "write-a-plugin.md").read_text(encoding="utf-8")


def blocks(language):
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def test_the_code_on_the_page_is_the_examples():
    sources = "".join(path.read_text(encoding="utf-8") for path in (
        EXAMPLE / "fastcni_hello.py", EXAMPLE / "tests" / "test_hello.py", EXAMPLE / "pyproject.toml"))
    shown = blocks("python") + blocks("toml")
    assert len(shown) == 3
    assert [block for block in shown if block not in sources] == []


@pytest.mark.needs("root")
def test_the_commands_on_the_page_run(tmp_path, host_netns):
    """The commands run as one script. fastcni and its dependencies are installed, so pip fetches nothing. The script
    gets an empty /run and /var/lib for namespaces, addresses and cached results."""
    script = "set -e\nmount -t tmpfs none /run\nmount -t tmpfs none /var/lib\n" + "".join(blocks("sh"))
    packages = sysconfig.get_path("purelib")
    python = os.path.dirname(os.path.realpath(sys.executable))
    env = {"PATH": f"{python}:{os.environ['PATH']}", "FASTCNI": str(ROOT), "PYTHONPATH": f"{ROOT}:{packages}",
           "PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "HOME": str(tmp_path),
           "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], cwd=tmp_path, env=env, text=True, timeout=300,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert done.returncode == 0, done.stdout[-5000:]
    assert "passed" in done.stdout
