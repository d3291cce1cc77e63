"""Plugins of other distributions: the example in a new environment, one-shot and warm, and faulty plugins, which harm
no other plugin."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib import metadata

import pytest
from project.third_party import (
    ENV,
    EXAMPLE,
    PLUGIN,
    add_distribution,
    call,
    install_example,
    make_environment,
    request,
)

from fastcni import third_party
from fastcni.cli.entry_point import run
from fastcni.testing.witnesses import eventually

CONF = {"cniVersion": "1.1.0", "name": "net"}
BOOM = {"exits": "raise SystemExit(3)", "interrupts": "raise KeyboardInterrupt", "fails": "1 / 0",
        "recurses": "return add(req, conf, undo)"}
# A plugin that prints during its import, and whose ADD starts a thread that ends by an exception.
NOISY = "import threading\nprint('importing')\n" + PLUGIN.replace("return {", """
    thread = threading.Thread(target=int, args=("x",))
    thread.start()
    thread.join()
    return {""".lstrip())


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """Return the path of Python in an environment with the example, with plugins whose ADD raises an exception, and
    with a plugin that cannot be imported."""
    directory = tmp_path_factory.mktemp("third-party")
    python = make_environment(directory / "env")
    install_example(python, directory / "plugin-hello")
    (packages,) = (directory / "env").glob("lib/python*/site-packages")
    modules = {f"acme_{kind}.py": PLUGIN.replace("return {", f"{statement}\n    return {{")
               for kind, statement in BOOM.items()}
    modules |= {"acme_unimportable.py": "import a_module_that_is_nowhere", "acme_noisy.py": NOISY}
    add_distribution(packages, "acme", {kind: f"acme_{kind}" for kind in (*BOOM, "unimportable", "noisy")}, modules)
    return python


@pytest.fixture(scope="module")
def bin_dir(python, tmp_path_factory):
    """Return a directory with the plugin files of hello, host-local, and the plugins whose ADD raises an exception."""
    directory = tmp_path_factory.mktemp("bin")
    args = [word for kind in ("hello", "host-local", "noisy", *BOOM) for word in ("--plugin", kind)]
    call(python, "-m", "fastcni", "install", "--bin-dir", directory, *args)
    os.link(directory / "hello", directory / "unimportable")  # the launcher takes the plugin's type from the file name
    return directory


@pytest.fixture(scope="module")
def server(python, tmp_path_factory):
    """Yield (socket, path of the log) of a server in the environment of `python`."""
    directory = tmp_path_factory.mktemp("s")
    log = directory / "log"
    with open(log, "wb") as file, subprocess.Popen(
            [python, "-m", "fastcni", "serve", "--socket", directory / "s", "--workers", "2", "--log-format", "json"],
            stderr=file, env=ENV | {"FASTCNI_SOCKET": str(directory / "s")}) as running:
        deadline = time.monotonic() + 60
        while b"server_ready" not in log.read_bytes() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield str(directory / "s"), log
        running.send_signal(signal.SIGTERM)
        assert running.wait(60) == 0, log.read_text()


def events(log, name):
    """Return the log's events of this name. Skip the lines that plugins print between events."""
    found = [json.loads(line) for line in log.read_text().splitlines() if line.startswith("{")]
    return [event for event in found if event["event"] == name]


def hello(tmp_path):
    ipam = {"type": "host-local", "subnet": "10.22.0.0/24", "dataDir": str(tmp_path)}
    return {**CONF, "type": "hello", "to": ["192.0.2.0/24"], "ipam": ipam}


def test_the_example_is_short():
    assert len((EXAMPLE / "fastcni_hello.py").read_text().splitlines()) < 60


def test_the_tests_of_the_example_pass(python):
    """The example's tests are the conformance class and, for root, a pod that reaches the host."""
    args = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", EXAMPLE / "pyproject.toml", EXAMPLE]
    out = call(python, *args, env={"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"})
    assert "passed" in out


def test_the_command_lists_plugins_with_their_distribution(python):
    listed = {it["plugin"]: it for it in json.loads(call(python, "-m", "fastcni", "plugins", "--json"))}
    assert listed["hello"]["distribution"] == "fastcni-hello 1.0" and listed["hello"]["gc"]
    assert listed["hello"]["about"] == "a veth pair; the pod has routes to the networks `to` through the host"
    assert "distribution" not in listed["bridge"]
    assert "No module named 'a_module_that_is_nowhere'" in listed["unimportable"]["problem"]


@pytest.mark.parametrize("warm", [False, True], ids=["one-shot", "warm"])
def test_the_example_adds_checks_and_deletes_a_pod(bin_dir, server, tmp_path, host_netns, pod_netns, warm):
    conf, (path, log) = hello(tmp_path), server
    env = {"CNI_NETNS": f"/run/netns/{pod_netns()}", "CNI_PATH": str(bin_dir),
           "CNI_CONTAINERID": f"c-{tmp_path.name[-20:]}", "FASTCNI_SOCKET": path if warm else ""}
    status, result = request(bin_dir / "hello", "ADD", conf, **env)
    assert status == 0, result
    assert {route["dst"] for route in result["routes"]} == {"192.0.2.0/24"}
    for command in ("CHECK", "DEL", "DEL"):
        assert request(bin_dir / "hello", command, conf | {"prevResult": result}, **env) == (0, None)

    def served():
        return [it["command"] for it in events(log, "request_done") if it["container"] == env["CNI_CONTAINERID"]]

    if warm:                                        # the server logs a request after the answer
        eventually(lambda: len(served()) == 4)
    assert served() == (["ADD", "CHECK", "DEL", "DEL"] if warm else [])


def test_in_process_the_example_answers(python):
    code = ("from fastcni.runtime import CNI\nfrom fastcni.runtime.exec import InProcess\n"
            "print(CNI([], runner=InProcess()).version_info('hello'))")
    assert "1.1.0" in call(python, "-c", code)


@pytest.mark.parametrize("kind", BOOM)
def test_one_shot_an_exception_is_one_error_document(bin_dir, kind):
    status, document = request(bin_dir / kind, "ADD", CONF)
    assert (status, document["code"]) == (1, 999)
    assert document["details"].endswith(f'this is a fault of the plugin "{kind}"')


@pytest.mark.needs("root")
def test_no_exception_ends_the_server(bin_dir, server):
    """The plugins raise each exception more often than the server has workers."""
    path, log = server
    for kind in [*BOOM] * 3:
        status, document = request(bin_dir / kind, "ADD", CONF, FASTCNI_SOCKET=path)
        assert (status, document["code"]) == (1, 999)
    assert request(bin_dir / "hello", "VERSION", FASTCNI_SOCKET=path)[0] == 0
    assert len([it for it in events(log, "request_failed") if it["plugin"] in BOOM]) == 3 * len(BOOM)


@pytest.mark.needs("root")
def test_a_plugin_that_cannot_be_imported_is_logged_and_status_says_so(bin_dir, server):
    path, log = server
    (event,) = events(log, "plugin_unusable")
    assert (event["plugin"], event["distribution"]) == ("unimportable", "acme 1.0")
    for command in ("STATUS", "ADD"):
        status, document = request(bin_dir / "unimportable", command, CONF, FASTCNI_SOCKET=path)
        assert (status, document["code"]) == (1, 50)
        assert "a_module_that_is_nowhere" in document["msg"]


def test_one_shot_a_noisy_plugin_answers_with_one_document(bin_dir):
    assert request(bin_dir / "noisy", "ADD", CONF) == (0, {"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.2/24"}]})


