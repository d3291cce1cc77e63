"""A plugin file before and after a reboot. The test mounts another boot ID, and makes a time namespace that has just
begun."""

import json
import subprocess
import time
import uuid

import pytest
from project.plugin_file import run

from fastcni.launcher.install import install

pytestmark = pytest.mark.needs("root")
BOOT_ID = "/proc/sys/kernel/random/boot_id"
AFTER = 'mount --bind "$1" {boot_id} && shift && exec "$@"'


@pytest.fixture(scope="module")
def plugin(tmp_path_factory):
    directory = tmp_path_factory.mktemp("bin")
    install(directory, names=["host-local"])
    return directory / "host-local"


def in_new_boot(tmp_path):
    """Return the first words of a command line. The rest of the command line runs as if the machine had rebooted."""
    (tmp_path / "boot_id").write_text(f"{uuid.uuid4()}\n")
    began = int(time.clock_gettime(time.CLOCK_BOOTTIME))
    words = ["unshare", "--mount", "--time", "--fork", f"--boottime=-{began}",
             "sh", "-c", AFTER.format(boot_id=BOOT_ID), "sh", str(tmp_path / "boot_id")]
    probe = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if probe.returncode:
        pytest.skip(f"no time namespaces or mounts here: {probe.stderr.strip()}")
    return words


def request(command, pod):
    return {"CNI_COMMAND": command, "CNI_CONTAINERID": pod, "CNI_NETNS": "/nowhere", "CNI_IFNAME": "eth0",
            "CNI_PATH": "/nowhere"}


def test_plugin_releases_addresses_of_the_former_boot(plugin, tmp_path):
    ipam = {"type": "host-local", "subnet": "10.1.2.0/29", "dataDir": str(tmp_path)}
    conf = json.dumps({"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": ipam}).encode()
    for pod in ("p1", "p2", "p3", "p4", "p5"):
        assert run(plugin, stdin=conf, env=request("ADD", pod))[0] == 0
    assert run(plugin, stdin=conf, env=request("ADD", "p6"))[1]["code"] == 11, "the range is full"
    time.sleep(1.1)                     # the simulated boot begins in whole seconds, after the last change
    after = in_new_boot(tmp_path)
    assert run(*after, plugin, stdin=conf, env=request("STATUS", ""))[0] == 0
    status, answer, stderr = run(*after, plugin, stdin=conf, env=request("ADD", "p6"))
    assert (status, len(answer["ips"])) == (0, 1), answer
    assert "released addresses of pods from before the reboot: 10.1.2.2 10.1.2.3 10.1.2.4" in stderr
    assert len([path for path in (tmp_path / "net").iterdir() if path.name.startswith("10.")]) == 1
    assert run(*after, plugin, stdin=conf, env=request("DEL", "p1"))[::2] == (0, "")
