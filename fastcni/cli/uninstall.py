"""The command `fastcni uninstall`: restore the programs that `fastcni install` replaced, and remove fastcni's files and
state."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import click

from fastcni.cli.install import BIN_DIR, by_program, program_documents
from fastcni.cli.options.node import node_command
from fastcni.cli.options.settings import plugin_dirs
from fastcni.cli.text.output import put_document, put_lines
from fastcni.cli.text.show import wrapped
from fastcni.node.checks.findings import plural
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.launcher.uninstall import Uninstalled
    from fastcni.node.attachments.inventory import Places
    from fastcni.node.own.state import Holder
    from fastcni.node.own.uninstall import Report, State

MAX_SHOWN = 10                  # limit of the pods that the text report names


@click.command()
@click.option("--bin-dir", default=BIN_DIR, show_default=True, metavar="DIR", help="The directory of the plugins.")
@click.option("--unit-dir", default=None, metavar="DIR", help="The directory of the units [/etc/systemd/system].")
@click.option("--socket", default="/run/fastcni/fastcni.sock", show_default=True, envvar="FASTCNI_SOCKET",
              show_envvar=True, metavar="PATH", help="The socket of the server.")
@click.option("--wait", "wait_for_pods", is_flag=True, help="Wait until no pod needs fastcni's state. Remove the state "
              "of each pod as soon as the pod no longer exists.")
@click.option("--dry-run", is_flag=True, help="Show what would be restored and removed. Change nothing.")
@node_command
def uninstall(places: "Places", bin_dir: str, unit_dir: str | None, socket: str, wait_for_pods: bool, dry_run: bool,
              as_json: bool) -> None:
    """Restore the plugins that fastcni replaced.

    The command also removes the rest of fastcni. It replaces each plugin file in one step, even while pods are added
    and deleted. Then the command stops and removes the server and its systemd units, and removes fastcni's state that
    no pod needs: nftables tables, ipsets, files. fastcni keeps the tables, sets and files that running pods need.
    Repeat the command when these pods are deleted, or use --wait.

    If another plugin directory has fastcni's plugins, the command changes only the plugin files.
    """
    from fastcni.launcher import systemd
    from fastcni.launcher.install import InstallError
    from fastcni.node.own import uninstall as node

    if wait_for_pods and dry_run:
        raise click.UsageError("--wait changes the node, --dry-run does not")
    try:
        done = node.uninstall(bin_dir, plugin_dirs(()), unit_dir or systemd.UNIT_DIR, socket, places, dry_run=dry_run)
    except InstallError as e:
        raise CniError(errors.IO_FAILURE, str(e)) from e
    if not as_json:
        put_lines(report_lines(done, dry_run))
    if wait_for_pods and (done.state.needed or done.state.needed_files):
        before, done.state = done.state.released, node.wait(
            places, lambda state: put_lines(waiting_lines(state)) if not as_json else None)
        if not as_json:
            put_lines(state_lines(done.state, dry_run))
        done.state.released = before + done.state.released      # include the pods released before the wait
    if as_json:
        put_document(document(done, dry_run))


def report_lines(done: "Report", dry_run: bool) -> list[str]:
    """Return the report of the removal as lines of text."""
    would, state = "would be " if dry_run else "", done.state
    found = file_lines(done.files, would)
    if done.elsewhere:
        return [*found, *wrapped("units, server and state stay, because fastcni's plugins are also in ",
                                 done.elsewhere)]
    if done.units:
        found += wrapped(f"{would}stopped and removed: ", done.units)
    if done.server:
        found.append(f"{would}stopped: the server, process {done.server}")
    found += state_lines(state, dry_run)
    if not found:
        return [f"nothing of fastcni in {done.files.bin_dir} or on this node"]
    if not (state.needed or state.needed_files or state.kept or done.files.left):
        found.append(f"nothing of fastcni {'would be' if dry_run else 'is'} left")
    return found


def file_lines(done: "Uninstalled", would: str) -> list[str]:
    found = []
    if done.restored:
        found += [f"{would}restored in {done.bin_dir}:", *by_program(done.restored)]
    if done.removed:
        found += wrapped(f"{would}removed from {done.bin_dir}: ", done.removed)
    if done.left:
        found += [f"left in {done.bin_dir}, because another program wrote them after fastcni:",
                  *by_program(done.left)]
    return found


def state_lines(state: "State", dry_run: bool) -> list[str]:
    would, found = "would be " if dry_run else "", []
    if state.stranded:
        found.append(f"warning: no plugin can delete {plural(len(state.stranded), 'pod')} "
                     f"{'then' if dry_run else 'now'}, because only fastcni had the plugin:")
        found += shown([f"{it.container_id} {it.ifname} of network {it.network} ({', '.join(it.plugins)})"
                        for it in state.stranded])
        found.append("install plugins of these types, or install fastcni again until these pods are deleted: fastcni "
                     "install")
    if state.released:
        found.append(f"{would}released: the firewall state of {plural(len(state.released), 'deleted pod')}")
    if state.removed:
        found += wrapped(f"{would}removed: ", state.removed)
    found += [f"kept: {why}" for why in state.kept]
    found += [f"not seen: {text}" for text in state.unseen]
    if state.needed:
        found.append(f"{plural(len(state.needed), 'pod')} need{'s' if len(state.needed) == 1 else ''} fastcni's "
                     "firewall state, so it stays:")
        found += shown(state.needed)
    if state.needed_files:
        found += [f"{plural(len(state.needed_files), 'file')} of pods stay:", *shown(state.needed_files)]
    if state.needed or state.needed_files:
        found += ["when these pods have ended: repeat this command",
                  "to remove each pod's state when the pod ends: add --wait"]
    return found


def shown(holders: Sequence[object]) -> list[str]:
    more = len(holders) - MAX_SHOWN
    return [*(f"  {it}" for it in holders[:MAX_SHOWN]), *([f"  and {more} more"] if more > 0 else [])]


def waiting_lines(state: "State") -> list[str]:
    parts = [plural(len(some), noun) for some, noun in ((state.needed, "pod"), (state.needed_files, "file"))
             if some]
    return [f"waiting for {' and '.join(parts)} (Ctrl-C ends the wait; repeat the command to continue)"]


def document(done: "Report", dry_run: bool) -> dict[str, Any]:
    files, state = done.files, done.state
    return {"dryRun": dry_run, "binDir": files.bin_dir, "restored": program_documents(files.restored),
            "removed": files.removed, "left": program_documents(files.left), "elsewhere": done.elsewhere,
            "units": done.units, "server": done.server or None,
            "state": {"released": holder_documents(state.released), "removed": state.removed,
                      "needed": holder_documents(state.needed), "neededFiles": state.needed_files,
                      "stranded": [{"network": it.network, "containerID": it.container_id, "ifname": it.ifname,
                                    "plugins": list(it.plugins)} for it in state.stranded],
                      "kept": state.kept, "unseen": state.unseen}}


def holder_documents(holders: Iterable["Holder"]) -> list[dict[str, Any]]:
    return [{"network": it.attachment.network, "containerID": it.attachment.container_id,
             "ifname": it.attachment.ifname, "elements": it.elements, "why": it.why} for it in holders]
