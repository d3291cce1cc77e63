"""The command `fastcni install`: write the plugin files and, with --systemd, the units."""

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from fastcni.cli.options import completion
from fastcni.cli.text.output import json_option, put_document, put_lines
from fastcni.cli.text.show import wrapped
from fastcni.node.checks.findings import plural
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.launcher.identify import Program
    from fastcni.launcher.install import Installed

BIN_DIR = "/opt/cni/bin"
AUTOSTART_IDLE_MIN = 60.0


@click.command()
@click.option("--bin-dir", default=BIN_DIR, show_default=True, metavar="DIR", help="The directory for the plugins.")
@click.option("--interpreter", default=None, metavar="PATH", help="The Python that runs the plugins [this one].")
@click.option("--plugin", "types", multiple=True, metavar="TYPE", shell_complete=completion.plugin_types,
              help="Write only this plugin; may be repeated [all plugins].")
@click.option("--netavark-dir", default=None, metavar="DIR", help="Also write podman's network driver DIR/fastcni, "
              "for podman 4.4 and later.")
@click.option("--systemd", is_flag=True, help="Also write the units of the server, and those that repeat this "
              "command when the interpreter changes.")
@click.option("--unit-dir", default=None, metavar="DIR", help="The directory of the units [/etc/systemd/system].")
@click.option("--dhcp", is_flag=True, help="With --systemd, also write the units of `dhcp daemon`.")
@click.option("--autostart", is_flag=True, help="Let a plugin that finds no server start one: for nodes "
              "without systemd.")
@click.option("--idle-exit", "idle_exit_min", default=None, type=click.FloatRange(0), metavar="MINUTES",
              help="The server of --autostart or --systemd ends after this time without a request; 0: never  "
                   "[default: 60 with --autostart, else 0].")
@click.option("--dry-run", is_flag=True, help="Show what would be written and replaced. Write nothing.")
@json_option
def install(bin_dir: str, interpreter: str | None, types: Sequence[str], netavark_dir: str | None, systemd: bool,
            unit_dir: str | None, dhcp: bool, autostart: bool, idle_exit_min: float | None, dry_run: bool,
            as_json: bool) -> None:
    """Write fastcni's plugins to a directory.

    The command replaces each file in one step, even while the old file runs. It keeps files of other programs in the
    subdirectory .fastcni-replaced, from which `fastcni uninstall` restores them. The plugins do not need this package
    afterwards. The server needs it: --systemd and --autostart start the Python that runs this command, so keep that
    installation.
    """
    from fastcni.launcher import systemd as units
    from fastcni.launcher.install import InstallError, install_plugins

    if unit_dir and not systemd:
        raise click.UsageError("--unit-dir needs --systemd")
    if dhcp and not systemd:
        raise click.UsageError("--dhcp needs --systemd")
    if dhcp and types and "dhcp" not in types:
        raise click.UsageError("--dhcp needs the plugin dhcp: add --plugin dhcp")
    if systemd and autostart:
        raise click.UsageError("--systemd starts a server already; --autostart is for nodes without it")
    if idle_exit_min is not None and not (systemd or autostart):
        raise click.UsageError("--idle-exit needs --systemd or --autostart")
    try:
        # own_command() may fail, so it runs before the command writes any file.
        command = units.own_command() if systemd or autostart else []
        idle_exit_min = AUTOSTART_IDLE_MIN if autostart and idle_exit_min is None else idle_exit_min
        if idle_exit_min:
            command += ["--idle-exit", f"{idle_exit_min:g}"]
        server = [*command, "--detached"] if autostart else []
        done = install_plugins(bin_dir, interpreter, types or None, server=server, dry_run=dry_run,
                               netavark_dir=netavark_dir or "")
        written = units.install_units(unit_dir or units.UNIT_DIR, command, done, types,
                                      dhcp=dhcp, dry_run=dry_run) if systemd else []
    except InstallError as e:
        raise CniError(errors.IO_FAILURE, str(e)) from e
    if not as_json:
        put_lines(lines(done, written, dry_run))
    else:
        put_document(document(done, written, dry_run))


def lines(done: "Installed", written: Sequence[str], dry_run: bool) -> list[str]:
    """Return the report of the installation as lines of text. written: the unit files."""
    from fastcni.launcher import replaced, systemd

    verb = "would write" if dry_run else "wrote"
    found = [*wrapped(f"{verb} {plural(len(done.plugins), 'plugin')} to {done.bin_dir}: ", done.plugins),
             f"they run {done.interpreter}"]
    if done.netavark_dir:
        found += wrapped(f"{verb} podman's network driver fastcni to {done.netavark_dir}", ())
    before = {name: program for name, program in done.plugins.items() if program}
    if before:
        found.append("would replace:" if dry_run else "replaced:")
        found += by_program(before)
    if done.kept:
        found.append(f"{'would keep' if dry_run else 'kept'} {plural(len(done.kept), 'replaced file')} in "
                     f"{replaced.directory(done.bin_dir)}")
    if written:
        found += wrapped(f"{verb} units to {os.path.dirname(written[0])}: ", map(os.path.basename, written))
    if done.server:
        found += wrapped(f"a request that finds no server starts one: {' '.join(done.server)}", ())
        if not dry_run and (pid := running_server()) > 1:           # 1: systemd listens at the socket
            found.append(f"a server runs, process {pid}; after an upgrade, end it: kill {pid}")
    if not dry_run:
        found += [f"next: {systemd.next_command(written)}"] if written else []
        found.append(f"to undo this: fastcni uninstall --bin-dir {done.bin_dir}")
    return found


def running_server() -> int:
    """Return the process id of the server at the default socket; 0 if no server is found or another user runs it."""
    from fastcni.daemon.listening import PATH
    from fastcni.node import server_process

    try:
        return server_process.listener(PATH)
    except OSError:
        return 0                        # the process belongs to another user


def by_program(programs: Mapping[str, "Program | None"]) -> list[str]:
    """Return lines with the programs' names. Programs of the same kind and version share a line."""
    groups: dict[str, list[str]] = {}
    for name, program in programs.items():
        groups.setdefault(str(program), []).append(name)
    return [line for text, names in groups.items() for line in wrapped(f"  {text}: ", names)]


def document(done: "Installed", written: Sequence[str], dry_run: bool) -> dict[str, Any]:
    return {"dryRun": dry_run, "binDir": done.bin_dir, "interpreter": done.interpreter,
            "plugins": [{"name": name, "path": os.path.join(done.bin_dir, name),
                         "replaced": program_document(program), "kept": name in done.kept}
                        for name, program in done.plugins.items()],
            "units": list(written), "server": list(done.server), "netavarkDir": done.netavark_dir}


def program_document(program: "Program | None") -> dict[str, Any] | None:
    keys = ("kind", "version", "size", "target", "interpreter", "python", "core")
    return {key: value for key in keys if (value := getattr(program, key)) != ""} if program else None


def program_documents(programs: Mapping[str, "Program | None"]) -> list[dict[str, Any]]:
    return [{"name": name, "program": program_document(program)} for name, program in programs.items()]