@pytest.mark.needs("root")
def test_warm_a_noisy_plugin_answers_with_one_document(bin_dir, server):
    for _ in range(3):
        status, _ = request(bin_dir / "noisy", "ADD", CONF, FASTCNI_SOCKET=server[0])
        assert status == 0


# -- rejected modules ---------------------------------------------------------------------------------

REFUSED = {
    "compiled": ("acme", {"acme/__init__.py": PLUGIN + "def late():\n    from acme import fast",
                          "acme/fast.abi3.so": ""}, r"acme.fast is compiled"),
    "another distribution": ("acme", {"acme.py": PLUGIN + "import click"}, r"acme imports click; .* fastcni\.plugin"),
    "fastcni's server": ("acme", {"acme.py": PLUGIN + "from fastcni import server"}, r"imports fastcni\.server"),
    "a late import": ("acme", {"acme.py": PLUGIN + "def late():\n    import click.core"}, r"imports click\.core"),
    "not found": ("acme.none", {"acme.py": PLUGIN}, "No module named 'acme.none'"),
    "syntax": ("acme", {"acme.py": "def"}, "SyntaxError"),
    "its file": ("acme", {"acme.py": PLUGIN + "where = __file__"}, "__file__"),
    "exit": ("acme", {"acme.py": "raise SystemExit"}, "SystemExit"),
    "incomplete": ("acme", {"acme.py": "def read(req): ..."}, "has no add, delete, check"),
    "an attribute": ("acme:Plugin", {"acme.py": PLUGIN}, 'entry point "acme:Plugin" is not'),
    "of fastcni": ("fastcni.plugins.ptp", {}, "a module of fastcni itself"),
}


def install_in(directory, bin_dir, *args):
    """Run `fastcni install` with the distributions in `directory`. Return (exit status, output). The command runs in a
    forked process, because a new process would compile fastcni's modules again."""
    with tempfile.TemporaryFile("w+") as output:
        if not (pid := os.fork()):
            status = 70
            try:
                sys.path.insert(0, str(directory))
                sys.stderr = output
                status = run(["install", "--bin-dir", str(bin_dir), *args])
            except SystemExit as e:
                status = e.code
            finally:
                output.flush()
                os._exit(status or 0)
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        output.seek(0)
        return status, output.read()


@pytest.mark.parametrize("case", REFUSED)
def test_a_plugin_that_cannot_be_packed_is_refused_before_anything_is_written(tmp_path, case):
    module, sources, text = REFUSED[case]
    add_distribution(tmp_path / "packages", "acme-cni", {"acme": module}, sources)
    status, output = install_in(tmp_path / "packages", tmp_path / "bin")
    assert status == 1 and 'acme-cni 1.0: plugin "acme"' in output, output
    assert re.search(text, output), output
    assert not (tmp_path / "bin").exists()


