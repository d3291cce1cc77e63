"""Define the table of all commands, in groups. A command's module is imported only when the command is used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING

import click

import fastcni
from fastcni.cli.text.output import Group

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

# {group: {command: (module:attribute, summary)}}. A summary is the first sentence of the command's help, and fits into
# one line of `fastcni --help`: 65 characters. The commands of a group serve one task. Their order is the order in which
# an operator uses them.
GROUPS = {
    "Attach containers": {
        "add": ("fastcni.cli.cnitool:add", "Attach NETNS to NET and print the result."),
        "check": ("fastcni.cli.cnitool:check", "Check that the attachment of NETNS is as ADD made it."),
        "del": ("fastcni.cli.cnitool:delete", "Detach NETNS from NET."),
        "status": ("fastcni.cli.cnitool:status", "Ask the plugins of NET whether they can serve an ADD."),
        "gc": ("fastcni.cli.gc:gc", "Release the addresses, rules and files of deleted pods of NET."),
        "pod": ("fastcni.cli.pod:pod", "Set up and tear down all networks of a pod."),
    },
    "See what is on this node": {
        "list": ("fastcni.cli.attachments:list_attachments", "List the attachments of this node, with their state."),
        "inspect": ("fastcni.cli.attachments:inspect", "Show everything about one ATTACHMENT."),
        "explain": ("fastcni.cli.explain:explain", "Say what an address, port, link or chain of this node belongs to."),
        "ipam": ("fastcni.cli.ipam:ipam", "Show and repair cluster-wide addresses."),
        "plugins": ("fastcni.cli.plugins:list_plugins", "List the plugins, or show the features of each plugin TYPE."),
        "version": ("fastcni.cli.cnitool:show_version", "Print fastcni's version and the CNI versions it supports."),
    },
    "Find faults": {
        "doctor": ("fastcni.cli.doctor:doctor", "Find this node's faults, and the commands that repair them."),
        "selftest": ("fastcni.cli.selftest:selftest", "Test the network of this node with two pods of its own."),
        "flows": ("fastcni.cli.flows:flows", "Show which pods talk to whom, and what drops their packets."),
        "why": ("fastcni.cli.why:why", "Follow one connection, and say at which hop it ends."),
        "datapath": ("fastcni.cli.datapath:datapath", "Show, update and remove the datapath ebpf; show the flowtable."),
        "policy": ("fastcni.cli.policy:policy", "Show what network policies allow."),
        "trace": ("fastcni.cli.trace:trace", "Follow the server's requests, each with its phases."),
        "top": ("fastcni.cli.top:top", "Watch the server's requests of the last minute."),
        "bench": ("fastcni.cli.bench:bench", "Measure fastcni, the Go plugins and the kernel on this node."),
    },
    "Configure networks": {
        "netconf": ("fastcni.cli.netconf:netconf", "Show what a command would send to each plugin of NET."),
        "schema": ("fastcni.cli.schema:schema", "Print the JSON Schema of the configuration of the plugin TYPE."),
        "fuse": ("fastcni.cli.fuse:fuse", "Replace the plugins of the list CONFLIST by the plugin `chain`."),
        "unfuse": ("fastcni.cli.fuse:unfuse", "Restore the original of the fused list CONFLIST."),
    },
    "Set up this node": {
        "install": ("fastcni.cli.install:install", "Write fastcni's plugins to a directory."),
        "adopt": ("fastcni.cli.attachments:adopt", "Show which attachments fastcni recognises, and build indexes."),
        "uninstall": ("fastcni.cli.uninstall:uninstall", "Restore the plugins that fastcni replaced."),
        "serve": ("fastcni.cli.serve:serve", "Run the requests of the installed plugins in one warm process."),
        "agent": ("fastcni.cli.agent:agent", "Give this node a subnet, and routes to the pods of other nodes."),
        "restore": ("fastcni.cli.restore:restore", "Restore the firewall state of all cached attachments."),
    },
}
TABLE = {name: row for group in GROUPS.values() for name, row in group.items()}


class Commands(Mapping[str, click.Command]):
    """A mapping of the names in TABLE to click commands. `commands[name]` imports the command's module."""

    def __getitem__(self, name: str) -> click.Command:
        module, _, attribute = TABLE[name][0].partition(":")
        command: click.Command = getattr(import_module(module), attribute)
        return command

    def __iter__(self) -> Iterator[str]:
        return iter(TABLE)

    def __len__(self) -> int:
        return len(TABLE)


class CommandLine(Group):
    """The top-level command `fastcni`. Its help and completion read the commands' names and summaries from GROUPS, so
    they import no command."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(TABLE)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, TABLE))
        for title, commands in GROUPS.items():
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), summary) for name, (_, summary) in commands.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = [CompletionItem(name, help=summary) for name, (_, summary) in TABLE.items()
                 if name.startswith(incomplete)]
        return [*found, *click.Command.shell_complete(self, ctx, incomplete)]


@click.group(cls=CommandLine, commands=Commands(), context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(fastcni.__version__, message="fastcni %(version)s")
def cli() -> None:
    """Attach containers to networks with CNI plugins.

    NET is the "name" of a network in the configuration directory. NETNS is the path of a network namespace.
    `fastcni COMMAND --help` explains a command.
    """
