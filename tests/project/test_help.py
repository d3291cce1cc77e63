"""The help of each command fits a terminal of 80 columns."""

import click

from fastcni.cli.entry_point import cli


def commands(group, words=("fastcni",)):
    yield words, group
    for name in group.list_commands(click.Context(group)) if isinstance(group, click.Group) else ():
        yield from commands(group.get_command(click.Context(group), name), (*words, name))


def test_no_line_of_a_help_has_more_than_80_columns():
    long = {}
    for words, command in commands(cli):
        text = command.get_help(click.Context(command, info_name=" ".join(words), terminal_width=80,
                                              **command.context_settings))      # a command keeps its first help option
        if found := [line for line in text.splitlines() if len(line) > 80]:
            long[" ".join(words)] = found
    assert long == {}
