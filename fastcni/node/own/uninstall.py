"""Remove fastcni from a node: plugin files, systemd units, the server, and all state that no pod needs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from errno import ENOBUFS

from fastcni.agent import masquerade
from fastcni.agent.policy import ruleset
from fastcni.kernel import nft, uapi, wire
from fastcni.kit.dhcp.rpc import SOCKET_PATH
from fastcni.launcher import systemd
from fastcni.launcher.identify import is_own_file
from fastcni.launcher.uninstall import Uninstalled, uninstall_plugins
from fastcni.node import confs, dhcp_leases, server_process
from fastcni.node.attachments import address_dirs
from fastcni.node.attachments.attachment import RUNNING, UNKNOWN, NodeAttachment
from fastcni.node.attachments.inventory import Places
from fastcni.node.checks.findings import plural, some
from fastcni.node.cluster import state as cluster_state
from fastcni.node.own import datapath as own_datapath
from fastcni.node.own import files as own_files
from fastcni.node.own import state as own_state
from fastcni.node.own import tables as own_tables
from fastcni.node.own.state import Holder
from fastcni.plugins import chain
from fastcni.runtime.mode import SharedMode
from fastcni.spec import errors
from fastcni.spec.errors import CniError

# {plugin type that only fastcni has: what an operator must do before the uninstall}
ONLY_HERE = {chain.KIND: "fastcni unfuse {path}",
             "policy": "remove the plugin from {path}; if the node agent has written the file: fastcni agent --leave"}
AGENT_TABLES = (masquerade.TABLE, ruleset.TABLE)
LOOK_AGAIN_S = 10.0             # seconds until wait() checks without a notification: some pods have no link on the host
# Seconds after a link's deletion, at which wait() checks again: meanwhile the runtime removes the rest of the pod.
AFTER_LINK_S = (0.1, 0.3, 0.6, 1.0, 3.0)


@dataclass(slots=True)
class State:
    """fastcni's own state: what was removed, and what stays.

    released: attachments without a pod whose elements were deleted. removed: texts of removed tables, ipsets and files.
    needed: attachments whose elements a pod needs. needed_files: files that a pod needs. stranded: attachments of pods
    whose network needs a plugin that only fastcni had, so that DEL will fail. kept: other reasons why state stays.
    unseen: texts about what could not be read.
    """

    released: list[Holder] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    needed: list[Holder] = field(default_factory=list)
    needed_files: list[str] = field(default_factory=list)
    stranded: list[NodeAttachment] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Report:
    """The outcome of an uninstall, or of its dry run. elsewhere: other directories with fastcni's plugin files; if one
    exists, units, server and state stay. server: the pid of the server that was stopped, 0 for no server."""

    files: Uninstalled
    elsewhere: list[str]
    units: list[str] = field(default_factory=list)
    server: int = 0
    state: State = field(default_factory=State)


def uninstall(bin_dir: str, bin_dirs: Sequence[str], unit_dir: str, socket: str, places: Places, *,
              dry_run: bool = False) -> Report:
    """Remove fastcni from this node, except for state that pods need. dry_run: only report, and change nothing.

    bin_dirs: the directories in which runtimes may look for plugins. socket: the server's socket, "" for none. Raises
    InstallError, CniError, OSError; in that case a second call finishes the work.
    """
    check_lists(places.conf_dir)
    report = Report(uninstall_plugins(bin_dir, dry_run=dry_run), others(bin_dir, bin_dirs))
    if report.elsewhere:
        return report
    report.units = systemd.installed_units(unit_dir)
    if not dry_run:
        systemd.remove_units(report.units)
    # The server ends before its tables are removed, because a server would restore the tables.
    kept = stop_server(report, socket, dry_run) if socket else []
    report.state = State(kept=kept) if kept else remove_state(places, dry_run, report.files.removed)
    if socket and not dry_run and not kept:
        report.state.removed += server_process.remove_files(socket)
    return report


def check_lists(conf_dir: str) -> None:
    """Check that no network needs a plugin that only fastcni has. Raises CniError 7 if a network needs such a
    plugin."""
    for file in confs.read_quietly(conf_dir, []):
        if not file.net:
            continue
        for plugin in file.net.plugins:
            if plugin.type in ONLY_HERE:
                raise CniError(errors.INVALID_CONFIG, f"{file.path} has the plugin {plugin.type}, which is fastcni's "
                               f"alone: no pod of network {file.net.name} could be added",
                               ONLY_HERE[plugin.type].format(path=file.path))


def others(bin_dir: str, bin_dirs: Sequence[str]) -> list[str]:
    """Return the directories in `bin_dirs`, other than `bin_dir`, that have fastcni's plugin files."""
    here, found = os.path.realpath(bin_dir), []
    for where in bin_dirs:
        if os.path.realpath(where) != here and os.path.isdir(where) and any(
                is_own_file(os.path.join(where, name)) for name in os.listdir(where)):
            found.append(where)
    return found


