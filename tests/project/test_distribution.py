"""The files of a release other than code: the licence, the list of changes, manual pages, completion, the version."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import fastcni
from fastcni.cli.commands import cli

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    directory = tmp_path_factory.mktemp("man")
    subprocess.run([sys.executable, ROOT / "packaging/man.py", directory], check=True, timeout=60)
    return directory


def test_every_requirement_has_a_lower_bound():
    groups = [PROJECT["build-system"]["requires"], PROJECT["project"]["dependencies"],
              *PROJECT["project"]["optional-dependencies"].values()]
    own = {f"fastcni[{extra}]" for extra in PROJECT["project"]["optional-dependencies"]}
    assert [text for group in groups for text in group if ">=" not in text and text not in own] == []


def test_the_changes_begin_with_this_version():
    first = re.search(r"^## (\S+?),? ", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.M)
    assert first and first[1] == fastcni.__version__


def test_the_command_prints_its_version():
    done = CliRunner().invoke(cli, ["--version"])
    assert (done.exit_code, done.output) == (0, f"fastcni {fastcni.__version__}\n")


def test_each_command_has_a_manual_page(pages):
    assert {path.name for path in pages.iterdir()} >= {"fastcni.1", *(f"fastcni-{name}.1" for name in cli.commands)}


def test_a_manual_page_has_the_options_of_its_command(pages):
    text = (pages / "fastcni-serve.1").read_text(encoding="utf-8").replace("\\-", "-")
    assert ".SH SYNOPSIS\n\\fBfastcni serve\\fR [OPTIONS]\n" in text
    shown = [option.opts[0] for option in cli.commands["serve"].params if not option.hidden]
    assert [option for option in shown if f"\\fB{option} " not in text and f"\\fB{option}\\fR" not in text] == []


@pytest.mark.skipif(not shutil.which("groff"), reason="needs groff")
def test_groff_accepts_all_manual_pages(pages):
    done = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", *sorted(pages.iterdir())], capture_output=True,
                          text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_the_shell_completes_commands(shell):
    words = {"COMP_WORDS": "fastcni unins", "COMP_CWORD": "1", "_FASTCNI_COMPLETE": f"{shell}_complete"}
    done = subprocess.run([sys.executable, "-m", "fastcni"], env=words, cwd=ROOT, capture_output=True, text=True,
                          check=False, timeout=60)
    assert "uninstall" in done.stdout.replace(",", "\n").split("\n"), done.stderr
