"""Define the option --conf-dir, and choose the directory of network configurations."""

import os

import click

from fastcni.runtime.cni import DEFAULT_CONF_DIR

conf_dir_option = click.option("--conf-dir", default="", metavar="DIR",
                               help=f"The directory of network configurations [NETCONFPATH, {DEFAULT_CONF_DIR}].")


def chosen_conf_dir(given: str = "") -> str:
    """Return the directory of network configurations: `given`, the value of --conf-dir; otherwise the environment
    variable NETCONFPATH; otherwise the default."""
    return given or os.environ.get("NETCONFPATH") or DEFAULT_CONF_DIR
