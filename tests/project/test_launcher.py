"""The launcher of an installed plugin file: the file's format, its two entry points, and the errors if Python cannot
start."""

import ast
import errno
import fcntl
import json
import marshal
import os
import re
import shutil
import struct
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from project.plugin_file import ADD, INTERPRETER, REFUSAL, REFUSED, run, write_executable

from fastcni.kit.call import search
from fastcni.launcher import bootstrap, interpreters, modules, pack
from fastcni.launcher.core import NO_CORE
from fastcni.launcher.install import install_plugins
from fastcni.launcher.strip import stripped
from fastcni.plugins import TABLE
from fastcni.server.metrics.one_shot import REASONS
from fastcni.spec import version

PT_DYNAMIC, PT_INTERP, PT_GNU_STACK = 2, 3, 0x6474E551  # from elf.h


@pytest.fixture(scope="module", params=["python_core", "interpreter"])
def bin_dir(request, tmp_path_factory):
    """Return a plugin directory. The plugins' one-shot requests start python_core.elf, or the interpreter, by the
    parameter."""
    core = interpreters.core_of(INTERPRETER) if request.param == "python_core" else ""
    if request.param == "python_core" and not core:
        pytest.skip("python_core.elf is not there, or of another build")
    directory = tmp_path_factory.mktemp("bin")
    install_plugins(directory, core=core)
    return directory


# ---- the program ----


def program_headers(elf):
    """Return [(type, flags)] of the program headers. Source: elf(5), Elf64_Ehdr and Elf64_Phdr."""
    (offset,), (size, count) = struct.unpack_from("<Q", elf, 32), struct.unpack_from("<HH", elf, 54)
    return [struct.unpack_from("<II", elf, offset + i * size) for i in range(count)]


def test_launcher_is_small_and_needs_no_other_file():
    elf = Path(pack.HERE, "launcher.elf").read_bytes()
    headers = program_headers(elf)
    assert len(elf) < 16 << 10
    assert not {PT_INTERP, PT_DYNAMIC} & {kind for kind, _ in headers}
    assert all(flags & 3 != 3 for kind, flags in headers if kind != PT_GNU_STACK), "a page is writable and executable"


def test_launcher_has_one_config_of_the_expected_size():
    elf = Path(pack.HERE, "launcher.elf").read_bytes()
    assert elf.count(pack.CONFIG_MAGIC) == 1
    assert not elf[elf.find(pack.CONFIG_MAGIC) + 16 :][: pack.CONFIG.size - 16].strip(b"\0")


def test_installed_file_is_at_most_3_mb(bin_dir):
    """The file had 6 MB when each plugin's part contained the modules that all plugins need."""
    assert (bin_dir / "bridge").stat().st_size < 3e6


def test_no_module_of_an_installed_file_imports_one_that_is_not_packed():
    """The installed file contained modules of the agent, and was larger than 3 MB."""
    packed = modules.own({}) | modules.daemon()
    sources = {name: module.source for name, module in packed.items()} | {"boot": Path(bootstrap.__file__).read_bytes()}
    left_out = {"fastcni." + path.removesuffix(".py").replace("/", ".") for path in modules.NOT_PACKED}
    assert all(Path(modules.PACKAGE, path).exists() for path in modules.NOT_PACKED) and left_out.isdisjoint(packed)
    for name, source in sources.items():
        for node in ast.walk(stripped(source, name)):       # stripped() removes imports for type checkers
            if isinstance(node, ast.ImportFrom):
                assert left_out.isdisjoint({node.module, *(f"{node.module}.{item.name}" for item in node.names)}), name


def test_an_installed_file_is_known_by_its_note_and_has_an_elf_header_as_others(bin_dir, tmp_path):
    """fastcni marked its files in the padding of the ELF identification. qemu's entries of binfmt_misc require zeros in
    this padding. Now an ELF note marks the file."""
    data = (bin_dir / "bridge").read_bytes()
    assert data[:4] == b"\x7fELF" and data[9:16] == bytes(7)
    assert search.is_own(str(bin_dir / "bridge"))
    former = write_executable(tmp_path / "former", data[:9] + b"fastcni" + data[16:].replace(search.NOTE, bytes(20)))
    other = write_executable(tmp_path / "other", data.replace(search.NOTE, bytes(20)))
    assert search.is_own(str(former)) and not search.is_own(str(other))


