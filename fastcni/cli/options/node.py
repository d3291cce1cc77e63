"""Define the options of commands that read this node's attachments."""

import os
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import click

from fastcni.cli.options.conf_dir import chosen_conf_dir, conf_dir_option
from fastcni.cli.text.output import json_option
from fastcni.node.attachments.cache_dirs import IN_HELP, known_cache_dirs
from fastcni.node.attachments.inventory import Places

cache_dirs_option = click.option("--cache-dir", "cache_dirs", multiple=True, metavar="DIR",
                                 help=f"A directory of cached results; may be repeated [{IN_HELP}].")
agent_folder_option = click.option("--agent-folder", default="", metavar="DIR", help="Also ask the agent with this "
                                   "--folder. Agents that networks name are always asked.")


def node_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a node's attachments to a command. The command's function gets `places`, a Places, and
    `as_json` instead of these options."""
    @conf_dir_option
    @cache_dirs_option
    @click.option("--data-dir", "data_dirs", multiple=True, metavar="DIR", help="A dataDir of host-local, besides "
                  "those that configurations name; may be repeated.")
    @json_option
    @wraps(function)
    def command(conf_dir: str, cache_dirs: Sequence[str], data_dirs: Sequence[str], **options: Any) -> Any:
        where = chosen_conf_dir(conf_dir)
        places = Places(where, known_cache_dirs(cache_dirs, where), tuple(data_dirs), os.environ.get("PATH", ""))
        return function(places=places, **options)
    return command
