"""python_core.elf runs a one-shot request after the core phase of Python's start. The main phase runs only if the
request needs it."""

import json
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest
from project.plugin_file import ADD, INTERPRETER, REFUSAL, run, write_executable

from fastcni.launcher import interpreters, modules, pack
from fastcni.launcher.install import install

CORE = interpreters.core_of(INTERPRETER)
LIBRARY = Path(*sysconfig.get_config_vars("LIBPL", "LIBRARY"))
SETUP = Path(__file__).parents[3] / "setup.py"
CONF = {"cniVersion": "1.0.0", "name": "net", "type": "host-local"}
# Prepare imports as bootstrap.main() does
PREPARE = """
import marshal, posix, sys
fd = posix.open({file!r}, posix.O_RDONLY)
code, (index, late, extensions, common, parts) = marshal.loads(posix.pread(fd, {size}, {offset}))
exec(code)
sys.meta_path.insert(2, Finder(fd, index, late, extensions))
sys.stdout = sys.stderr
"""
# Print the state of the process that a module may see. The test compares both interpreters.
STATE = """
import builtins, codecs, io, json, locale, os, signal, threading, time
keep = "argv base_prefix exec_prefix executable flags path prefix platlibdir pycache_prefix warnoptions".split()
state = {name: repr(getattr(sys, name)) for name in keep}
state |= {f"std{name}": repr((stream.encoding, stream.errors, stream.line_buffering)) for name, stream in
          (("in", sys.stdin), ("out", sys.stdout), ("err", sys.stderr))}
state |= {"codecs": [codecs.lookup(name).name for name in ("utf-8", "latin-1", "idna", sys.getfilesystemencoding())],
          "signals": {str(number): repr(signal.getsignal(number)) for number in signal.valid_signals()},
          "locale": locale.getpreferredencoding(False), "open": repr(open), "thread": threading.current_thread().name,
          "finders": [getattr(it, "__name__", "") for it in sys.meta_path], "hooks": len(sys.path_hooks),
          "zone": time.tzname, "path": builtins.__import__("encodings").__path__,
          "interned": [sys.intern("fspath") is name for name in os.path.join.__code__.co_names],
          "modules": sorted(name for name in sys.modules if "python_core" not in name)}
posix.write(1, json.dumps(state).encode())
"""


def strace(*options):
    if not shutil.which("strace"):
        pytest.skip("no strace")
    return ["strace", "-f", "-qq", *options]


def started(text, *, argv0=INTERPRETER, **more):
    """Run Python code as the launcher does, in python_core.elf or in an interpreter."""
    status = os.stat(INTERPRETER)
    text = f"#!{INTERPRETER} {status.st_size} {int(status.st_mtime)}\n{text}"
    command = [argv0, "-ISB", "-X", "utf8", "-c", text, "bridge", "3"]
    return subprocess.run(command, capture_output=True, timeout=600, check=False, **more)  # an emulated machine is slow


needs_core = pytest.mark.skipif(not CORE, reason="python_core.elf is not there, or of another build")


@pytest.mark.skipif(not SETUP.exists(), reason="not in the source tree")
@pytest.mark.skipif(LIBRARY.suffix != ".a" or not LIBRARY.exists(), reason=f"no static library {LIBRARY}")
@pytest.mark.skipif(sys.version_info[:2] > (3, 12), reason="setup.py has no such Python")
def test_it_is_built_where_the_interpreter_has_a_static_library():
    assert CORE


@needs_core
def test_it_has_all_leaves():
    text = f"import posix, _imp; posix._exit(not all(_imp.is_builtin('fastcni.' + it) for it in {modules.LEAVES}))"
    assert started(text, argv0=CORE).returncode == 0


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    directory = tmp_path_factory.mktemp("core")
    install(directory)
    return directory


@needs_core
@pytest.mark.parametrize("name, env, conf", [
    ("bridge", {}, {}), ("bridge", ADD, CONF | {"type": "bridge", "ipam": {"type": "host-local"}}),
    ("portmap", ADD | {"CNI_COMMAND": "DEL"}, CONF | {"type": "portmap"}),
    ("host-local", ADD, CONF | {"ipam": {"type": "host-local", "subnet": "10.1.0.0/24", "dataDir": "/proc/no"}})])
def test_a_request_needs_nothing_of_the_standard_library(files, tmp_path, name, env, conf):
    log = tmp_path / "log"
    run(*strace("-e", "openat,execve,newfstatat", "-o", log), files / name, stdin=json.dumps(conf).encode(), env=env)
    lines = log.read_text().splitlines()
    assert any("execve" in line and CORE in line for line in lines)
    library = os.path.dirname(os.__file__)
    assert [line for line in lines if library in line and "lib-dynload" not in line and "execve" not in line] == []


@needs_core
def test_the_core_phase_leaves_out_what_a_request_does_not_need(files):
    """The core phase does not intern names of frozen modules, does not import io, and collects no garbage."""
    with zipfile.ZipFile(files / "bridge") as packed:
        bootstrap = packed.read("__main__.py")
    text = """import abc, gc, posix, sys
assert not gc.isenabled() and not any(generation["collections"] for generation in gc.get_stats())
names = abc.ABCMeta.__new__.__code__.co_varnames
assert "mcls" in names and (sys.version_info >= (3, 12) or not any(sys.intern("mcls") is name for name in names))
assert not {"_io", "_frozen_importlib_external"} & {*sys.modules}
posix._exit(0)"""
    assert started(text, argv0=CORE).stderr == b""
    assert b"import _frozen_importlib_external" in bootstrap.split(b"hasattr(sys,'leaves')")[1]


