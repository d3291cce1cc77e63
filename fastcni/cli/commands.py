"""The commands: cnitool's six jobs, what would be sent, and the installation."""

import os
from collections.abc import Sequence

import click

import fastcni
from fastcni.cli import netconf as plans
from fastcni.cli import show, tell
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

    NET is the name of a network in the configuration directory, NETNS the path of a network namespace.
    """
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


@cli.command()
@network_command()
@click.option("--rollback", is_flag=True, help="After a failure, DEL what was started.")
def add(settings: Settings, rollback: bool) -> None:
    """Attach the namespace NETNS to the network NET; print the result."""
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
    """Verify that the attachment of NETNS to NET is as ADD made it."""
    put_report("CHECK", settings, settings.cni.check(settings.net, settings.rt))


@cli.command(name="del")
@network_command()
def delete(settings: Settings) -> None:
    """Detach the namespace NETNS from the network NET."""
    put_report("DEL", settings, settings.cni.delete(settings.net, settings.rt))


@cli.command()
@network_command(netns_required=False)
def status(settings: Settings) -> None:
    """Ask the plugins of NET whether they can serve an ADD. NETNS is not needed."""
    put_report("STATUS", settings, settings.cni.status(settings.net))


@cli.command()
@network_command(netns_required=False)
@click.option("--command", type=click.Choice(["ADD", "CHECK", "DEL", "GC", "STATUS"], case_sensitive=False),
              default="ADD", show_default=True, help="The command that would be sent.")
def netconf(settings: Settings, command: str) -> None:
    """Show what would be sent to each plugin of NET; call none.

    The calls are in order. A prevResult is the remembered one of NETNS; an ADD has none to show.
    """
    plan = plans.make_plan(settings.cni, settings.net, settings.rt, command.upper())
    if for_people(settings.as_json):
        show.plan(plan)
    else:
        put_document([step.as_document() for step in plan])


@cli.command(name="version")
@click.argument("types", metavar="[TYPE]...", nargs=-1)
@click.option("--bin-dir", multiple=True, metavar="DIR", help="Plugins; may be repeated [CNI_PATH].")
@click.option("--json", "as_json", is_flag=True, help="JSON, also on a terminal and for errors.")
def show_version(types: Sequence[str], bin_dir: Sequence[str], as_json: bool) -> None:
    """Print fastcni's version and the CNI versions it speaks.

    With TYPE, also those that the plugin of that type says it speaks.
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
@click.option("--bin-dir", required=True, metavar="DIR", help="Where to write the plugins.")
@click.option("--interpreter", default=None, metavar="PATH", help="The Python to run them [this one].")
@click.option("--plugin", "types", multiple=True, metavar="TYPE", help="Only this one; may be repeated.")
@click.option("--systemd", is_flag=True, help="Write fastcni.socket and fastcni.service, too.")
@click.option("--unit-dir", default=None, metavar="DIR", help="Where to write them [/etc/systemd/system].")
@click.option("--json", "as_json", is_flag=True, help="JSON, also on a terminal and for errors.")
def install(bin_dir: str, interpreter: str | None, types: Sequence[str], systemd: bool, unit_dir: str | None,
            as_json: bool) -> None:
    """Write fastcni's plugins to a directory, each renamed into place.

    The plugins run without this package. The server, which --systemd writes units for, needs it: installed in the
    Python that runs this command, for as long as the units are used.
    """
    from fastcni.launcher import systemd as units
    from fastcni.launcher.install import InstallError
    from fastcni.launcher.install import install as write_launchers

    if unit_dir and not systemd:
        raise click.UsageError("--unit-dir is for --systemd")
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
    """One line for people, a document for programs."""
    net = settings.net
    if for_people(settings.as_json):
        it = f"network {net.name}" if command == "STATUS" else tell.attachment(net, settings.rt)
        click.echo(show.printable(tell.sentence(command, it, report)))
    else:
        put_document(tell.document(command, net, report))
