"""The wheel and the source archive: their files, their builds, and installed plugins that still work when both are
removed."""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

from fastcni.launcher import pack

ROOT = Path(__file__).parents[2]
LEAVES = sorted(path.stem for path in (ROOT / "fastcni").glob("*.pyx"))
SOURCES = {*(f"fastcni/launcher/{name}" for name in (
    "launcher.c", "python_core.c", "autostart.h", "document.h", "machines.h", "one_shot_count.h", "programs.h",
    "system_call.h")),
           *(f"fastcni/{leaf}.pyx" for leaf in LEAVES)}
# Compiler flags that distributions use for programs with a libc. The launcher has no libc, and must still build with
# these flags.
HARDENED = {
    "CFLAGS": "-O2 -g -fstack-protector-all -D_FORTIFY_SOURCE=2 -fPIE -fasynchronous-unwind-tables",
    "LDFLAGS": "-Wl,-z,relro -Wl,-z,now -Wl,--build-id",
}


def call(*command, cwd=None, env=None):
    args = [str(word) for word in command]
    done = subprocess.run(args, cwd=cwd, env=os.environ | (env or {}), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{args}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def builder(tmp_path_factory):
    """Return the path of a separate Python that has only the requirements of [build-system]."""
    directory = tmp_path_factory.mktemp("builder")
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    call(sys.executable, "-m", "venv", directory)
    python = directory / "bin" / "python"
    args = [python, "-m", "pip", "install", "-q", *requires]
    done = subprocess.run(args, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"no package index: {done.stderr.strip()[-300:]}")
    return python


@pytest.fixture(scope="module")
def sdist(builder, tmp_path_factory):
    """Return the source archive, made from a copy without any built file."""
    directory = tmp_path_factory.mktemp("sdist")
    clean = shutil.ignore_patterns("*.so", "*.elf", "_*.c", "__pycache__")
    shutil.copytree(ROOT / "fastcni", directory / "fastcni", ignore=clean)
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, directory)
    call(builder, "setup.py", "-q", "sdist", cwd=directory)
    (archive,) = (directory / "dist").iterdir()
    return archive


@pytest.fixture(scope="module")
def wheel(builder, sdist, tmp_path_factory):
    """Return the wheel, built from the unpacked source archive with a distribution's flags."""
    directory = tmp_path_factory.mktemp("wheel")
    with tarfile.open(sdist) as archive:
        archive.extractall(directory)
    (tree,) = directory.iterdir()
    args = ("wheel", "-q", "--no-deps", "--no-build-isolation", "-w", directory / "out", tree)
    call(builder, "-m", "pip", *args, env=HARDENED)
    (path,) = (directory / "out").iterdir()
    return path


def test_source_archive_has_every_source(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert names >= SOURCES | {"setup.py", "pyproject.toml", "fastcni/handle.py"}
    assert not [name for name in names if name.endswith((".so", ".elf"))]


def test_wheel_has_the_binaries_and_no_source_of_them(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert sorted(name.split(".")[0] for name in names if name.endswith(".so")) == [
        *(f"fastcni/{leaf}" for leaf in LEAVES), "fastcni/launcher/leaves",
    ]
    assert "fastcni/launcher/launcher.elf" in names
    assert not [name for name in names if name.endswith((".pyx", ".pxd", ".pxi", ".c", ".o", ".h"))]
    assert not [name for name in names if not name.startswith(("fastcni/", "fastcni-"))]


def test_wheel_has_what_type_checkers_read(wheel):
    with zipfile.ZipFile(wheel) as archive:
        assert {"fastcni/py.typed", *(f"fastcni/{leaf}.pyi" for leaf in LEAVES)} <= set(archive.namelist())


def test_wheel_has_the_status_page(wheel):
    with zipfile.ZipFile(wheel) as archive:
        assert {f"fastcni/server/web/page.{kind}" for kind in ("html", "css", "js")} <= set(archive.namelist())


def test_plugin_files_have_every_leaf_but_the_servers():
    assert sorted([*pack.LEAVES, "_acceptor", "_steps"]) == LEAVES


def test_wheel_has_every_module(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if name.endswith(".py")}
    assert inside == {str(path.relative_to(ROOT)) for path in (ROOT / "fastcni").rglob("*.py")}


def test_launcher_keeps_its_mode_and_its_shape_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        info = archive.getinfo("fastcni/launcher/launcher.elf")
        assert info.external_attr >> 16 & 0o777 == 0o755
        assert info.file_size < 16 << 10


def test_plugin_files_outlive_the_environment_that_wrote_them(wheel, tmp_path):
    """`fastcni install` of a wheel's environment writes the plugins. They still work after the environment was
    removed."""
    python = tmp_path / "env" / "bin" / "python"
    call(sys.executable, "-m", "venv", tmp_path / "env")
    call(python, "-m", "pip", "install", "-q", "--no-deps", "--no-index", wheel)
    code = f"from fastcni.launcher.install import install; install({str(tmp_path / 'bin')!r})"
    call(python, "-c", code, cwd=tmp_path)
    shutil.rmtree(tmp_path / "env")
    answer = call(tmp_path / "bin" / "bridge", cwd=tmp_path, env={"CNI_COMMAND": "VERSION"})
    assert json.loads(answer)["cniVersion"] == "1.1.0"


def test_metadata_name_the_command_and_the_requirements(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (path,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        (entry,) = (name for name in archive.namelist() if name.endswith("entry_points.txt"))
        metadata = archive.read(path).decode().splitlines()
        assert "fastcni = fastcni.cli:main" in archive.read(entry).decode()
    assert "Requires-Python: >=3.11" in metadata
    needs = {line.split(": ")[1].partition(">=")[0] for line in metadata
             if line.startswith("Requires-Dist") and "extra ==" not in line}
    assert needs == {"orjson", "click", "rich", "jeepney"}
