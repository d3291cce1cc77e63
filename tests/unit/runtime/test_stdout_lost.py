"""The command line when stdout cannot be written: a full disk, or a reader that has ended."""

import os
import subprocess
import sys

import pytest

COMMAND = [sys.executable, "-c", "from fastcni.cli import main; main()"]


@pytest.fixture(params=["full disk", "no reader"])
def lost(request):
    """A file descriptor to which no byte can be written."""
    if request.param == "full disk":
        fd = os.open("/dev/full", os.O_WRONLY)
    else:
        reader, fd = os.pipe()
        os.close(reader)
    yield fd
    os.close(fd)


def test_the_error_of_a_command_is_on_stderr_if_its_document_cannot_be_printed(lost, tmp_path):
    """`fastcni add --json >FILE` on a full disk, and `fastcni inspect ID --json | true`, printed a traceback."""
    answer = subprocess.run([*COMMAND, "netconf", "net", "--conf-dir", str(tmp_path), "--json"], stdout=lost,
                            stderr=subprocess.PIPE, text=True, check=False)
    assert (answer.returncode, answer.stderr.splitlines()) == (1, [
        f"Error: no net configurations found in {tmp_path}",
        "Hint: put a .conflist file there, or set another directory with --conf-dir or NETCONFPATH"])


def test_a_document_that_does_not_fit_on_the_disk_is_an_error_without_a_traceback():
    """`fastcni version --json >FILE` on a full disk printed a traceback in place of the reason."""
    with open("/dev/full", "w") as full:
        answer = subprocess.run([*COMMAND, "version", "--json"], stdout=full, stderr=subprocess.PIPE, text=True,
                                check=False)
    assert (answer.returncode, answer.stderr) == (1, "Error: [Errno 28] No space left on device\n")