@pytest.mark.skipif(not shutil.which("aarch64-linux-gnu-gcc"), reason="no aarch64-linux-gnu-gcc")
@pytest.mark.skipif(not shutil.which("qemu-aarch64-static"), reason="no qemu-aarch64-static")
def test_launcher_for_aarch64_starts_the_interpreter_or_reports_an_error(tmp_path, monkeypatch):
    setup = Path(__file__).parents[2] / "setup.py"
    if not setup.exists():
        pytest.skip("not in the source tree")
    flags = re.findall(r'"""(-.*?)"""', setup.read_text(), re.DOTALL)
    source, elf = setup.parent / "fastcni/launcher/launcher.c", tmp_path / "launcher.elf"
    args = " ".join(flags).split()
    subprocess.run(["aarch64-linux-gnu-gcc", "-Wall", "-Werror", *args, source, "-o", elf], check=True)
    assert not {PT_INTERP, PT_DYNAMIC} & {kind for kind, _ in program_headers(elf.read_bytes())}

    monkeypatch.setattr(pack, "HERE", str(tmp_path))
    whole = write_executable(tmp_path / "bridge", pack.pack(INTERPRETER))
    status, answer, _ = run("qemu-aarch64-static", whole)
    assert (status, answer) == (1, REFUSAL)
    lost = write_executable(tmp_path / "ptp", pack.pack("/nowhere/python"))
    status, answer, _ = run("qemu-aarch64-static", lost)
    assert (status, answer["code"]) == (1, 999)
    assert "/nowhere/python: No such file or directory (errno 2)" in answer["msg"]


@pytest.mark.skipif(not shutil.which("clang"), reason="no clang")
def test_launcher_builds_with_clang(tmp_path):
    setup = Path(__file__).parents[2] / "setup.py"
    args = " ".join(re.findall(r'"""(-.*?)"""', setup.read_text(), re.DOTALL)).split()
    source = setup.parent / "fastcni/launcher/launcher.c"
    subprocess.run(["clang", "-Wall", *args, source, "-o", tmp_path / "launcher.elf"], check=True)


def test_the_server_knows_each_reason_of_the_launcher():
    text = (Path(__file__).parents[2] / "fastcni/launcher/one_shot_count.h").read_text(encoding="utf-8")
    letters = dict(re.findall(r"(\w+) = '(\w)'", text))
    assert letters.pop("OTHER") == "o"
    assert set(letters.values()) == {letter.decode() for letter in REASONS}


def config(server=(), libraries=(), core=NO_CORE):
    """Return a launcher whose config has these values."""
    empty = b"elf" + pack.CONFIG_MAGIC + bytes(pack.CONFIG.size - len(pack.CONFIG_MAGIC)) + b"zip"
    return pack.configured(empty, ["/core", "/python"], b"text", server, libraries, core, (0.25, 2, 3), b"versions")


@pytest.mark.parametrize("server", [["/a"] * 15, ["/" + "a" * 1021]])
def test_a_command_line_that_the_launcher_can_start_is_in_its_config(server):
    image = config(server)
    _, _, _, _, field, *_ = pack.CONFIG.unpack_from(image, len("elf"))
    assert field.rstrip(b"\0").split(b"\0") == [text.encode() for text in server]
    assert image.startswith(b"elf") and image.endswith(b"zip") and len(image) == pack.CONFIG.size + 6


@pytest.mark.parametrize("server", [["/a"] * 16, ["/a", ""], ["/" + "a" * 1022], ["/" + "a" * 600, "b" * 600]])
def test_a_command_line_that_the_launcher_cannot_start_is_refused(server):
    with pytest.raises(pack.PackError, match=r"cannot start this command line|than the launcher's 1023 bytes"):
        config(server)


