"""`make release`: a second build of the same commit writes the same bytes, although its directory, time and umask
differ."""

import json
import os
import subprocess
import sys

import pytest
from packages.clean_system import ROOT, call

TIME = "1700000000"


def release(directory, umask):
    """Copy the tree into `directory`, build a release there, and return {file name: SHA-256}."""
    call("sh", "tests/copy-tree.sh", directory, cwd=ROOT)
    for path in (directory / "fastcni").rglob("*.py"):
        os.utime(path)
    call("sh", "-c", f"umask {umask}; exec sh packaging/release.sh {sys.executable}", cwd=directory,
         env={**os.environ, "SOURCE_DATE_EPOCH": TIME, "TESTS": "tests/unit/spec/test_version.py"})
    lines = (directory / "dist" / "SHA256SUMS").read_text().splitlines()
    return {name: digest for digest, name in map(str.split, lines)}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    directory = tmp_path_factory.mktemp("first") / "fastcni"
    return directory, release(directory, "022")


def test_two_builds_are_byte_identical(first, tmp_path):
    assert release(tmp_path / "a-longer-name", "077") == first[1]


def test_a_release_has_archive_wheel_packages_and_components(first):
    directory, sums = first
    assert {name.rpartition(".")[2] for name in sums} == {"gz", "whl", "deb", "json"}
    subprocess.run(["sha256sum", "--quiet", "--check", "SHA256SUMS"], cwd=directory / "dist", check=True)
    (listed,) = (directory / "dist").glob("*.cdx.json")
    document = json.loads(listed.read_text())
    names = {component["name"].lower() for component in document["components"]}
    assert document["metadata"]["component"]["name"] == "fastcni"
    assert {"orjson", "click", "jeepney", "urllib3", "pyyaml"} <= names


def test_no_file_of_the_packages_names_the_directory_of_the_build(first):
    """The plugin files of the Debian package contained the path of the build's interpreter, which is below the build
    directory."""
    directory, _ = first
    for deb in (directory / "dist").glob("*.deb"):
        unpacked = directory / "build" / deb.stem
        call("dpkg-deb", "-x", deb, unpacked)
        found = subprocess.run(["grep", "-r", "-l", "-a", "-F", str(directory), unpacked], capture_output=True,
                               text=True, check=False)
        assert found.stdout == ""
