"""python_core.elf is damaged, or is not the installed file. Each request still gets an answer."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from project.plugin_file import ADD, INTERPRETER, PATH, REFUSAL, run, write_executable
from unit.launcher.test_python_core import CONF, CORE, needs_core, strace

from fastcni.launcher import core, pack

pytestmark = needs_core

PAGE = 4096


@pytest.fixture(scope="module")
def packed(tmp_path_factory):
    """Return (a directory, its plugin file, its python_core.elf)."""
    directory = tmp_path_factory.mktemp("damaged")
    copy = Path(shutil.copy2(CORE, directory))
    return directory, write_executable(directory / "host-local", pack.pack(INTERPRETER, core=str(copy))), copy


@pytest.fixture
def plugin(packed):
    """Yield the plugin file. After the test, restore its python_core.elf."""
    _, file, copy = packed
    yield file
    replace(copy, Path(CORE).read_bytes(), like=CORE)


def replace(path, data, like=None):
    """Write an executable file. like: a file whose times the new file gets, so that stat(2) shows no change."""
    path.unlink()
    write_executable(path, data)
    if like:
        shutil.copystat(like, path)


def damaged(data, at, size=PAGE):
    return data[:at] + bytes(byte ^ 0x5A for byte in data[at:at + size]) + data[at + size:]


def asked(plugin, log):
    """Run the plugin. Return (status, answer, the programs that the launcher executed)."""
    status, answer, _ = run(*strace("-e", "execve", "-e", "signal=none", "-o", log), plugin)
    calls = [line for line in log.read_text().splitlines() if "execve(" in line and line.endswith("= 0")]
    return status, answer, [line.split('"')[1] for line in calls[1:]]


def entry(data):
    """Return the offset of an ELF file's first instruction."""
    return core.Elf(data).offset(core.Elf(data).entry)


def main(data):
    """Return the offset of main()."""
    return core.Elf(data).offset(main_symbol()[0])


def main_symbol():
    """Return the address and the size in bytes of main()."""
    lines = subprocess.check_output(["nm", "--dynamic", "--defined-only", "--print-size", CORE], text=True).splitlines()
    address, size, _, _ = next(fields for fields in map(str.split, lines) if fields[-1] == "main")
    return int(address, 16), int(size, 16)


def sections_of(path):
    """Return {name: (offset, bytes)} of the sections of a program."""
    lines = subprocess.check_output(["readelf", "--wide", "--section-headers", path], text=True).splitlines()
    fields = [line.partition("]")[2].split() for line in lines if line.partition("]")[2].strip()]
    return {name: (int(offset, 16), int(size, 16)) for name, _, _, offset, size, *_ in fields if name.startswith(".")}