@needs_core
@pytest.mark.parametrize("stdin", [
    b'{"cniVersion": "1.0', b'{"cniVersion": \xff\xfe}', b'{"cniVersion": "1.0.0", "name": "\xed\xa0\x80"}', b"[" * 600,
    b'{"cniVersion": "1.0.0", "name": "a", "type": "\\ud800"}'])
def test_a_request_that_needs_more_has_the_same_answer(files, tmp_path, stdin):
    """The files of json or of a codec come from the standard library or from the plugin file."""
    ordinary = write_executable(tmp_path / "bridge", pack.pack(INTERPRETER))
    for env in (ADD, ADD | {"CNI_IFNAME": os.fsdecode(b"eth\xff")}):
        assert run(files / "bridge", stdin=stdin, env=env) == run(ordinary, stdin=stdin, env=env)


@needs_core
@pytest.mark.parametrize("first", ["", "b'\\xff'.decode('utf-8', 'backslashreplace'); import _signal",
                                   "import os, io, time", "'x'.encode('idna')"])
def test_the_complete_interpreter_is_an_ordinary_one(files, first):
    """first: code that runs in the core phase before the main phase."""
    with zipfile.ZipFile(files / "bridge") as packed:
        boot = packed.getinfo("boot")
        offset = (files / "bridge").read_bytes().index(packed.read("boot"))
    text = PREPARE.format(file=str(files / "bridge"), size=boot.file_size, offset=offset) + first + STATE
    core, ordinary = started(text, argv0=CORE), started(text)
    assert (core.stderr, ordinary.stderr) == (b"", b"")
    one, other = json.loads(core.stdout), json.loads(ordinary.stdout)
    crashes = [str(number) for number, handler in one["signals"].items() if handler == "None"]
    assert {*map(int, crashes)} == {signal.SIGSEGV, signal.SIGBUS, signal.SIGILL, signal.SIGFPE, signal.SIGABRT,
                                    signal.SIGTRAP, signal.SIGSYS}
    one["signals"] |= dict.fromkeys(crashes, repr(signal.SIG_DFL))
    assert one == other
    assert INTERPRETER in one["executable"]
    assert any(one["interned"])


@needs_core
def test_signals_are_those_of_python():
    text = "import posix, time; r, w = posix.pipe(); posix.close(r)\ntry: posix.write(w, b'x')\n" \
           "except BrokenPipeError: posix.write(1, b'EPIPE ')\n" \
           f"try: posix.kill(posix.getpid(), {signal.SIGINT.value}); time.sleep(5)\n" \
           "except KeyboardInterrupt: posix.write(1, b'interrupted')\n"
    assert started(text, argv0=CORE).stdout == b"EPIPE interrupted"
    ignored = started(text.replace("time.sleep(5)", "posix.write(1, b'ignored')"), argv0=CORE,
                      preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN))
    assert ignored.stdout == b"EPIPE ignored"


@needs_core
def test_a_file_with_other_leaves_runs_in_the_next_interpreter(tmp_path):
    """fastcni was upgraded, but `fastcni install` has not run yet."""
    image = pack.pack(INTERPRETER, core=CORE)
    digest = repr(pack.leaves_digest()).encode()
    assert image.count(digest) == 2
    plugin = write_executable(tmp_path / "bridge", image.replace(digest, b"'0123456789abcdef'"))
    log = tmp_path / "log"
    status, answer, stderr = run(*strace("-e", "execve", "-o", log), plugin)
    assert (status, answer, stderr) == (1, REFUSAL, "")
    assert [path for path in (CORE, INTERPRETER) if f'"{path}"' in log.read_text()] == [CORE, INTERPRETER]


@needs_core
def test_a_file_runs_without_it(tmp_path):
    gone = tmp_path / "gone" / interpreters.CORE
    plugin = write_executable(tmp_path / "bridge", pack.pack(INTERPRETER, core=CORE, core_path=str(gone)))
    assert run(plugin)[1] == REFUSAL
    data = plugin.read_bytes()
    assert pack.read_config(data)[:3] == (INTERPRETER, pack.version(), str(gone))


@needs_core
@pytest.mark.parametrize("gone", [False, True])
def test_an_interpreter_that_was_updated_runs_itself(tmp_path, gone):
    """The updated interpreter's library may need other built-in modules than python_core.elf has. Also, the update may
    fix a vulnerability."""
    interpreter, later = tmp_path / "a python", tmp_path / "another"
    interpreter.symlink_to(INTERPRETER)
    write_executable(later, b'#!/bin/sh\nshift 5\nprintf \'{"ran": "%s", "stdin": "%s"}\' "$1" "$(cat)"\n')
    image = pack.pack(str(interpreter), core=CORE, alternatives=[str(later)])
    plugin = write_executable(tmp_path / "bridge", image)
    assert run(plugin)[1] == REFUSAL
    interpreter.unlink()
    if not gone:
        shutil.copy(later, interpreter)
    assert run(plugin, stdin=b"the stdin", env=ADD) == (0, {"ran": "bridge", "stdin": "the stdin"}, "")


@needs_core
def test_started_by_hand_it_says_what_it_is():
    done = subprocess.run([CORE], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.endswith("plugin files of fastcni start this program\n")
    assert started("raise ValueError('shown')", argv0=CORE).stderr.splitlines()[-2] == b"ValueError: shown"
