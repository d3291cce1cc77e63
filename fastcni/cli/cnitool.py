"""The commands of cnitool (add, check, del, status), and `fastcni version`."""

from collections.abc import Sequence

import click

import fastcni
from fastcni.cli.options import completion
from fastcni.cli.options.settings import Settings, bin_dir_option, network_command, plugin_dirs
from fastcni.cli.text import reports, show
from fastcni.cli.text.output import cni_as_text, json_option, put, put_document, put_lines
from fastcni.runtime import CNI, Report
from fastcni.spec import result as results
from fastcni.spec import version


@click.command()
@network_command()
@click.option("--rollback", is_flag=True, help="If ADD fails, send DEL to the plugins that were called.")
def add(settings: Settings, rollback: bool) -> None:
    """Attach NETNS to NET and print the result."""
    result = settings.cni.add(settings.net, settings.rt, rollback=rollback)
    if result is None:
        return
    if cni_as_text(settings.as_json):
        show.result(result, settings.net.name, settings.rt)
    else:
        put(results.encode(result))


@click.command()
@network_command()
def check(settings: Settings) -> None:
    """Check that the attachment of NETNS is as ADD made it."""
    put_report("CHECK", settings, settings.cni.check(settings.net, settings.rt))


@click.command(name="del")
@network_command()
def delete(settings: Settings) -> None:
    """Detach NETNS from NET."""
    put_report("DEL", settings, settings.cni.delete(settings.net, settings.rt))


@click.command()
@network_command(netns_required=False)
def status(settings: Settings) -> None:
    """Ask the plugins of NET whether they can serve an ADD. NETNS is not used."""
    put_report("STATUS", settings, settings.cni.status(settings.net))


@click.command(name="version")
@click.argument("types", metavar="[TYPE]...", nargs=-1, shell_complete=completion.plugin_types)
@bin_dir_option
@json_option
def show_version(types: Sequence[str], bin_dir: Sequence[str], as_json: bool) -> None:
    """Print fastcni's version and the CNI versions it supports.

    With TYPE, also print the CNI versions that the plugin of that type supports.
    """
    cni = CNI(plugin_dirs(bin_dir))
    plugins = {kind: cni.version_info(kind) for kind in types}
    if not as_json:
        click.echo(f"fastcni {fastcni.__version__}, CNI {', '.join(version.ALL)}")
        for kind, supported in plugins.items():
            click.echo(show.printable(f"{kind}: CNI {', '.join(supported)}"))
        return
    document = {"version": fastcni.__version__, "cniVersion": version.CURRENT,
                "supportedVersions": list(version.ALL)}
    put_document({**document, "plugins": plugins} if types else document)


def put_report(command: str, settings: Settings, report: Report) -> None:
    """Print a command's Report as one line of text, or with --json as a JSON document."""
    net = settings.net
    if not settings.as_json and (command == "STATUS" or cni_as_text(settings.as_json)):
        it = f"network {net.name}" if command == "STATUS" else reports.attachment(net, settings.rt)
        put_lines([reports.sentence(command, it, report)])
    else:
        put_document(reports.document(command, net, report))
