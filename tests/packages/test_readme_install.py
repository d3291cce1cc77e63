"""README's commands install fastcni on a clean Debian 12, whose Python is externally managed, and remove fastcni again.

SUITES="bookworm trixie" adds Debian 13, whose Python 3.13 is externally managed in the same way as Ubuntu 24.04's.
"""

import json
import os
import re

import pytest
from packages.clean_system import ROOT, CleanSystem, call


def blocks():
    """Return the indented blocks of README's section Install."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    section = text.partition("## Install\n")[2].partition("\n## ")[0]
    return re.findall(r"(?:^    .+\n)+", section, re.M)


@pytest.fixture(params=os.environ.get("SUITES", "bookworm").split())
def system(request, tmp_path):
    """Return a clean system with the checkout in /src."""
    system = CleanSystem(request.param, tmp_path / "system")
    call("sh", ROOT / "tests/copy-tree.sh", system.files / "src")
    return system


def test_the_commands_of_the_readme_install_fastcni_and_remove_it(system):
    install, units, remove = blocks()[:3]
    system.run(f"cd /src\n{install}")
    assert system.run("ls /usr/lib/python3*/EXTERNALLY-MANAGED")
    assert re.fullmatch(r"fastcni \d+\.\d+\.\d+\n", system.run("cd /\nfastcni --version"))
    answer = json.loads(system.run("CNI_COMMAND=VERSION /opt/cni/bin/bridge"))
    assert answer["cniVersion"] == "1.1.0"
    command, _, systemctl = units.partition(" &&\n")
    assert systemctl.strip().startswith("systemctl ")          # systemd does not run in the clean system
    system.run(command)
    assert "ExecStart=/opt/fastcni/bin/python" in system.run("cat /etc/systemd/system/fastcni.service")
    system.run(remove)
    assert system.named("*fastcni*") == [] == system.named("bridge")
