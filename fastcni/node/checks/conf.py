"""Check configuration files and plugin files."""

from __future__ import annotations

import errno
import os
from collections import defaultdict
from collections.abc import Iterator

import fastcni
from fastcni import plugins
from fastcni.kit.call import search
from fastcni.launcher import core, identify, interpreters
from fastcni.node.checks.findings import ERROR, WARNING, Finding, Node, plural, some
from fastcni.runtime import validate
from fastcni.runtime.parse import flattened
from fastcni.spec.errors import CniError


def conf_files(node: Node) -> Iterator[Finding]:
    """Configuration files exist, and each is valid."""
    where = node.places.conf_dir
    if not node.seen.files and not any(where in text for text in node.inventory.unseen):
        yield Finding(ERROR, f"{where} has no network configuration", "no pod can be added; kubelet says that the "
                      "network plugin is not ready", "put a .conflist file there, or name another --conf-dir")
    for file in node.seen.files:
        if file.net is None and not file.unreadable:
            yield Finding(ERROR, f"{file.path} is broken: {file.error}", "kubelet, CRI-O and fastcni skip the file; "
                          "Go's libcni rejects every network whose file is sorted behind this file",
                          f"correct or remove {file.path}")


def one_file_a_name(node: Node) -> Iterator[Finding]:
    """Each network is in only one file."""
    first: dict[str, str] = {}
    for file in node.seen.files:
        if file.net:
            used = first.setdefault(file.net.name, file.path)
            if used != file.path:
                yield Finding(WARNING, f"{file.path} has network {file.net.name}, as {used} has",
                              "runtimes use the file that is sorted first, and ignore the other",
                              f"remove {file.path}, or rename the network in this file")


def keys(node: Node) -> Iterator[Finding]:
    """The keys of the configuration files are known, and their values valid; all plugins are installed."""
    places: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for net in node.networks:
        for it in validate.validate(net, node.plugin_dirs):
            places[it.severity, it.what, it.hint or f"fastcni netconf --strict {net.name}"].append(
                f"{it.file}: {it.where}" if it.file else f"network {net.name}: {it.where}")
    for (severity, what, do), where in places.items():
        found = f"{some(where)}: {what}"
        if severity == validate.ERROR:
            yield Finding(ERROR, found, "ADD fails", do)
        else:
            yield Finding(WARNING, found, "the configuration may have another effect than its author expects", do)


def plugin_files(node: Node) -> Iterator[Finding]:
    """Plugin files are complete and of this version; their interpreter and python_core.elf are the installed ones."""
    for directory, kinds in own_files(node).items():
        damaged: list[str] = []
        old: dict[str, list[str]] = defaultdict(list)
        lost: dict[str, list[str]] = defaultdict(list)
        cores: dict[tuple[str, str, tuple[int, ...]], list[str]] = defaultdict(list)
        closed: dict[int, list[str]] = defaultdict(list)        # by inode, because several names are links to one file
        for kind in kinds:
            path = os.path.join(directory, kind)
            try:
                found = identify.identify(path)
            except (CniError, OSError) as e:
                node.unseen.append(f"plugin {path}: {e}")
                continue
            if found and found.damaged:
                damaged.append(kind)
                continue
            if found and found.version != fastcni.__version__:
                old[found.version or "an unknown version"].append(kind)
            if found and found.interpreter and not is_there(found.interpreter):
                lost[found.interpreter].append(kind)
            elif found and found.core:
                cores[found.core, found.interpreter, found.core_fields].append(kind)
            status = os.stat(path)
            if not status.st_mode & 0o111:
                closed[status.st_ino].append(kind)
        if closed:
            names = [name for links in closed.values() for name in links]
            yield Finding(ERROR, f"{plural(len(names), 'plugin')} in {directory} cannot be executed: {some(names)}",
                          "ADD fails",
                          "chmod 755 " + " ".join(os.path.join(directory, links[0]) for links in closed.values()))
        again = f"fastcni install --bin-dir {directory}"
        yield from damaged_plugins(directory, damaged)
        for version, names in old.items():
            yield Finding(WARNING, f"{directory} has {plural(len(names), 'plugin')} of fastcni {version} "
                          f"({some(names)}); this is {fastcni.__version__}",
                          "plugins and command line may behave differently", again)
        for path, names in lost.items():
            yield Finding(ERROR,
                          f"the interpreter {path} of {plural(len(names), 'plugin')} in {directory} does not exist",
                          "one-shot requests need another Python of the same version, or fail", again)
        for (own, path, fields), names in cores.items():
            try:
                yield from core_findings(own, fields, path, f"{plural(len(names), 'plugin')} in {directory}", again)
            except PermissionError as e:
                node.unseen.append(f"python_core.elf of {directory}: {e}")