def stop_server(report: Report, path: str, dry_run: bool) -> list[str]:
    """Stop the server at a socket. Return why a server still runs; [] if no server runs. Raises OSError."""
    pid = server_process.listener(path)
    if not pid:
        return []
    if not server_process.owns_lock(path):
        if dry_run and report.units:
            return []                   # the uninstall will stop the units of this process
        return [f"process {pid} listens at {path}, and fastcni did not make this socket: stop the socket's units"]
    report.server = pid
    if dry_run or server_process.stop(pid):
        return []
    return [f"the server, process {pid}, has not ended within {server_process.STOP_S} seconds after SIGTERM"]


def remove_state(places: Places, dry_run: bool = False, missing: Collection[str] = ()) -> State:
    """Remove the state that no pod needs, in the calling thread's network namespace.

    missing: the CNI types that no longer have a plugin. Raises CniError, OSError.
    """
    found = own_state.find(places)
    done = State(released=found.dead, needed=found.needed, unseen=list(found.unseen))
    done.stranded = [it for it in found.known
                     if it.state in (RUNNING, UNKNOWN) and set(missing).intersection(it.plugins)]
    free, done.needed_files = own_files.find(found)
    free += sort_leases(done)
    done.kept += kept_blocks(places)
    with closing(SharedMode()) as mode:
        done.kept += [f"nftables table inet {name}, which is the node agent's: fastcni agent --leave, with its options"
                      for _, name in own_state.tables.tables(mode.firewall) if name in AGENT_TABLES]
        if dry_run:
            families = [] if done.needed else own_state.own_tables(mode)
            done.removed = [*(f"nftables table {nft.FAMILIES[each]} {own_state.TABLE}"
                              for each in families), *free, *own_datapath.pinned(mode.route)]
            return done
        own_state.release(mode, {it.hashes for it in found.dead})
        if not done.needed:
            done.removed, why = own_tables.remove_all(mode)
            done.kept += why
        done.removed += [*own_files.remove(free), *remove_datapath(mode)]
        return done


def remove_datapath(mode: SharedMode) -> list[str]:
    """Remove the datapath ebpf. Connections of running pods continue through the host's stack. Return the removed
    directory in a list, [] if none existed."""
    found = own_datapath.pinned(mode.route)
    if found:
        own_datapath.remove(mode.route)
    return found


def sort_leases(done: State) -> list[str]:
    """Record in `done` the dhcp leases that stay. Return the files of the leases that no pod needs."""
    leases = dhcp_leases.read()
    if leases.found and server_process.owns_lock(SOCKET_PATH):
        done.kept.append(f"{plural(len(leases.found), 'dhcp lease')} in {leases.directory}, because a dhcp daemon of "
                         f"fastcni listens at {SOCKET_PATH}: stop the daemon, and repeat this command")
        return []
    if leases.running:
        done.needed_files += [it.path for it in leases.running]
        done.kept.append(f"{plural(len(leases.running), 'dhcp lease')} of running pods, which nothing renews any more: "
                         f"delete these pods ({some(f'{it.address} of {it.pod}' for it in leases.running)})")
    return [*(it.path for it in leases.over), *leases.damaged]


def kept_blocks(places: Places) -> list[str]:
    """Return a sentence for each directory that has blocks of cluster-wide addresses: why the directory stays."""
    unseen: list[str] = []
    values = confs.values_of(confs.networks(confs.read_quietly(places.conf_dir, unseen)))
    return [f"{it.directory}, because node {it.node} has {plural(it.blocks, 'block')} of {it.where}. When no pod here "
            f"has such an address, free the blocks: fastcni ipam forget-node {it.node}, on another node; then "
            f"rm -r {it.directory}"
            for it in cluster_state.held(address_dirs.cluster_dirs(values), unseen)]


def wait(places: Places, note: Callable[[State], object]) -> State:
    """Repeat remove_state() after each deletion of a link, until no pod needs any state. Call note(state) when the
    number of attachments and files that pods need has changed.

    The returned State lists all attachments that were released during the wait. Raises CniError, OSError.
    """
    released: list[Holder] = []
    with wire.open_socket(groups=(uapi.RTNLGRP_LINK,)) as sock:
        pauses, last = list(AFTER_LINK_S), -1
        while True:
            state = remove_state(places)
            released += state.released
            count = len(state.needed) + len(state.needed_files)
            if not count:
                state.released = released
                return state
            if count != last:
                last = count
                note(state)
            if link_goes(sock, pauses.pop(0) if pauses else LOOK_AGAIN_S):
                pauses = list(AFTER_LINK_S)


def link_goes(sock: wire.Socket, seconds: float) -> bool:
    """Wait until a link is deleted, for at most `seconds`. Return whether a link was deleted. Raises OSError."""
    deadline = time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        try:
            messages = wire.watch(sock, left)
        except OSError as e:
            if e.errno != ENOBUFS:
                raise
            return True                 # the kernel has dropped notifications
        if any(kind == uapi.RTM_DELLINK for kind, *_ in messages):
            wire.forget(sock)
            return True
    return False
