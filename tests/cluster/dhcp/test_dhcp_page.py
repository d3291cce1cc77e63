"""Run the commands of docs/dhcp.md."""

import os
import re
import subprocess
from pathlib import Path

from fastcni.launcher.install import install

PAGE = Path(__file__).parents[3] / "docs" / "dhcp.md"


def test_the_commands_to_try_it_run(tmp_path):
    install(tmp_path, names=["dhcp"])
    (script,) = re.findall(r"^```sh\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    done = subprocess.run(["sh", "-eu"], input=script, capture_output=True, text=True, timeout=60, check=False,
                          env={**os.environ, "BIN": str(tmp_path), "FASTCNI_SOCKET": ""})
    try:
        assert done.returncode == 0, done.stdout + done.stderr
        assert '"address": "10.76.0.' in done.stdout and "lease_released" in done.stderr
        assert not [name for name in os.listdir("/run") if name.startswith("try")]
    finally:
        for name in ("try-pod", "try-server"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