def damaged_plugins(directory: str, names: list[str]) -> Iterator[Finding]:
    """Yield a finding for the plugin files `names`, which are cut off or no programs."""
    if names:
        yield Finding(ERROR, f"{plural(len(names), 'plugin')} in {directory} {'is' if len(names) == 1 else 'are'} "
                      f"damaged: {some(names, 6)}", "ADD fails", f"fastcni install --bin-dir {directory}")


def core_findings(path: str, fields: tuple[int, ...], interpreter: str, whose: str, again: str) -> Iterator[Finding]:
    """Yield a finding if python_core.elf does not exist, is not the installed file, or is of another build than the
    interpreter. fields: core.fields_of() of the plugin files. whose: the plugin files, as text. again: the command that
    writes the plugin files. Raises PermissionError if this user may not read the file.
    """
    slower = "one-shot requests start the interpreter, and take longer"
    if not is_there(path):
        yield Finding(WARNING, f"{path} of {whose} does not exist", "one-shot requests take longer", again)
    elif not core.is_installed(path, fields):
        yield Finding(WARNING, f"{path} of {whose} is not the file that was installed", slower,
                      f"install the package fastcni again if the file may be damaged, then {again}")
    elif not interpreters.same_build(path, interpreter):
        yield Finding(WARNING, f"{path} of {whose} is of another build than {interpreter}", slower,
                      f"build and install fastcni with {interpreter} again, then {again}")


def is_there(path: str) -> bool:
    """Return whether a file exists. Return True also if this user has no permission to check."""
    try:
        os.stat(path)
    except OSError as e:
        return not isinstance(e, (FileNotFoundError, NotADirectoryError))
    return True


def own_files(node: Node) -> dict[str, list[str]]:
    """Return {directory: names of fastcni's plugin files}. Leave out directories that have no such file."""
    found = {}
    for directory in node.plugin_dirs:
        if not os.path.isdir(directory):
            continue
        if not os.access(directory, os.R_OK | os.X_OK, effective_ids=True):
            node.unseen.append(f"plugins in {directory}: {os.strerror(errno.EACCES)}")
            continue
        names = sorted(os.listdir(directory))
        unseen: list[str] = []
        if kinds := [name for name in names if is_own(os.path.join(directory, name), unseen)]:
            found[directory] = kinds
        if unseen:
            node.unseen.append(some(unseen))
    return found


def is_own(path: str, unseen: list[str], unknown: bool = False) -> bool:
    """Return whether a file is a plugin file of fastcni. If the file cannot be read, add a text to `unseen`, and return
    `unknown`."""
    try:
        if search.is_own(path):
            return True
        if not os.path.isfile(path) or os.access(path, os.R_OK, effective_ids=True):
            return False
        unseen.append(f"plugin {path}: {os.strerror(errno.EACCES)}")
    except CniError as e:
        unseen.append(e.msg)
    return unknown


def foreign_plugins(node: Node) -> Iterator[Finding]:
    """Configured networks use fastcni's plugins, if fastcni has plugins of these types."""
    damaged: dict[str, list[str]] = defaultdict(list)
    used = list(node.types) + [it for net in node.networks for plugin in flattened(net.plugins)
                               if (it := validate.text_at(plugin.values, "ipam", "type"))]
    foreign: dict[str, list[str]] = defaultdict(list)
    for kind in dict.fromkeys(used):
        try:
            path = search.find(kind, node.plugin_dirs)
        except CniError:
            continue                        # the check keys() reports the error
        if kind in plugins.BUILT_IN and not is_own(path, node.unseen, unknown=True):
            (foreign if identify.is_program(path) else damaged)[os.path.dirname(path)].append(kind)
    for directory, names in damaged.items():
        yield from damaged_plugins(directory, names)
    for directory, names in foreign.items():
        yield Finding(WARNING, f"{some(names, 6)} in {directory} {'is' if len(names) == 1 else 'are'} not fastcni's",
                      "runtimes call another implementation", f"fastcni install --bin-dir {directory}")
