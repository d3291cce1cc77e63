"""The commands `fastcni fuse` and `fastcni unfuse`: turn a network list into a list of one plugin, and restore it."""

from collections.abc import Sequence

import click

from fastcni.cli.options.settings import bin_dir_option, plugin_dirs
from fastcni.cli.text.output import json_option, printable, put, put_document
from fastcni.runtime import fusing
from fastcni.spec import json

CONFLIST = click.argument("conflist", type=click.Path())


@click.command()
@CONFLIST
@bin_dir_option
@click.option("--dry-run", is_flag=True, help="Show the fused list. Change nothing.")
@json_option
def fuse(conflist: str, bin_dir: Sequence[str], dry_run: bool, as_json: bool) -> None:
    """Replace the plugins of the list CONFLIST by the plugin `chain`.

    A runtime then starts one program for a pod instead of one for each plugin. Results and state stay the same, and
    running pods are not affected. The original stays next to the file as CONFLIST.unfused.
    """
    done = fusing.fuse(conflist, plugin_dirs(bin_dir), dry_run=dry_run)
    report(done, f"{', '.join(done.plugins)} of network {done.network} are one plugin in {done.path}; the original "
           f"is {done.kept}", dry_run, as_json)


@click.command()
@CONFLIST
@click.option("--force", is_flag=True, help="Restore the original even if the list was changed since `fuse`; the "
              "change is lost.")
@click.option("--dry-run", is_flag=True, help="Show the original list. Change nothing.")
@json_option
def unfuse(conflist: str, force: bool, dry_run: bool, as_json: bool) -> None:
    """Restore the original of the fused list CONFLIST.

    The restored file is byte for byte the file from before `fastcni fuse`. Running pods are not affected. The plugin
    `chain` must stay installed until the pods that were added with it are deleted, because CRI-O and podman delete a
    pod with the list of its ADD.
    """
    done = fusing.unfuse(conflist, force=force, dry_run=dry_run)
    report(done, f"{done.path} is as it was: {', '.join(done.plugins)} of network {done.network}", dry_run, as_json)


def report(done: fusing.Fused, text: str, dry_run: bool, as_json: bool) -> None:
    """Print the outcome `text`; for a dry run, print the new list."""
    if as_json:
        put_document({"path": done.path, "original": done.kept, "network": done.network, "plugins": [*done.plugins],
                      "dryRun": dry_run, "list": json.read(done.document)})
    elif dry_run:
        put(done.document)
    else:
        click.echo(printable(text))
