"""Define the records of doctor: Node, the input of the checks, and Finding."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fastcni.kernel import sysctl
from fastcni.kernel.rtnl import Link
from fastcni.node import confs
from fastcni.node.attachments.attachment import Inventory
from fastcni.node.attachments.inventory import Places, Seen
from fastcni.node.checks.pods import PodLink, read_all
from fastcni.runtime.parse import flattened
from fastcni.runtime.records import NetworkList

NEARLY = 0.9                    # share of a limit from which on a table, a queue or a range counts as nearly full
ERROR, WARNING = "error", "warning"     # ADDs fail or traffic stops; both may happen, or a deleted pod left state


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of the node. severity: ERROR or WARNING. what: a sentence that states the fault. why: why the fault
    matters. do: the command that repairs the fault, or a sentence. check: the name of the check, which diagnose() sets.
    """

    severity: str
    what: str
    why: str
    do: str
    check: str = ""


def read_sysctl(name: str) -> str:
    """Return the value of a sysctl in the calling thread's namespace; "" if the sysctl cannot be read."""
    try:
        return sysctl.read(name)
    except OSError:
        return ""


@dataclass(slots=True)
class Node:
    """The node, as the checks see it. The checks read the kernel and files, and change nothing but a counter in OVSDB
    (see ports.find_bridge()).

    plugin_dirs: the directories of plugin files, in order. socket: the server's socket. unit_dir: the directory of
    systemd units. sysctl(name): returns the value of a sysctl, or "". release: the kernel's release. root: the
    directory that contains sys, proc and lib. unseen: texts about what could not be read. pod_links: the links of
    running pods; None until they are read. agent_folder: the --folder of an agent that no network names, or "".
    """

    places: Places
    seen: Seen
    inventory: Inventory
    plugin_dirs: tuple[str, ...]
    socket: str
    unit_dir: str = "/etc/systemd/system"
    sysctl: Callable[[str], str] = read_sysctl
    root: str = "/"
    release: str = field(default_factory=lambda: os.uname().release)
    unseen: list[str] = field(default_factory=list)
    pod_links: list[PodLink] | None = None
    agent_folder: str = ""

    @property
    def pods(self) -> list[PodLink]:
        """Return the links of running pods. Read the links only at the first call."""
        if self.pod_links is None:
            self.pod_links = read_all(self.seen, self.inventory, self.unseen)
        return self.pod_links

    @property
    def networks(self) -> list[NetworkList]:
        """Return the valid networks of the configuration directory."""
        return confs.networks(self.seen.files)

    @property
    def types(self) -> dict[str, str]:
        """Return {CNI type of a plugin: a network that uses it}, without IPAM types."""
        return {plugin.type: net.name for net in reversed(self.networks)
                for plugin in [*net.plugins, *flattened(net.plugins)]}

    @property
    def links(self) -> Iterable[Link]:
        return self.seen.facts.links.values()

    def number(self, name: str) -> int | None:
        """Return the value of a sysctl as a number; None if the value is missing or no number."""
        text = self.sysctl(name).partition(" ")[0]
        return int(text) if text.isdecimal() else None

    def text(self, path: str) -> str:
        """Return the text of a file below `root`; "" if the file cannot be read."""
        try:
            with open(os.path.join(self.root, path), encoding="utf-8", errors="replace") as file:
                return file.read()
        except OSError:
            return ""


def some(names: Iterable[str], most: int = 3, between: str = ", ") -> str:
    """Return the first `most` names, and the number of the remaining names: "a, b, c and 2 more"."""
    names = list(names)
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return between.join(names[:most]) + more


def plural(count: int, noun: str) -> str:
    """Return a number with its noun: "1 pod", "2 pods", "3 addresses"."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}{'es' if noun.endswith('s') else 's'}"
