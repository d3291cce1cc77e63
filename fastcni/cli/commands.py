"""The commands: cnitool's six jobs, what would be sent, and the installation."""

import os
import sys
from collections.abc import Sequence

import click

import fastcni
from fastcni.cli import netconf as plans
from fastcni.cli import show
from fastcni.cli.bench import bench
from fastcni.cli.output import for_people, put, put_document
from fastcni.cli.plugins import list_plugins
from fastcni.cli.restore import restore
from fastcni.cli.serve import serve
from fastcni.cli.settings import Settings, network_command, plugin_dirs
from fastcni.runtime import CNI
from fastcni.spec import errors, json, version
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
    settings.cni.check(settings.net, settings.rt)
    done(settings, f"{about(settings)} is as it should be")


@cli.command(name="del")
@network_command()
def delete(settings: Settings) -> None:
    """Detach the namespace NETNS from the network NET."""
    settings.cni.delete(settings.net, settings.rt)
    done(settings, f"{about(settings)} is deleted")


@cli.command()
@network_command(netns_required=False)
@click.option("--valid", multiple=True, metavar="CONTAINERID/IFNAME",
              help="An attachment to keep; may be repeated. Without any, none is kept.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def gc(settings: Settings, valid: Sequence[str], yes: bool) -> None:
    """Release what belongs to no valid attachment of NET. NETNS is not needed."""
    pairs = [read_valid(text) for text in valid]
    if not pairs and not yes and sys.stdin.isatty() and for_people(settings.as_json):
        held = [it for it in settings.cni.attachments() if it.network == settings.net.name]
        click.confirm(f"Delete every remembered attachment of {settings.net.name} ({len(held)})?", abort=True)
    settings.cni.gc(settings.net, pairs or None)
    done(settings, f"network {settings.net.name} is cleaned up; attachments kept: {len(pairs)}")


@cli.command()
@network_command(netns_required=False)
def status(settings: Settings) -> None:
    """Ask the plugins of NET whether they can serve an ADD. NETNS is not needed."""
    settings.cni.status(settings.net)
    done(settings, f"network {settings.net.name} is ready")


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


cli.add_command(list_plugins)
cli.add_command(restore)
cli.add_command(serve)
cli.add_command(bench)


def read_valid(text: str) -> tuple[str, str]:
    container_id, slash, ifname = text.partition("/")
    if not (container_id and slash and ifname):
        raise CniError(errors.INVALID_ENVIRONMENT,
                       f"--valid: expected CONTAINERID/IFNAME, got {json.quote(text)}")
    return container_id, ifname


def about(settings: Settings) -> str:
    rt = settings.rt
    return f"{rt.ifname} of container {rt.container_id} in network {settings.net.name}"


def done(settings: Settings, text: str) -> None:
    """One line for people; nothing in a pipe, as cnitool."""
    if for_people(settings.as_json):
        click.echo(show.printable(text))
