"""Remove the plugin files from a CNI bin dir, and restore the replaced programs."""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from fastcni.launcher import files, replaced
from fastcni.launcher.identify import Program, identify, is_own_file
from fastcni.launcher.install import InstallError, StrPath


@dataclass(frozen=True, slots=True)
class Uninstalled:
    """The outcome of an uninstall, or of its dry run, for each plugin name.

    restored: {name: the program that fastcni's plugin had replaced}. removed: fastcni's plugins that had replaced no
    program. left: {name: a program that is neither fastcni's nor the kept file}. Another program has replaced fastcni's
    plugin, so both this program and the kept file stay.
    """

    bin_dir: str
    restored: dict[str, Program | None] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    left: dict[str, Program | None] = field(default_factory=dict)


def uninstall_plugins(bin_dir: StrPath, *, dry_run: bool = False) -> Uninstalled:
    """Restore the programs that fastcni's plugins replaced, then remove the other plugins of fastcni. With dry_run,
    change nothing.

    Each name is a complete plugin at any time. After an error, a second call finishes the work. Raises InstallError.
    """
    bin_dir = os.path.abspath(bin_dir)
    try:
        if not os.path.isdir(bin_dir):
            return Uninstalled(bin_dir)
        if dry_run:
            return plan(bin_dir)
        with replaced.locked(bin_dir):
            planned = plan(bin_dir)
            carry_out(planned)
            return planned
    except OSError as error:
        raise InstallError(f"uninstall from {bin_dir}: {error}") from error


def plan(bin_dir: str) -> Uninstalled:
    """Return what an uninstall would do. Raises OSError."""
    planned, kept = Uninstalled(bin_dir), replaced.kept(bin_dir)
    for name in kept:
        path = os.path.join(bin_dir, name)
        if is_own_file(path) or not os.path.lexists(path) or replaced.is_in_place(bin_dir, name):
            planned.restored[name] = identify(os.path.join(replaced.directory(bin_dir), name))
        else:
            planned.left[name] = identify(path)
    planned.removed.extend(name for name in sorted(os.listdir(bin_dir))
                           if name not in kept and is_own_file(os.path.join(bin_dir, name)))
    return planned


def carry_out(planned: Uninstalled) -> None:
    """Do what plan() has planned. Raises OSError."""
    bin_dir = planned.bin_dir
    for name in planned.restored:
        replaced.restore(bin_dir, name)
    # Restore the other programs first: until its removal, a plugin of fastcni may need one of them.
    for name in planned.removed:
        os.unlink(os.path.join(bin_dir, name))
    replaced.remove_directory(bin_dir)
    files.sync(bin_dir)