DAMAGE = {
    "an empty file": lambda data: b"",
    "cut to a page": lambda data: data[:PAGE],
    "cut to three quarters": lambda data: data[:len(data) * 3 // 4],
    "the second page": lambda data: damaged(data, PAGE),
    "the first instructions": lambda data: damaged(data, entry(data), 16),
    "main()": lambda data: damaged(data, main(data), 16),
    "the middle": lambda data: damaged(data, len(data) // 2),
    "another program": lambda data: Path("/bin/true").read_bytes(),
    "a script": lambda data: b"#!/bin/sh\nexit 0\n",
    "longer": lambda data: data + b"x",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_file_that_is_not_the_installed_one_is_not_started(packed, plugin, tmp_path, how):
    """Once, each of these files ended the request without an answer, by signal 11 or with status 0."""
    copy = packed[2]
    assert asked(plugin, tmp_path / "log") == (1, REFUSAL, [str(copy)])
    assert core.is_installed(str(copy), pack.read_config(plugin.read_bytes())[3])
    replace(copy, DAMAGE[how](Path(CORE).read_bytes()))
    status, answer, started = asked(plugin, tmp_path / "log")
    assert (status, answer) == (1, REFUSAL)
    assert str(copy) not in started and started[-1] == INTERPRETER
    assert not core.is_installed(str(copy), pack.read_config(plugin.read_bytes())[3])


@pytest.mark.parametrize("how", ["the second page", "the first instructions", "main()"])
def test_damage_that_stat_does_not_show_is_seen_where_the_dynamic_linker_reads(packed, plugin, tmp_path, how):
    """Damage by a bad disk does not change the file's mtime. The dynamic linker uses these bytes before python_core.elf
    can handle signals."""
    copy = packed[2]
    replace(copy, DAMAGE[how](Path(CORE).read_bytes()), like=CORE)
    status, answer, started = asked(plugin, tmp_path / "log")
    assert (status, answer) == (1, REFUSAL)
    assert str(copy) not in started


def test_a_file_of_the_same_bytes_and_another_time_is_not_started(packed, plugin, tmp_path):
    copy = packed[2]
    os.utime(copy, ns=(0, copy.stat().st_mtime_ns + 1))
    assert asked(plugin, tmp_path / "log")[2][-1:] == [INTERPRETER]


def test_the_core_of_a_package_is_known_by_its_bytes(packed, tmp_path):
    """The package's build makes the plugin file. Later, dpkg gives python_core.elf another mtime."""
    copy = Path(shutil.copy(CORE, tmp_path))
    plugin = write_executable(tmp_path / "bridge", pack.pack(INTERPRETER, core=CORE, core_path=str(copy)))
    assert asked(plugin, tmp_path / "log")[2] == [str(copy)]
    assert core.is_installed(str(copy), pack.read_config(plugin.read_bytes())[3])


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT,
                                    signal.SIGTRAP, signal.SIGSYS])
@pytest.mark.parametrize("taken_over", [False, True])
def test_a_crash_ends_in_the_interpreter_or_in_an_error_document(tmp_path, number, taken_over):
    """The interpreter repeats a request that has not begun. Until a request begins, the plugin file's descriptor stays
    open for the interpreter. taken_over: whether the request has begun."""
    status = os.stat(INTERPRETER)
    text = (f"#!{INTERPRETER} {status.st_size} {int(status.st_mtime)}\nimport posix, sys\n"
            f"if hasattr(sys, 'leaves'): posix.kill(posix.getpid(), {number.value})\n"
            "else: posix.write(1, b'{\"by\": \"%s\"}' % sys.argv[1].encode()); posix._exit(0)\n")
    with open(INTERPRETER, "rb") as file:
        os.set_inheritable(file.fileno(), not taken_over)
        done = subprocess.run([CORE, "-ISB", "-X", "utf8", "-c", text, "bridge", str(file.fileno())], check=False,
                              capture_output=True, timeout=60, pass_fds=[] if taken_over else [file.fileno()])
    answer = json.loads(done.stdout)
    if taken_over:
        assert (done.returncode, answer["code"]) == (1, 999)
        assert answer["msg"] == f"{CORE} was ended by signal {number.value:02}"
        assert "fastcni install" in answer["details"]
    else:
        assert (done.returncode, answer) == (0, {"by": "bridge"})


def test_no_page_of_it_can_take_the_answer(packed, plugin, tmp_path):
    """The test damages each fifteenth page without a change that stat(2) shows. Of all 1,223 pages, three prevented the
    answer."""
    copy, data = packed[2], Path(CORE).read_bytes()
    ipam = {"type": "host-local", "subnet": "10.9.0.0/24", "dataDir": str(tmp_path / "data")}
    without_answer, by_interpreter = {}, 0
    for at in range(0, len(data), 15 * PAGE):
        replace(copy, damaged(data, at), like=CORE)
        env = {"PATH": PATH} | ADD | {"CNI_CONTAINERID": f"page{at}"}
        done = subprocess.run([plugin], input=json.dumps(CONF | {"ipam": ipam}).encode(), env=env, timeout=60,
                              capture_output=True, check=False)
        if done.returncode != ("code" in json.loads(done.stdout or "[]")):
            without_answer[at] = done.returncode
        by_interpreter += b"was ended by" in done.stderr and not done.returncode
    assert len(without_answer) < 3, without_answer
    assert by_interpreter > 10


def changed(image, **fields):
    """Return the plugin file with changed fields in the launcher's configuration."""
    at = image.find(pack.CONFIG_MAGIC)
    names = "magic pythons version bootstrap server libraries".split()
    config = list(pack.CONFIG.unpack_from(image, at))
    for name, texts in fields.items():
        config[names.index(name)] = pack.as_field(map(str, texts))
    return image[:at] + pack.CONFIG.pack(*config) + image[at + pack.CONFIG.size:]


def test_a_plugin_file_knows_the_libraries_of_its_interpreter():
    assert {"libc.so.6"} <= {os.path.basename(path) for path in core.libraries_of(INTERPRETER)}


def test_the_libraries_that_fit_the_launchers_field_are_known(monkeypatch):
    every = core.libraries_of(INTERPRETER)
    needed = sum(len(os.fsencode(path)) + 1 for path in every)
    for room, found in ((needed + 1, every), (needed, every[:-1]), (1, [])):
        monkeypatch.setattr(core, "LIBRARIES_BYTES", room)
        assert core.libraries_of(INTERPRETER) == found


@pytest.mark.parametrize("text", ["exit 1", "echo relative; echo /nowhere/libno.so.6"])
def test_no_library_is_known_of_a_program_that_is_no_interpreter(tmp_path, text):
    assert core.libraries_of(str(tmp_path / "missing")) == []
    assert core.libraries_of(str(write_executable(tmp_path / "python", f"#!/bin/sh\n{text}\n".encode()))) == []


def test_each_changed_bit_of_the_described_parts_changes_the_digest():
    image, parts = bytes(range(64)), [(0, 16), (32, 24)]
    assert core.digest(bytes(8) + image, [(8 + at, size) for at, size in parts]) == core.digest(image, parts)
    for at in range(64):
        other = image[:at] + bytes([image[at] ^ 0x80]) + image[at + 1:]
        assert (core.digest(other, parts) == core.digest(image, parts)) == (16 <= at < 32 or at >= 56)


def test_the_described_parts_are_those_before_main():
    """The parts are the dynamic linker's tables and .plt, the code up to the end of main(), and the first page of each
    later segment. No part is code of Python: with all code up to the first instruction, Debian's Python had 2.4 MB of
    it, which took 0.3 ms of each request."""
    image = Path(CORE).read_bytes()
    found = core.Elf(image)
    (zero, head), (begin, size), *rest = found.before_main()
    at, length = sections_of(CORE)[".plt"]
    assert zero == 0 and at + length <= head <= at + 5 * PAGE
    assert begin <= entry(image) < main(image) and main(image) + main_symbol()[1] <= begin + size == begin + 2 * PAGE
    later = [at for kind, _, at, _, _ in found.segments if kind in (core.PT_LOAD, core.PT_DYNAMIC) and at > begin]
    assert rest == [(at - at % 8, PAGE) for at in sorted(later)]
    assert 1 <= len(rest) <= core.MAX_PARTS - 2


def test_without_a_library_the_error_names_the_library(tmp_path):
    """Once, without libm, the dynamic linker ended both the interpreter and python_core.elf with status 127."""
    python = write_executable(tmp_path / "python", b"#!/bin/sh\necho no library; exit 127\n")
    image = changed(pack.pack(INTERPRETER), pythons=[python, "/nowhere/python"], libraries=["/lib/libno.so.6"])
    status, answer, stderr = run(write_executable(tmp_path / "bridge", image))
    assert (status, answer["code"], stderr) == (1, 999, "")
    assert answer["msg"] == f"start the Python interpreter {python}"
    assert answer["details"].startswith("the library /lib/libno.so.6 does not exist; this file needs Python ")
    assert "also tried as /nowhere/python; install" in answer["details"]


def test_a_library_that_has_moved_does_not_stop_a_request(packed, tmp_path):
    """After an upgrade, a library may have another path. The launcher runs the interpreter with `--version` to find out
    whether it starts."""
    _, plugin, copy = packed
    image = changed(plugin.read_bytes(), libraries=["/lib/libno.so.6"])
    plugin = write_executable(tmp_path / "bridge", image)
    assert asked(plugin, tmp_path / "log") == (1, REFUSAL, [str(copy), str(copy)])


def test_a_damaged_interpreter_behind_a_damaged_core_is_an_error(packed, plugin, tmp_path):
    _, _, copy = packed
    replace(copy, b"#!/bin/sh\n")
    python = write_executable(tmp_path / "python", b"#!/bin/sh\nkill -SEGV $$\n")
    image = changed(plugin.read_bytes(), pythons=[copy, python])
    status, answer, stderr = run(write_executable(tmp_path / "bridge", image))
    assert (status, answer["code"], stderr) == (1, 999, "")
    assert answer["msg"] == f"start the Python interpreter {python}"
    assert answer["details"].startswith("`--version` fails; ") and f"also tried as {copy}; " in answer["details"]


def test_a_caller_that_ignores_its_children_has_an_answer(packed, plugin):
    """If the caller ignores SIGCHLD, the kernel reaps the launcher's child before wait(2). So the child must send no
    signal."""
    replace(packed[2], b"#!/bin/sh\n")
    ignoring = ["sh", "-c", f"trap '' CHLD; exec {plugin}"]
    assert run(*ignoring)[1] == REFUSAL
