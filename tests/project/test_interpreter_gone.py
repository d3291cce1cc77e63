"""An installed plugin file whose interpreter was removed or replaced, for example by an upgrade of the distribution."""

import os
import sys

import pytest
from project.plugin_file import INTERPRETER, REFUSAL, run, write_executable

from fastcni.launcher import interpreters, pack
from fastcni.launcher.install import install

OTHER_PYTHON = """#!/bin/sh
echo '{"ran": "'$0'"}'
"""
PRINTS_REQUEST = """#!/bin/sh
shift 5
printf '{"name": "%s", "stdin": "%s", "command": "%s"}' "$1" "$(cat)" "$CNI_COMMAND"
"""


@pytest.fixture(scope="module")
def packed():
    """Return a function packed(paths) that returns a plugin file whose launcher has these interpreter paths. The rest
    of the file is packed only once."""
    image = pack.pack(INTERPRETER)
    at = image.find(pack.CONFIG_MAGIC)
    fields = list(pack.CONFIG.unpack_from(image, at))

    def make(*paths):
        fields[1] = pack.as_field(map(str, paths))
        return image[:at] + pack.CONFIG.pack(*fields) + image[at + pack.CONFIG.size:]

    return make


@pytest.fixture
def recorded(tmp_path):
    """Return the path of an interpreter that a test may remove."""
    path = tmp_path / "recorded" / "python"
    path.parent.mkdir()
    path.symlink_to(INTERPRETER)
    return path


@pytest.fixture
def elsewhere(tmp_path):
    path = tmp_path / "elsewhere" / "python"
    path.parent.mkdir()
    path.symlink_to(INTERPRETER)
    return path


def of_another_build(image):
    """Return the file's bytes, changed as if the file had been packed for a Python of another machine or C library."""
    ours, other = repr(interpreters.suffix()).encode(), repr(interpreters.suffix()[:-4] + "!.so").encode()
    assert len(ours) == len(other) and image.count(b"==" + ours) == 2
    return image.replace(b"==" + ours, b"==" + other)


def test_plugin_runs_after_its_interpreter_has_moved(tmp_path, packed, recorded, elsewhere):
    plugin = write_executable(tmp_path / "bridge", packed(recorded, "/nowhere/python", elsewhere))
    assert run(plugin)[1] == REFUSAL
    recorded.rename(recorded.with_name("python.old"))
    status, answer, stderr = run(plugin)
    assert (status, answer, stderr) == (1, REFUSAL, "")


def test_installed_file_has_the_usual_places_of_its_version(tmp_path):
    install(tmp_path, names=["bridge"])
    data = (tmp_path / "bridge").read_bytes()
    field = pack.CONFIG.unpack_from(data, data.find(pack.CONFIG_MAGIC))[1]
    first, *others = [path for path in field.rstrip(b"\0").decode().split("\0")
                      if os.path.basename(path) != interpreters.CORE]
    assert first == INTERPRETER
    assert {f"/usr/bin/python{pack.version()}", f"/usr/local/bin/python{pack.version()}"} <= {first, *others}
    assert sys.executable in (first, *others)


def test_error_without_an_interpreter_names_each_path_and_the_command(tmp_path, packed):
    plugin = write_executable(tmp_path / "bridge", packed("/nowhere/1", "/nowhere/2", '/nowhere/"3"'))
    status, answer, stderr = run(plugin)
    assert (status, answer["code"], stderr) == (1, 999, "")
    assert answer["msg"] == "start the Python interpreter /nowhere/1: No such file or directory (errno 2)"
    assert answer["details"] == (
        f'this file needs Python {pack.version()}, also tried as /nowhere/2, /nowhere/"3"; install that Python again, '
        f"or install fastcni for another one and run `fastcni install --bin-dir {tmp_path}`")


@pytest.mark.parametrize("command, directory", [("bridge", "DIR"), ("./bridge", "."), ("/bridge", "")])
def test_error_names_the_directory_of_the_call(tmp_path, packed, command, directory):
    plugin = write_executable(tmp_path / "bridge", packed("/nowhere/python"))
    details = run(command, executable=plugin)[1]["details"]
    assert details.endswith(f"`fastcni install --bin-dir {directory or '/'}`")