@pytest.mark.parametrize("kind, text", [("bridge", "has a plugin of that name itself"), ("a/b", "not a CNI type"),
                                        ("twice", "other-cni 1.0 has a plugin of that name, too")])
def test_a_name_that_cannot_be_used_is_a_problem(tmp_path, monkeypatch, kind, text):
    for name in ("acme-cni", *(["other-cni"] if kind == "twice" else [])):
        add_distribution(tmp_path, name, {kind: "acme"}, {"acme.py": PLUGIN})
    monkeypatch.syspath_prepend(tmp_path)
    found = [it for it in third_party.find() if it.kind == kind]
    assert found[0].distribution == "acme-cni 1.0" and text in found[0].problem


class Finder:
    """A finder for sys.meta_path that finds one distribution. Editable installs can add such finders."""

    def __init__(self, directory):
        (self.info,) = directory.glob("*.dist-info")

    def find_spec(self, *_):
        return None

    def find_distributions(self, _):
        return [metadata.PathDistribution(self.info)]


@pytest.mark.parametrize("where", ["dist-info", "egg-info", "EGG-INFO", "zip", "finder"])
def test_a_plugin_is_found_wherever_its_distribution_is(tmp_path, monkeypatch, where):
    """third_party.may_declare() checks without importlib.metadata whether any distribution may have plugins. It must
    not miss one."""
    entry, finders = tmp_path / "entry", sys.meta_path
    add_distribution(entry, "acme-cni", {"acme": "acme"}, {"acme.py": PLUGIN})
    info = entry / "acme-cni-1.0.dist-info"
    if where == "egg-info":
        (info / "METADATA").rename(info / "PKG-INFO")
        info.rename(entry / "acme_cni.egg-info")
    elif where == "EGG-INFO":
        (info / "METADATA").rename(info / "PKG-INFO")
        info.rename(entry / "EGG-INFO")
        entry = entry.rename(tmp_path / "acme_cni.egg")
    elif where == "zip":
        entry = shutil.make_archive(tmp_path / "acme", "zip", entry)
    elif where == "finder":
        finders, entry = [*sys.meta_path, Finder(entry)], tmp_path / "none"
    monkeypatch.syspath_prepend(entry)
    monkeypatch.setattr(sys, "meta_path", finders)
    assert [it.distribution for it in third_party.find() if it.kind == "acme"] == ["acme-cni 1.0"]


def test_a_server_without_plugins_of_others_does_not_import_the_search_for_them():
    """Each server imported importlib.metadata, which took 30 ms."""
    code = ("import logging, sys\nfrom fastcni.server.requests.workers import preload, preload_third_party\n"
            "preload()\npreload_third_party(logging)\nassert 'importlib.metadata' not in sys.modules")
    call(sys.executable, "-c", code)


def test_without_the_plugin_that_cannot_be_packed_the_others_are_installed(tmp_path):
    add_distribution(tmp_path / "packages", "acme-cni", {"acme": "acme", "bridge": "acme"}, {"acme.py": "1 / 0"})
    assert install_in(tmp_path / "packages", tmp_path / "bin", "--plugin", "bridge") == (0, "")
    assert request(tmp_path / "bin" / "bridge", "VERSION")[0] == 0


def test_packed_modules_run_as_they_do_elsewhere(tmp_path):
    """The modules have relative, circular and guarded imports, annotations that a dataclass reads, an assertion and a
    docstring."""
    sources = {
        "acme/cni/__init__.py": '"""The docstring."""\nfrom . import other\nfrom .plugin import *\n',
        "acme/cni/other.py": "import acme.cni.plugin\n\ndef answer():\n    return acme.cni.plugin.ANSWER\n",
        "acme/cni/plugin.py": """
            from __future__ import annotations
            from dataclasses import dataclass
            import acme.cni
            from . import other
            TYPE_CHECKING = False
            if TYPE_CHECKING:
                from click import Command
            try:
                import a_module_that_is_nowhere
            except ImportError:
                a_module_that_is_nowhere = None
            ANSWER = "10.0.0.42/24"

            @dataclass
            class Conf:
                command: Command | None = None

            def read(req):
                return Conf()

            def add(req, conf, undo):
                assert acme.cni.__doc__ == "The docstring."
                try:
                    assert conf.command, "assertions are there"
                except AssertionError:
                    return {"ips": [{"address": other.answer()}]}

            def delete(req, conf):
                pass

            check = delete
            """}
    add_distribution(tmp_path / "packages", "acme-cni", {"acme": "acme.cni"}, sources)
    assert install_in(tmp_path / "packages", tmp_path / "bin", "--plugin", "acme") == (0, "")
    shutil.rmtree(tmp_path / "packages")
    assert request(tmp_path / "bin" / "acme", "ADD", CONF) == (
        0, {"cniVersion": "1.1.0", "ips": [{"address": "10.0.0.42/24"}]})
