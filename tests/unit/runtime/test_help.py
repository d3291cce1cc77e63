"""The help of the command line, and its table of commands."""

import ast
import subprocess
import sys
from pathlib import Path

import click
import pytest

import fastcni
from fastcni.cli import entry_point
from fastcni.cli.commands import GROUPS, TABLE, cli

CLI = Path(fastcni.__file__).parent / "cli"
CNITOOL = {"cnitool.py", "netconf.py"}


@pytest.mark.parametrize("name", TABLE)
def test_a_summary_is_the_first_sentence_of_the_commands_help(name):
    assert TABLE[name][1] == cli.commands[name].get_short_help_str(500)


def test_each_command_has_one_uncut_line_of_help(capsys):
    assert entry_point.run(["--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if len(line) > 79 or ("..." in line and "Usage" not in line)] == []
    for title, commands in GROUPS.items():
        at = lines.index(f"{title}:")
        assert lines[at + 1:at + 1 + len(commands)] == [f"  {name:<9}  {text}" for name, (_, text) in commands.items()]


def groups(command):
    """Yield a group of commands and the groups in it."""
    found = [it for it in command.commands.values() if isinstance(it, click.Group)]
    return [command, *(inner for it in found for inner in groups(it))]


@pytest.mark.parametrize("group", groups(cli)[1:], ids=lambda group: group.name)
def test_a_group_without_a_command_prints_its_help_once_and_uncut(capsys, group):
    """Once, `fastcni pod` ended with status 1 and printed its help as an error, with shortened summaries."""
    assert entry_point.run([group.name]) == 0
    out, err = capsys.readouterr()
    assert (out.count("Usage:"), err) == (1, "")
    shown = " ".join(out.partition("Commands:")[2].split())
    for command in group.commands.values():
        assert command.get_short_help_str(500) in shown


def test_help_imports_no_command():
    """Once, the help imported all commands and Rich, which took 0.25 s of processor time."""
    code = ("import sys; from fastcni.cli.entry_point import run; run(['--help']); "
            "print(*(name for name in sys.modules if name.startswith('fastcni.') or name == 'rich'), file=sys.stderr)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert {name for name in done.stderr.split() if name.count(".") > 1 or name == "rich"} == {
        "fastcni.cli.entry_point", "fastcni.cli.commands", "fastcni.cli.text", "fastcni.cli.text.output",
        "fastcni.spec.errors", "fastcni.spec.json"}


def test_only_commands_that_print_cni_documents_ask_whether_stdout_is_a_terminal():
    asking = {path.name for path in CLI.rglob("*.py") for node in ast.walk(ast.parse(path.read_text()))
              if isinstance(node, ast.Name) and node.id == "cni_as_text"}
    assert asking == CNITOOL
