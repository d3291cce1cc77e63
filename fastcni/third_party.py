"""Find and load plugins of other distributions, which declare them in the entry point group `fastcni.plugins`.

    [project.entry-points."fastcni.plugins"]
    hello = "fastcni_hello"                 # CNI type = "package.module"

Only long-lived processes and the installer search for such plugins. A plugin file lists the plugins of other
distributions in its own table (launcher/pack.py). docs/write-a-plugin.md is the guide for authors.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from importlib.machinery import PathFinder

from fastcni import plugins
from fastcni.spec.config import is_name
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from importlib import metadata

GROUP = "fastcni.plugins"


class ThirdParty:
    """A plugin that a distribution declares.

    kind          the CNI type
    module        "package.module"
    distribution  name and version, as in "fastcni-hello 1.0"
    packages      the top-level packages and modules of that distribution
    problem       why the plugin cannot be used, "" if it can
    """

    __slots__ = ("kind", "module", "distribution", "packages", "problem")

    def __init__(self, kind: str, module: str, distribution: str, packages: frozenset[str]) -> None:
        self.kind, self.module, self.distribution, self.packages = kind, module, distribution, packages
        self.problem = ""

    def __str__(self) -> str:
        return f'{self.distribution}: plugin "{self.kind}"'


def find() -> list[ThirdParty]:
    """Return the plugins that installed distributions declare, sorted by CNI type, without importing their modules."""
    if not may_declare():
        return []
    from importlib import metadata

    found = [read_entry_point(entry) for entry in metadata.entry_points(group=GROUP)]
    found.sort(key=lambda it: (it.kind, it.distribution))
    declared = Counter(it.kind for it in found)
    for it in found:
        if not it.problem and declared[it.kind] > 1:
            others = [other.distribution for other in found if other.kind == it.kind and other is not it]
            it.problem = f"{', '.join(others)} has a plugin of that name, too"
    return found


def may_declare() -> bool:
    """Return whether an installed distribution may declare plugins: whether its file entry_points.txt has GROUP.

    This search takes 4 ms; the import and search of importlib.metadata take 31 ms (60 distributions). Only for
    distributions in zip files, or with other finders than Python's own, the function asks importlib.metadata.
    """
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return True
    for directory in sys.path:
        try:
            names = os.listdir(directory or ".")
        except NotADirectoryError:
            return True
        except OSError:
            continue
        for name in names:
            if name.lower().endswith((".dist-info", "egg-info")):
                try:
                    with open(os.path.join(directory, name, "entry_points.txt"), "rb") as file:
                        if GROUP.encode() in file.read():
                            return True
                except OSError:         # this distribution declares no entry points
                    continue
    return False


def read_entry_point(entry: metadata.EntryPoint) -> ThirdParty:
    """Return the ThirdParty of one entry point. `problem` is the fault of the declaration, "" if the declaration is
    valid."""
    top, distribution = entry.value.partition(".")[0], "a distribution without metadata"
    packages = {top}
    if entry.dist:
        distribution = f"{entry.dist.name} {entry.dist.version}"
        packages |= {path.parts[0].removesuffix(".py") for path in entry.dist.files or () if path.suffix == ".py"}
    it = ThirdParty(entry.name, entry.value, distribution, frozenset(packages))
    if not is_name(entry.name):
        it.problem = "not a CNI type: letters, digits, '_', '.' and '-', the first a letter or a digit"
    elif entry.name in plugins.BUILT_IN:
        it.problem = "fastcni has a plugin of that name itself"
    elif not all(part.isidentifier() for part in entry.value.split(".")):
        it.problem = f'its entry point "{entry.value}" is not "package.module"'
    elif top == "fastcni":
        it.problem = f'its entry point "{entry.value}" is a module of fastcni itself'
    return it


def register() -> list[ThirdParty]:
    """Add the declared plugins to plugins.TABLE, so that requests can name them, without importing their modules.

    Return all declared plugins, including the plugins with a problem, which register() does not add.
    """
    found = find()
    plugins.TABLE.update((it.kind, it.module) for it in found if not it.problem)
    return found


def load(found: list[ThirdParty]) -> None:
    """Import the plugins that have no problem. If an import fails, its error becomes the plugin's problem."""
    for it in found:
        if not it.problem:
            plugins.TABLE[it.kind] = it.module
            try:
                plugins.load(it.kind)
            except CniError as e:
                it.problem = e.msg.removeprefix(f'plugin "{it.kind}" ')
