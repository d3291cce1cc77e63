"""The commands of the fastcni command line: those of cnitool, netconf, version and install."""

import os
from collections.abc import Sequence

import click

import fastcni
from fastcni.cli import netconf as plans
from fastcni.cli import reports, show
from fastcni.cli.bench import bench
from fastcni.cli.gc import gc
from fastcni.cli.output import for_people, put, put_document
from fastcni.cli.plugins import list_plugins
from fastcni.cli.restore import restore
from fastcni.cli.serve import serve
from fastcni.cli.settings import Settings, network_command, plugin_dirs
from fastcni.runtime import CNI, Report
from fastcni.spec import errors, version
from fastcni.spec import result as results
from fastcni.spec.errors import CniError


@click.group(invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
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


@cli.command()
@network_command(netns_required=False)
@click.option("--command", type=click.Choice(["ADD", "CHECK", "DEL", "GC", "STATUS"], case_sensitive=False),
              default="ADD", show_default=True, help="The CNI command to show.")
def netconf(settings: Settings, command: str) -> None:
    """Show what a command would send to each plugin of NET. No plugin is called.

    CHECK and DEL show the cached result of NETNS as prevResult. ADD shows none: each plugin would get the result of
    the plugin before.
    """
    plan = plans.make_plan(settings.cni, settings.net, settings.rt, command.upper())
    if for_people(settings.as_json):
        show.plan(plan)
    else:
        put_document([step.as_document() for step in plan])


@cli.command(name="version")
@click.argument("types", metavar="[TYPE]...", nargs=-1)
@click.option("--bin-dir", multiple=True, metavar="DIR", help="A plugin directory; may be repeated [CNI_PATH].")
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


@cli.command()
@click.option("--bin-dir", required=True, metavar="DIR", help="The directory for the plugins, usually /opt/cni/bin.")
@click.option("--interpreter", default=None, metavar="PATH", help="The Python that runs the plugins [this one].")
@click.option("--plugin", "types", multiple=True, metavar="TYPE",
              help="Write only this plugin; may be repeated [all plugins].")
@click.option("--systemd", is_flag=True, help="Also write fastcni.socket and fastcni.service.")
@click.option("--unit-dir", default=None, metavar="DIR", help="The directory for these [/etc/systemd/system].")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, also on a terminal and for errors.")
def install(bin_dir: str, interpreter: str | None, types: Sequence[str], systemd: bool, unit_dir: str | None,
            as_json: bool) -> None:
    """Write fastcni's plugins to a directory.

    Each file replaces the old one in one step, also while that runs. The plugins do not need this package afterwards.
    The server does: the units of --systemd start the Python that runs this command, so keep that installation.
    """
    from fastcni.launcher import systemd as units
    from fastcni.launcher.install import InstallError
    from fastcni.launcher.install import install as write_launchers

    if unit_dir and not systemd:
        raise click.UsageError("--unit-dir needs --systemd")
    try:
        paths = [os.fspath(path) for path in write_launchers(bin_dir, interpreter, types or None)]
        written = units.install_units(unit_dir or units.UNIT_DIR) if systemd else []
    except InstallError as e:
        raise CniError(errors.IO_FAILURE, str(e)) from e
    if not for_people(as_json):
        put_document(paths + written)
        return
    click.echo(f"wrote {len(paths)} plugins to {bin_dir}: {', '.join(map(os.path.basename, paths))}")
    if written:
        click.echo(f"wrote {' and '.join(written)}; next: {units.NEXT}")


cli.add_command(gc)
cli.add_command(list_plugins)
cli.add_command(restore)
cli.add_command(serve)
cli.add_command(bench)


def put_report(command: str, settings: Settings, report: Report) -> None:
    """Print the report of a command: one line of text, or a JSON document."""
    net = settings.net
    if for_people(settings.as_json):
        it = f"network {net.name}" if command == "STATUS" else reports.attachment(net, settings.rt)
        click.echo(show.printable(reports.sentence(command, it, report)))
    else:
        put_document(reports.document(command, net, report))