def test_the_config_of_a_file_can_be_read_again():
    image = config(core=range(1, len(NO_CORE) + 1))
    assert pack.read_config(image) == ("/python", pack.version(), "/core", tuple(range(1, len(NO_CORE) + 1)))
    assert pack.read_config(config()) == ("/core", pack.version(), "", ())
    assert list(pack.CONFIG.unpack_from(image, len("elf"))[-5:-2]) == [250, 2000, 3000]
    for other in (image[:-4], b"", b"#!/bin/sh\n" * 2000):
        assert pack.read_config(other) == ("", "", "", ())


def test_the_shared_parts_have_the_modules_that_several_plugins_need(bin_dir):
    """A plugin reads the file's shared part, then its own part. A module that is in many own parts makes the file
    larger."""
    def names(part):
        return {entry[0] for entry in marshal.loads(archive.read(f"part/{part}"))}

    with zipfile.ZipFile(bin_dir / "bridge") as archive:
        ipam, links, bridge = names("ipam"), names("links"), names("of-bridge")
    assert {"fastcni.kit.call.ipam", "fastcni.plugins.host_local"} <= ipam
    assert "fastcni.kit.links.find" in links and "fastcni.kit.call.ipam" not in links
    assert "fastcni.plugins.bridge" in bridge and not bridge & ipam


# ---- the two entry points ----


@pytest.mark.parametrize("name", sorted(TABLE))
def test_every_name_runs_its_plugin(bin_dir, name):
    assert run(bin_dir / name) == (1, REFUSAL, "")
    _, _, about = run(bin_dir / name, env={"CNI_COMMAND": ""})
    assert f"CNI {name} plugin" in about


def test_file_is_a_valid_zip_and_runs_as_a_zipapp(bin_dir):
    with zipfile.ZipFile(bin_dir / "ptp") as archive:
        assert archive.testzip() is None
    status, answer, stderr = run(INTERPRETER, "-I", "-S", bin_dir / "ptp")
    assert (status, answer, stderr) == (1, REFUSAL, "")


@pytest.mark.parametrize("name", sorted(TABLE))
def test_the_launcher_gives_the_answer_of_python_to_version(bin_dir, name):
    """A one-shot VERSION that Python answered took 7.1 ms; the Go plugin needs 2.7 ms."""
    by_launcher = subprocess.run([bin_dir / name], env={"CNI_COMMAND": "VERSION"}, stdin=subprocess.DEVNULL,
                                 capture_output=True, check=True)
    by_python = subprocess.run([INTERPRETER, "-I", "-S", bin_dir / name], env={"CNI_COMMAND": "VERSION"},
                               stdin=subprocess.DEVNULL, capture_output=True, check=True)
    assert (by_launcher.stdout, by_launcher.stderr) == (by_python.stdout, by_python.stderr)


def test_version_starts_no_python(bin_dir, tmp_path):
    whole = write_executable(tmp_path / "bridge", pack.pack("/nowhere/python"))
    status, answer, stderr = run(whole, env={"CNI_COMMAND": "VERSION"})
    assert (status, answer["supportedVersions"], stderr) == (0, list(version.ALL), "")
    assert run(whole)[1]["code"] == 999


def test_a_plugin_that_has_no_room_in_the_launcher_is_answered_by_python():
    answers = {f"{number:0500}".encode(): ["a", "b"] for number in range(3)}
    assert pack.as_versions(answers).count(b"\0a\0b\0\0") == 2


def test_launcher_and_zipapp_give_the_same_answer_to_a_bad_request(bin_dir):
    by_launcher = run(bin_dir / "bridge", stdin=b"{", env=ADD)
    by_python = run(INTERPRETER, "-I", "-S", bin_dir / "bridge", stdin=b"{", env=ADD)
    assert by_launcher == by_python
    assert (by_launcher[0], by_launcher[1]["code"]) == (1, 6)


def test_unknown_name_is_named_in_the_error(bin_dir, tmp_path):
    shutil.copy(bin_dir / "bridge", tmp_path / "foo")
    status, answer, _ = run(tmp_path / "foo")
    assert status == 1
    assert "foo" in answer["msg"]