def test_paths_of_any_length_fit_the_error():
    """fastcni packs only as many paths as fit into the launcher's error, where JSON may need two bytes for a
    character."""
    long = [f"/{letter * 333}" for letter in '"ab']
    assert interpreters.as_list(long[0], [*long[1:], "/c", "/" + "d" * 30]) == [*long, "/c"]
    assert interpreters.as_list("/a", ["/b" * 600, "/c"]) == ["/a", "/c"]


def test_error_with_the_longest_paths_is_valid_json(tmp_path, packed):
    directory = tmp_path
    while len(str(directory)) < 1000:
        directory = directory / ('"' * 200)
    directory.mkdir(parents=True)
    plugin = write_executable(directory / "bridge", packed("/" + '"' * 500, "/" + '"' * 519))
    answer = run(plugin)[1]
    assert answer["code"] == 999
    assert answer["details"].endswith('"`')


def test_another_build_is_skipped_for_the_next_path(tmp_path, recorded):
    """As after an upgrade, the Python at the recorded path has another ABI."""
    script = write_executable(tmp_path / "python", OTHER_PYTHON.encode())
    image = of_another_build(pack.pack(str(recorded), alternatives=["/nowhere/python", str(script)]))
    status, answer, stderr = run(write_executable(tmp_path / "bridge", image))
    assert (status, answer, stderr) == (0, {"ran": str(script)}, "")


@pytest.mark.parametrize("way", [(), (INTERPRETER, "-I", "-S")], ids=["launcher", "python"])
def test_another_build_alone_is_refused_before_any_code_runs(tmp_path, way):
    """The request failed with a traceback, when Python could not load the extension modules."""
    image = of_another_build(pack.pack(INTERPRETER, alternatives=["/nowhere/python"]))
    status, answer, stderr = run(*way, write_executable(tmp_path / "bridge", image))
    assert (status, answer["code"], stderr) == (1, 999, "")
    build = interpreters.suffix()[1:-3]
    is_now = f"Python {sys.version.split()[0]} ({build})"
    assert answer["msg"].startswith(f"the Python interpreter {INTERPRETER} is {is_now}, ")
    assert answer["msg"].endswith(f"this file was installed for Python {pack.version()} ({build})")
    assert answer["details"].endswith(f"`fastcni install --bin-dir {tmp_path}`")


def test_request_reaches_the_next_interpreter_unchanged(tmp_path, recorded):
    script = write_executable(tmp_path / "python", PRINTS_REQUEST.encode())
    image = of_another_build(pack.pack(str(recorded), alternatives=[str(script)]))
    answer = run(write_executable(tmp_path / "bridge", image), stdin=b"the stdin", env={"CNI_COMMAND": "ADD"})[1]
    assert answer == {"name": "bridge", "stdin": "the stdin", "command": "ADD"}


def test_an_interpreter_that_this_user_may_not_run_is_an_error(tmp_path):
    path = write_executable(tmp_path / interpreters.CORE, b"#!/bin/sh\n")
    (tmp_path / "python").touch(0o644)
    with pytest.raises(PermissionError):
        interpreters.core_of(str(tmp_path / "python"), str(path.parent))


def test_the_list_has_the_paths_that_fit():
    left = interpreters.LIST_BYTES - len("/a\0/c\0") - 1           # -1: the last byte stays NUL
    long, longer = "/" + "b" * (left - 2), "/" + "b" * (left - 1)
    assert interpreters.as_list("/a", ["/c", longer, "/d"]) == ["/a", "/c", "/d"]
    assert interpreters.as_list("/a", ["/c", long, "/d"]) == ["/a", "/c", long]


def test_other_paths_of_the_same_python_are_absolute_and_named_once(monkeypatch):
    usual = [f"{directory}/python{interpreters.version()}" for directory in interpreters.DIRECTORIES]
    for executable, found in ((None, usual), ("python3", usual), ("/venv/python", ["/venv/python", *usual]),
                              (usual[0], usual)):
        monkeypatch.setattr(sys, "executable", executable)
        assert interpreters.alternatives("/usr/bin/python0") == found
        assert interpreters.alternatives(usual[1]) == [path for path in found if path != usual[1]]
