"""The command `fastcni restore`: restore the pods' firewall rules after another program has flushed the rules."""

from typing import Any

import click

from fastcni.cli.text.output import json_option, printable, put_document
from fastcni.runtime.cache import Cache
from fastcni.runtime.restore import Failure, Restored
from fastcni.runtime.restore import restore as run


@click.command()
@click.option("--cache-dir", default="", metavar="DIR", help="The directory of cached results [/var/lib/cni].")
@json_option
def restore(cache_dir: str, as_json: bool) -> int:
    """Restore the firewall state of all cached attachments.

    Use the command after `nft flush ruleset`, a reload of firewalld or a restart of iptables. The command does not
    change pods, links or addresses. It restores only pods whose link is in the command's network namespace. The exit
    status is 1 if the command could not restore a rule or read a cached result.
    """

    done = run(Cache(cache_dir))
    if as_json:
        put_document(document(done))
    else:
        click.echo(f"restored: {done.attachments} attachments, {done.plugins} plugins; failed: {len(done.failed)}; "
                   f"without a network namespace: {done.gone}; of another host namespace: {done.elsewhere}")
        for failure in done.failed:
            click.echo(printable(str(failure)), err=True)
    return 1 if done.failed else 0


def document(done: Restored) -> dict[str, Any]:
    return {"attachments": done.attachments, "plugins": done.plugins, "gone": done.gone,
            "elsewhere": done.elsewhere, "failed": [failure_document(failure) for failure in done.failed]}


def failure_document(failure: Failure) -> dict[str, Any]:
    it = failure.attachment
    return {"network": it.network, "containerID": it.container_id, "ifname": it.ifname, "plugin": failure.plugin,
            **({"path": failure.path} if failure.path else {}), **failure.error.as_document()}
