"""Import each module that a one-shot request may import, for each way to start Python."""

import importlib.util
import subprocess
import zipfile

import pytest
from project.plugin_file import INTERPRETER
from unit.launcher.test_python_core import CORE, PREPARE, started

from fastcni.clients.site_packages import NEEDED
from fastcni.launcher import modules
from fastcni.launcher.install import install
from fastcni.launcher.needs import others

# A separate process makes each import. In one process, the modules of one import would hide a missing module of another
IMPORT = """
is_core() and complete_when_needed()
preload(common, sys.meta_path[2])
for name in {names!r}:
    child = posix.fork()
    if not child:
        try:
            if name.partition(".")[0] in {needed!r}:
                from fastcni.clients.site_packages import make_importable
                make_importable()
            __import__(name)
            posix.write(1, b"1")
        except BaseException as error:
            text = name + ": " + repr(error)
            posix.write(1, text.encode() + b"\\n")
        posix._exit(0)
    if status := posix.waitpid(child, 0)[1]:
        posix.write(1, (name + ": ended with %d\\n" % status).encode())
posix._exit(0)
"""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    """Return a function prepared(text). It returns a program that starts as bootstrap.main() does and then runs
    `text`."""
    file = tmp_path_factory.mktemp("bin") / "bridge"
    install(file.parent, names=["bridge"])
    with zipfile.ZipFile(file) as packed:
        boot = packed.getinfo("boot")
        offset = file.read_bytes().index(packed.read("boot"))
    return lambda text: PREPARE.format(file=str(file), size=boot.file_size, offset=offset) + text


@pytest.fixture(params=["python_core", "interpreter", "zipapp"])
def start(request, prepared):
    """Return a function start(text). It runs a prepared process and returns (stdout, stderr)."""
    if request.param == "python_core" and not CORE:
        pytest.skip("python_core.elf is not there, or of another build")

    def run(text):
        text = prepared(text)
        if request.param == "zipapp":
            done = subprocess.run([INTERPRETER, "-I", "-S", "-c", text], capture_output=True, timeout=600, check=False)
        else:
            done = started(text, argv0=CORE if request.param == "python_core" else INTERPRETER)
        return done.stdout.decode(), done.stderr.decode()

    return run


def test_each_module_of_a_plugin_file_and_each_that_it_uses_can_be_imported(start):
    """Once, a module that only host-device has imported modules that host-device's part of the file lacks. Some
    versions of Python lack modules of others(), such as _sha2."""
    own = modules.own({}) | modules.daemon()
    used = [name for name in others(own) if importlib.util.find_spec(name)]
    assert not [name for name in used if name.split(".")[0] == "fastcni"]
    assert {"site", "yaml", "urllib3", "re", "threading", "jeepney"} <= {*used}
    printed, stderr = start(IMPORT.format(names=[*own, *used], needed=NEEDED))
    assert (printed, stderr) == ("1" * len([*own, *used]), "")


@pytest.mark.parametrize("first", [
    "print(sys.prefix)", "print(len(sys.path))", "from sys import path_hooks", "print(sys.stdin.encoding)",
    "with open('/dev/null') as file: print(file.name)",
    "import site; print(site.PREFIXES)", "print(hasattr(sys, 'no_such_attribute'))",
    "import importlib.util; print(importlib.util.find_spec('xml').name)",
    "import runpy, sysconfig; print(sys.platlibdir)"])
def test_what_the_main_phase_makes_is_there_when_it_is_used(start, first):
    """Once, `import site` failed, because Python finds its own frozen modules before the plugin file's modules."""
    printed, stderr = start(f"is_core() and complete_when_needed()\n{first}\nimport json; posix._exit(0)")
    ordinary = subprocess.run([INTERPRETER, "-I", "-S", "-c", "import sys\n" + first], capture_output=True, text=True,
                              check=True)
    assert (printed, stderr) == ("", ordinary.stdout)