def test_the_plugins_name_is_that_of_the_call(bin_dir):
    _, _, about = run("loopback", executable=bin_dir / "bridge", env={"CNI_COMMAND": ""})
    assert "CNI loopback plugin" in about


def test_python_variables_of_the_caller_change_nothing(bin_dir, tmp_path):
    (tmp_path / "gc.py").write_text("raise SystemExit('the wrong gc')")
    (tmp_path / "encodings.py").write_text("raise SystemExit('the wrong encodings')")
    env = {"PYTHONPATH": tmp_path, "PYTHONHOME": "/nowhere", "PYTHONVERBOSE": "1", "PYTHONSAFEPATH": "", "LC_ALL": "C"}
    assert run(bin_dir / "bridge", env=env, cwd=tmp_path) == (1, REFUSAL, "")


def test_extensions_and_code_come_from_the_file_alone(bin_dir):
    """The test starts Python with the code that the launcher passes, and with -X importtime, which lists the imports on
    stderr."""
    with open(bin_dir / "bridge", "rb") as plugin:
        data = plugin.read()
        _, _, version, text, *_ = pack.CONFIG.unpack_from(data, data.find(pack.CONFIG_MAGIC))
        args = [INTERPRETER, "-ISB", "-X", "utf8", "-X", "importtime", "-c", text.strip(b"\0").decode(), "bridge"]
        status, answer, stderr = run(*args, plugin.fileno(), pass_fds=[plugin.fileno()])
    assert (status, answer, pack.read_config(data)[0]) == (1, REFUSAL, INTERPRETER)
    assert version.strip(b"\0").decode() == pack.version()
    imported = {line.rsplit("|", 1)[1].strip() for line in stderr.splitlines() if "|" in line}
    # No module of fastcni comes from the disk
    assert "_json" in imported and not {name for name in imported if name.startswith("fastcni")}
    assert not imported & set("orjson json re dataclasses typing ipaddress socket subprocess logging pathlib enum "
                              "contextlib functools collections site".split())


FIREWALLD = {"cniVersion": "1.1.0", "name": "net", "type": "firewall", "backend": "firewalld"}


def firewalld_status(plugin, tmp_path):
    """Return the answer of STATUS on a node without a D-Bus message bus."""
    env = {"CNI_COMMAND": "STATUS", "CNI_PATH": "/nowhere", "DBUS_SYSTEM_BUS_ADDRESS": f"unix:path={tmp_path}/nothing"}
    return run(plugin, stdin=json.dumps(FIREWALLD).encode(), env=env)[1]


def test_file_has_the_library_for_d_bus_with_its_licence(bin_dir, tmp_path):
    assert firewalld_status(bin_dir / "firewall", tmp_path)["code"] == 50
    with zipfile.ZipFile(bin_dir / "firewall") as file:
        assert b"Permission is hereby granted" in file.read("jeepney-LICENSE")


def test_file_made_without_that_library_lacks_nothing_else(tmp_path, monkeypatch):
    monkeypatch.setattr(modules, "LIBRARY", "not_installed")
    install_plugins(tmp_path, names=["firewall"])
    error = firewalld_status(tmp_path / "firewall", tmp_path)
    assert (error["code"], error["msg"]) == (999, "cannot call firewalld: no module jeepney")
    assert "pip install jeepney" in error["details"]


