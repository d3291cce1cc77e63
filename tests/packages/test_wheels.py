"""`make wheels`: the source archive contains all files that a build needs, and a wheel built from it passes the fast
tests."""

import subprocess
import sys
import tarfile
import zipfile

import pytest
from packages.clean_system import ROOT, call


@pytest.fixture(scope="module")
def output():
    """Build the wheel for this Python, and return the build's output. The build runs the fast tests on the wheel."""
    return call("sh", "wheels/build.sh", sys.executable, cwd=ROOT)


def test_the_archive_has_every_file_of_the_repository(output):
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not in a repository")
    (archive,) = (ROOT / "dist").glob("fastcni-*.tar.gz")
    with tarfile.open(archive) as tar:
        inside = {name.partition("/")[2] for name in tar.getnames()}
    assert sorted(set(listed.stdout.split()) - inside) == [".gitignore"]
    assert [name for name in inside if name.endswith((".so", ".elf", ".pyc"))] == []


def test_the_wheel_is_tagged_for_a_glibc_and_passes_the_fast_tests(output):
    (wheel,) = (ROOT / "wheelhouse").glob("*.whl")
    assert "-manylinux_2_" in wheel.name and wheel.name in output
    assert " passed" in output and " failed" not in output
    with zipfile.ZipFile(wheel) as inside:
        metadata = next(name for name in inside.namelist() if name.endswith(".dist-info/METADATA"))
        assert b"License-Expression: Apache-2.0" in inside.read(metadata)
