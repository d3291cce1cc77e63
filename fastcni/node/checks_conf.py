"""Checks of configuration files and plugin files."""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterator

import fastcni
from fastcni import plugins
from fastcni.kit.call import search
from fastcni.launcher import core, identify, interpreters
from fastcni.node.findings import ERROR, WARNING, Finding, Node, plural, some
from fastcni.runtime import validate
from fastcni.runtime.parse import flattened
from fastcni.spec.errors import CniError


def conf_files(node: Node) -> Iterator[Finding]:
    """There are configuration files, and each is valid."""
    where = node.places.conf_dir
    if not node.seen.files:
        yield Finding(ERROR, f"{where} has no network configuration", "no pod can be added; kubelet says that the "
                      "network plugin is not ready", "put a .conflist file there, or name another --conf-dir")
    for file in node.seen.files:
        if file.net is None:
            yield Finding(ERROR, f"{file.path} is broken: {file.error}", "kubelet, CRI-O and fastcni skip the file; "
                          "Go's libcni refuses every network that is sorted behind it",
                          f"correct or remove {file.path}")


def one_file_a_name(node: Node) -> Iterator[Finding]:
    """No two files have one network."""
    first: dict[str, str] = {}
    for file in node.seen.files:
        if file.net:
            used = first.setdefault(file.net.name, file.path)
            if used != file.path:
                yield Finding(WARNING, f"{file.path} has network {file.net.name}, as {used} has", "runtimes use the "
                              "file that is sorted first, and ignore the other",
                              f"remove {file.path}, or change its name")


def keys(node: Node) -> Iterator[Finding]:
    """The keys of the configuration files are known, and their values valid; all plugins are installed."""
    for net in node.networks:
        for it in validate.validate(net, node.plugin_dirs):
            severity = ERROR if it.severity == validate.ERROR else WARNING
            why = "ADD fails" if severity == ERROR else "the configuration does not do what it seems to say"
            where = f"{it.file}: {it.where}" if it.file else f"network {net.name}: {it.where}"
            yield Finding(severity, f"{where}: {it.what}", why, it.hint or f"fastcni netconf --strict {net.name}")


def plugin_files(node: Node) -> Iterator[Finding]:
    """fastcni's plugin files are of this version, their interpreter exists, python_core.elf is the installed one."""
    for folder, kinds in own_files(node).items():
        old: dict[str, list[str]] = defaultdict(list)
        lost: dict[str, list[str]] = defaultdict(list)
        cores: dict[tuple[str, str, tuple[int, ...]], list[str]] = defaultdict(list)
        for kind in kinds:
            path = os.path.join(folder, kind)
            try:
                found = identify.identify(path)
            except (CniError, OSError) as e:
                node.unseen.append(f"plugin {path}: {e}")
                continue
            if found and found.version != fastcni.__version__:
                old[found.version or "an unknown version"].append(kind)
            if found and found.interpreter and not is_there(found.interpreter):
                lost[found.interpreter].append(kind)
            elif found and found.core:
                cores[found.core, found.interpreter, found.core_fields].append(kind)
            if not os.access(path, os.X_OK):
                yield Finding(ERROR, f"{path} cannot be executed", "ADD fails", f"chmod 755 {path}")
        again = f"fastcni install --bin-dir {folder}"
        for version, names in old.items():
            yield Finding(WARNING, f"{folder} has {plural(len(names), 'plugin')} of fastcni {version} ({some(names)}); "
                          f"this is {fastcni.__version__}", "plugins and command line differ in what they do", again)
        for path, names in lost.items():
            yield Finding(ERROR, f"the interpreter {path} of {plural(len(names), 'plugin')} in {folder} does not exist",
                          "one-shot requests need another Python of the same version, or fail", again)
        for (own, path, fields), names in cores.items():
            yield from core_findings(own, fields, path, f"{plural(len(names), 'plugin')} in {folder}", again)


def core_findings(path: str, fields: tuple[int, ...], interpreter: str, whose: str, again: str) -> Iterator[Finding]:
    """python_core.elf exists, is the file of the installation, and of the interpreter's build. fields: Core.fields() of
    the plugin files. again: the command that writes the plugin files."""
    slower = "one-shot requests start the interpreter, and take longer"
    if not is_there(path):
        yield Finding(WARNING, f"{path} of {whose} does not exist", "one-shot requests take longer", again)
    elif os.access(path, os.R_OK) and not core.is_installed(path, fields):
        yield Finding(WARNING, f"{path} of {whose} is not the file that was installed", slower,
                      f"install the package fastcni again if the file may be damaged, then {again}")
    elif os.access(path, os.X_OK) and not interpreters.core_of(interpreter, os.path.dirname(path)):
        yield Finding(WARNING, f"{path} of {whose} is of another build than {interpreter}", slower,
                      f"build and install fastcni with {interpreter} again, then {again}")


def is_there(path: str) -> bool:
    """Whether a file exists; True also where this user may not look."""
    try:
        os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def own_files(node: Node) -> dict[str, list[str]]:
    """{folder: names of fastcni's plugin files}; folders without any are left out."""
    found = {}
    for folder in node.plugin_dirs:
        try:
            names = sorted(os.listdir(folder))
        except OSError:
            continue
        if kinds := [name for name in names if is_own(os.path.join(folder, name))]:
            found[folder] = kinds
    return found


def is_own(path: str) -> bool:
    """Whether a file is a plugin file of fastcni."""
    try:
        return search.is_own(path)
    except CniError:
        return False


def foreign_plugins(node: Node) -> Iterator[Finding]:
    """The plugins of configured networks are fastcni's, if fastcni has them."""
    used = list(node.types) + [it for net in node.networks for plugin in flattened(net.plugins)
                               if (it := validate.text_at(plugin.values, "ipam", "type"))]
    foreign: dict[str, list[str]] = defaultdict(list)
    for kind in dict.fromkeys(used):
        try:
            path = search.find(kind, node.plugin_dirs)
        except CniError:
            continue                        # keys() reports it
        if kind in plugins.BUILT_IN and not is_own(path):
            foreign[os.path.dirname(path)].append(kind)
    for folder, names in foreign.items():
        yield Finding(WARNING, f"{some(names, 6)} in {folder} {'is' if len(names) == 1 else 'are'} not fastcni's",
                      "runtimes call another implementation", f"fastcni install --bin-dir {folder}")