def test_a_plugin_file_writes_no_file(bin_dir, tmp_path):
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in bin_dir.iterdir()}
    for command in ([bin_dir / "bridge"], [INTERPRETER, "-I", "-S", bin_dir / "bridge"]):
        assert run(*command, cwd=tmp_path, env={"HOME": tmp_path, "TMPDIR": tmp_path})[1] == REFUSAL
    assert not list(tmp_path.iterdir())
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in bin_dir.iterdir()} == before


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: mounts everything read-only in a namespace of its own")
def test_a_plugin_file_runs_on_a_read_only_file_system(bin_dir):
    script = f"mount -o remount,bind,ro / && exec {bin_dir}/bridge"
    probe = subprocess.run(["unshare", "-m", "mount", "-o", "remount,bind,ro", "/"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip(f"no mounts here: {probe.stderr.decode().strip()}")
    assert run("unshare", "-m", "sh", "-c", script)[1] == REFUSAL


# ---- the streams ----


def test_stdin_is_read_up_to_a_limit(bin_dir):
    with open("/dev/zero", "rb") as endless:
        status, answer, _ = run(bin_dir / "bridge", env=ADD, stdin=endless)
    assert (status, answer["code"]) == (1, 6)


@pytest.mark.parametrize("closed", [(0,), (0, 1), (0, 2), (0, 1, 2)])
def test_closed_streams_are_not_taken_for_something_else(bin_dir, closed):
    """If a stream is closed, a file that the launcher opens must not get the stream's descriptor number."""
    script = f"exec {' '.join(f'{fd}>&-' for fd in closed)}; exec {bin_dir}/bridge"
    status, answer, _ = run("sh", "-c", script, env=ADD)
    assert status == 1
    if 1 not in closed:
        assert "unexpected end of JSON input" in answer["msg"]


def test_answer_that_cannot_be_written_is_a_failure(bin_dir):
    with open("/dev/full", "wb") as full:
        asked = {"args": [bin_dir / "bridge"], "stdin": subprocess.DEVNULL, "stdout": full, "stderr": subprocess.PIPE}
        assert subprocess.run(**asked, env={"CNI_COMMAND": "VERSION"}, check=False).returncode == 1
        done = subprocess.run(**asked, env=REFUSED, check=False)
    assert done.returncode == 1
    assert b"No space left" in done.stderr


STDOUT_THAT_FAILS = {"full": ">/dev/full", "closed": ">&-", "read-only": "1</dev/null", "nobody reads": "| true"}


@pytest.mark.parametrize("how", STDOUT_THAT_FAILS)
def test_an_add_whose_result_cannot_be_written_is_rolled_back(bin_dir, tmp_path, how):
    """The caller gets no result, so for the caller the ADD has failed. The address was never released."""
    ipam = {"type": "host-local", "subnet": "10.1.2.0/24", "dataDir": str(tmp_path)}
    conf = json.dumps({"cniVersion": "1.0.0", "name": "n", "type": "bridge", "ipam": ipam})
    script = f"{{ sleep 0.3; echo '{conf}'; }} | {{ {bin_dir}/host-local; echo $? >&2; }} {STDOUT_THAT_FAILS[how]}"
    _, _, stderr = run("sh", "-c", script, env=ADD)
    first, *_, last = stderr.splitlines()
    assert last == "1", stderr
    assert first.startswith("host-local: cannot write this answer to stdout: "), stderr
    assert '"code": 999' in stderr and '"msg": "stdout: ' in stderr
    assert not [path.name for path in (tmp_path / "n").iterdir() if path.name.startswith("10.")]


def test_a_directory_as_stdin_is_an_error_in_json(bin_dir):
    """Python ended before it ran a line of fastcni, and printed nothing on stdout."""
    directory = os.open("/tmp", os.O_RDONLY)
    try:
        done = subprocess.run([bin_dir / "bridge"], env=ADD, stdin=directory, capture_output=True, check=False)
    finally:
        os.close(directory)
    error = json.loads(done.stdout)
    assert (done.returncode, error["code"]) == (1, 5)
    assert error["msg"] == "error reading from stdin: Is a directory (errno 21)"


def test_a_process_that_sends_outlives_us_and_holds_none_of_the_callers_streams():
    """communicate() of the caller returns while the sending process still waits for the full pipe. Later that process
    sends all data."""
    here, there = os.pipe()
    with open(here, "rb") as reader, open(there, "wb", buffering=0) as writer:
        full = writer.write(bytes(fcntl.fcntl(there, fcntl.F_GETPIPE_SZ)))      # full: the sender has to wait
        code = ("import posix; from fastcni import _processes; text = bytes(range(256)) * 20; "
                f"_processes.send_apart({there}, text); del text; posix._exit(0)")
        assert run(sys.executable, "-c", code, pass_fds=[there]) == (0, None, "")
        writer.close()
        assert reader.read()[full:] == bytes(range(256)) * 20


# ---- errors at the start ----


def test_interpreter_that_is_gone_is_named(tmp_path):
    plugin = write_executable(tmp_path / "bridge", pack.pack('/nowhere/py"thon'))
    status, answer, stderr = run(plugin)
    assert (status, answer["code"], stderr) == (1, 999, "")
    assert '/nowhere/py"thon: No such file or directory (errno 2)' in answer["msg"]
    assert "fastcni install --bin-dir" in answer["details"]
    assert f"Python {pack.version()};" in answer["details"]


def test_interpreter_that_may_not_be_run_is_named(tmp_path):
    (tmp_path / "python").write_text("")
    plugin = write_executable(tmp_path / "bridge", pack.pack(str(tmp_path / "python")))
    assert "Permission denied (errno 13)" in run(plugin)[1]["msg"]


def of_another_version(image):
    """Return the file's bytes with the magic number of another Python version's bytecode."""
    magic = repr(pack._frozen_importlib_external.MAGIC_NUMBER).encode()
    other = magic[:-8] + (b"1" if magic[-8:-7] != b"1" else b"2") + magic[-7:]
    assert image.count(magic) == 2
    return image.replace(magic, other)


@pytest.mark.parametrize("way", [(), (INTERPRETER, "-I", "-S")])
def test_interpreter_of_another_version_is_refused_with_a_message(tmp_path, way):
    plugin = write_executable(tmp_path / "bridge", of_another_version(pack.pack(INTERPRETER)))
    status, answer, stderr = run(*way, plugin)
    assert (status, answer["code"], stderr) == (1, 999, "")
    assert f"{INTERPRETER} is Python {sys.version_info[0]}.{sys.version_info[1]}" in answer["msg"]
    assert f"installed for Python {pack.version()}" in answer["msg"]
    assert "fastcni install --bin-dir" in answer["details"]


@pytest.mark.parametrize("number, code", [(errno.EIO, 5), (errno.ESTALE, 5), (errno.EMFILE, 11), (errno.ENOMEM, 11)])
@pytest.mark.parametrize("way", [pack.BY_LAUNCHER, pack.BY_PYTHON], ids=["launcher", "python"])
def test_plugin_file_that_cannot_be_read_is_one_json_document(number, code, way):
    """If Python could not read the file's index, it printed a traceback, and nothing on stdout."""
    fails = ("import posix\ndef pread(*_):\n"
             f"    raise OSError({number}, posix.strerror({number}), '/\"quoted\"')\nposix.pread = pread\n")
    text = pack.bootstrap_text({"boot": (1, 1), "refuse": (1, 1)}, way).decode()
    file = os.devnull if way is pack.BY_PYTHON else "0"
    args = ["bridge", "0"] if way is pack.BY_LAUNCHER else []
    status, answer, stderr = run(INTERPRETER, "-ISB", "-c", fails + text.replace("sys.argv[0]", repr(file)), *args)
    assert (status, answer["code"], stderr) == (1, code, "")
    assert answer["msg"] == f"read the plugin file: {os.strerror(number)} (errno {number})"
    assert "fastcni install" in answer["details"]


def test_plugin_file_that_was_cut_is_one_json_document(tmp_path):
    whole = pack.pack(INTERPRETER)
    with zipfile.ZipFile(write_executable(tmp_path / "whole", whole)) as archive:
        boot = archive.getinfo("boot").header_offset
    status, answer, stderr = run(write_executable(tmp_path / "bridge", whole[:boot]))
    assert (status, answer["code"], stderr) == (1, 5, "")
    assert answer["msg"] == "read the plugin file: EOFError"


def test_fault_of_fastcni_is_one_json_document():
    try:
        raise ValueError('a "quoted"\n\x01 ü \udc80 text')
    except ValueError as error:
        document = bootstrap.error_document("bridge", 999, str(error), bootstrap.place(error))
    answer = json.loads(document)
    assert answer["msg"] == 'a "quoted"\n\x01 ü ? text'
    assert answer["details"].startswith(__file__)


# ---- the installer ----
