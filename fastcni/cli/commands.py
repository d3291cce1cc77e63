"""The commands of the fastcni command line; those of cnitool, and version."""

from collections.abc import Sequence

import click

import fastcni
from fastcni.cli import reports, show
from fastcni.cli.agent import agent
from fastcni.cli.attachments import adopt, inspect, list_attachments
from fastcni.cli.bench import bench
from fastcni.cli.doctor import doctor
from fastcni.cli.explain import explain
from fastcni.cli.fuse import fuse, unfuse
from fastcni.cli.gc import gc
from fastcni.cli.install import install
from fastcni.cli.ipam import ipam
from fastcni.cli.netconf import netconf
from fastcni.cli.output import for_people, put, put_document
from fastcni.cli.plugins import list_plugins
from fastcni.cli.pod import pod
from fastcni.cli.policy import policy
from fastcni.cli.restore import restore
from fastcni.cli.selftest import selftest
from fastcni.cli.serve import serve
from fastcni.cli.settings import BIN_DIR_HELP, Settings, network_command, plugin_dirs
from fastcni.cli.top import top
from fastcni.cli.trace import trace
from fastcni.cli.uninstall import uninstall
from fastcni.runtime import CNI, Report
from fastcni.spec import result as results
from fastcni.spec import version


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(fastcni.__version__, message="fastcni %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Attach containers to networks with CNI plugins.

    NET is the "name" of a network in the configuration directory. NETNS is the path of a network namespace.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@cli.command()
@network_command()
@click.option("--rollback", is_flag=True, help="If ADD fails, send DEL to the plugins that were called.")
def add(settings: Settings, rollback: bool) -> None:
    """Attach NETNS to NET and print the result."""
    result = settings.cni.add(settings.net, settings.rt, rollback=rollback)
    if result is None:
        return
    if for_people(settings.as_json):
        show.result(result, settings.net.name, settings.rt)
    else:
        put(results.encode(result))


@cli.command()
@network_command()
def check(settings: Settings) -> None:
    """Check that the attachment of NETNS is as ADD made it."""
    put_report("CHECK", settings, settings.cni.check(settings.net, settings.rt))


@cli.command(name="del")
@network_command()
def delete(settings: Settings) -> None:
    """Detach NETNS from NET."""
    put_report("DEL", settings, settings.cni.delete(settings.net, settings.rt))


@cli.command()
@network_command(netns_required=False)
def status(settings: Settings) -> None:
    """Ask the plugins of NET whether they can serve an ADD. NETNS is not used."""
    put_report("STATUS", settings, settings.cni.status(settings.net))


@cli.command(name="version")
@click.argument("types", metavar="[TYPE]...", nargs=-1)
@click.option("--bin-dir", multiple=True, metavar="DIR", help=BIN_DIR_HELP)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, also on a terminal and for errors.")
def show_version(types: Sequence[str], bin_dir: Sequence[str], as_json: bool) -> None:
    """Print fastcni's version and the CNI versions it supports.

    With TYPE, also print the CNI versions that the plugin of that type supports.
    """
    cni = CNI(plugin_dirs(bin_dir))
    plugins = {kind: cni.version_info(kind) for kind in types}
    if for_people(as_json):
        click.echo(f"fastcni {fastcni.__version__}, CNI {', '.join(version.ALL)}")
        for kind, supported in plugins.items():
            click.echo(show.printable(f"{kind}: CNI {', '.join(supported)}"))
        return
    document = {"version": fastcni.__version__, "cniVersion": version.CURRENT,
                "supportedVersions": list(version.ALL)}
    put_document({**document, "plugins": plugins} if types else document)


cli.add_command(adopt)
cli.add_command(agent)
cli.add_command(doctor)
cli.add_command(explain)
cli.add_command(fuse)
cli.add_command(unfuse)
cli.add_command(gc)
cli.add_command(inspect)
cli.add_command(ipam)
cli.add_command(list_attachments)
cli.add_command(install)
cli.add_command(uninstall)
cli.add_command(list_plugins)
cli.add_command(netconf)
cli.add_command(pod)
cli.add_command(policy)
cli.add_command(restore)
cli.add_command(selftest)
cli.add_command(serve)
cli.add_command(top)
cli.add_command(trace)
cli.add_command(bench)


def put_report(command: str, settings: Settings, report: Report) -> None:
    """Print the report of a command: one line of text, or a JSON document."""
    net = settings.net
    if for_people(settings.as_json):
        it = f"network {net.name}" if command == "STATUS" else reports.attachment(net, settings.rt)
        click.echo(show.printable(reports.sentence(command, it, report)))
    else:
        put_document(reports.document(command, net, report))

