"""Define the options of commands on this node's attachments."""

import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click

from fastcni.cli.text.output import json_option
from fastcni.node.attachments.cache_dirs import IN_HELP, known_cache_dirs
from fastcni.node.attachments.inventory import Places
from fastcni.runtime.cni import DEFAULT_CONF_DIR

OPTIONS = (
    click.option("--conf-dir", default="", metavar="DIR",
                 help=f"The directory of network configurations [NETCONFPATH, {DEFAULT_CONF_DIR}]."),
    click.option("--cache-dir", "cache_dirs", multiple=True, metavar="DIR",
                 help=f"A directory of cached results; may be repeated [{IN_HELP}]."),
    click.option("--data-dir", "data_dirs", multiple=True, metavar="DIR", help="A dataDir of host-local, besides those "
                 "that configurations name; may be repeated."),
    json_option,
)


agent_folder_option = click.option("--agent-folder", default="", metavar="DIR", help="Also ask the agent with this "
                                   "--folder. Agents that networks name are always asked.")


def node_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add OPTIONS to a command. Its function gets `places` and `as_json` instead of these."""
    @wraps(function)
    def command(conf_dir: str, cache_dirs: Sequence[str], data_dirs: Sequence[str], **options: Any) -> Any:
        where = conf_dir or os.environ.get("NETCONFPATH") or DEFAULT_CONF_DIR
        places = Places(where, known_cache_dirs(cache_dirs, where), tuple(data_dirs), os.environ.get("PATH", ""))
        return function(places=places, **options)

    for option in reversed(OPTIONS):
        command = option(command)
    return command
