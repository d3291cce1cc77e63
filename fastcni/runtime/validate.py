"""Validate a network's configuration without a request: unknown and misspelt keys, wrong values, missing plugins.

A plugin's known keys are the keys that its read() asks for, so fastcni has no separate list of keys.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from fastcni import handle, plugins, third_party
from fastcni.kit.call import search
from fastcni.kit.call.request import Request
from fastcni.kit.call.similar import meant
from fastcni.plugins import chain, flannel
from fastcni.runtime.key_recorder import KeyRecorder
from fastcni.runtime.mode import InProcessMode
from fastcni.runtime.parse import LIST_KEYS, nested_plugins
from fastcni.runtime.records import NetworkList, PluginConf
from fastcni.spec import json, version
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

ERROR, WARNING = "error", "warning"
# Keys that the runtime reads or writes (CNI spec 1.1.0, sections 1 and 3), so they are known in every configuration.
COMMON_KEYS = ("cniVersion", "name", "type", "capabilities", "prevResult", "runtimeConfig", "args")
SHARED = ("args", "runtimeConfig")      # objects of which each plugin reads only some keys
PREFIX = "failed to load netconf: "       # the beginning of error texts that Section.wrong() makes


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault in a configuration.

    severity: ERROR (an ADD fails) or WARNING (an ADD succeeds, but its effect may differ from the intended one). where:
    the path of a key, "plugins[0].ipam.subnet". what: the fault as text. hint: a remedy, or "". file: the configuration
    file's path, "" if unknown.
    """

    severity: str
    where: str
    what: str
    hint: str = ""
    file: str = ""


def validate(net: NetworkList, plugin_dirs: Sequence[str]) -> list[Finding]:
    """Return the faults of a network's configuration; [] for a configuration without faults.

    plugin_dirs: the directories in which each plugin must be found. No plugin is executed. For a plugin that fastcni
    does not know, check only that its executable exists.
    """
    third_party.register()
    file = net.plugins[0].file if net.plugins else ""
    found = [Finding(WARNING, key, f'unknown key "{key}"', meant(key, LIST_KEYS) or "it has no effect", file)
             for key in json.read(net.raw) if key not in LIST_KEYS]
    for index, plugin in enumerate(net.plugins):
        found += judge(net, plugin, f"plugins[{index}]", plugin_dirs)
    return found


def judge(net: NetworkList, plugin: PluginConf, where: str, plugin_dirs: Sequence[str]) -> list[Finding]:
    """Return the faults in a plugin's configuration; for the plugin chain, also the faults in the nested plugins'
    configurations."""
    found = list(Judge(net, plugin, where).findings(plugin_dirs))
    for index, nested in enumerate(nested_plugins(plugin)):
        found += judge(net, nested, f"{where}.plugins[{index}]", plugin_dirs) if nested.type != chain.KIND else []
    return found


class Judge:
    """The checks of one plugin's configuration in a list. where: its path, "plugins[0]"."""

    def __init__(self, net: NetworkList, plugin: PluginConf, where: str) -> None:
        self.net, self.plugin, self.where = net, plugin, where
        self.conf = KeyRecorder({**plugin.values, "name": net.name, "cniVersion": net.version})
        self.conf.asked.update((key.lower(), key) for key in COMMON_KEYS)
        self.readers: dict[str, ModuleType] = {}    # {CNI type: module}
        self.errors: list[Finding] = []             # errors and warnings of read()
        # Whether ADD reads exactly this configuration: only prevResult is added, no capability value and no value of
        # flannel.
        self.is_entire = plugin.type != "flannel" and not any(plugin.capabilities.values())
        self.complete = True                        # False if a plugin's read() failed before read() asked for all keys

    def findings(self, plugin_dirs: Sequence[str]) -> Iterator[Finding]:
        """Let the plugin and its delegates read the configuration, and yield the faults that reading shows."""
        kinds = dict(self.read_all())
        for key, kind in kinds.items():
            if problem := missing(kind, plugin_dirs):
                yield self.finding(ERROR, key, *problem)
        yield from (self.finding(ERROR, key, why) for key, why in self.conf.faults)
        yield from self.errors
        if self.plugin.type not in self.readers:
            return
        names = ", ".join(self.readers)
        for section, key in self.conf.unknown():
            if section.where.partition(".")[0] in SHARED or (section.where == "ipam" and kinds["ipam.type"] not in
                                                             self.readers):
                continue
            hint = meant(key, set(section.asked.values()) - section.document.keys())
            if hint or self.complete:
                yield self.finding(WARNING, section.path(key), f'unknown key "{key}"',
                                   hint or f"not a key of {names}: it has no effect")
        if all(kind in self.readers for kind in kinds.values()):
            yield from self.unused_capabilities(names)

    def read_all(self) -> Iterator[tuple[str, str]]:
        """Let the plugin and its delegates read the configuration. Yields (path of the key that names the plugin, CNI
        type) for each."""
        yield "type", self.plugin.type
        self.read(self.plugin.type, self.conf)
        ipam = text_at(self.plugin.values, "ipam", "type") if "ipam" in self.conf.asked else ""
        if self.plugin.type == "flannel":
            kind = text_at(self.plugin.values, "delegate", "type") or flannel.DELEGATE
            yield "delegate.type", kind
            self.read(kind, self.conf.section("delegate"))
            ipam = ipam or flannel.IPAM
        if ipam:
            yield "ipam.type", ipam
            # The key ipam.type counts as known, even if no read() asks for the key
            self.conf.section("ipam").text("type")
            if self.plugin.type != "flannel" or "ipam" in self.plugin.values:       # flannel adds an absent "ipam"
                self.read(ipam, self.conf)

    def read(self, kind: str, conf: Section) -> None:
        """Call a plugin's read(), if fastcni has the plugin."""
        if kind not in plugins.TABLE:
            return
        req = Request(InProcessMode(), plugin=kind, command="ADD", container_id="validated", netns="/nonexistent",
                      ifname="eth0", conf=conf, stdin=self.plugin.raw, name=self.net.name,
                      version=self.net.version or version.ALL[0])
        try:
            module = self.readers[kind] = plugins.load(kind)
            handle.check_version(req, getattr(module, "VERSIONS", version.ALL))
            if not self.is_entire or kind not in plugins.BUILT_IN:
                req.command = "STATUS"          # STATUS reads the keys of ADD, except keys that only a pod has
            module.read(req)
        except Exception as e:
            self.complete = False
            text = e.msg if isinstance(e, CniError) else f"{type(e).__name__}: {e}"
            self.errors.append(self.finding(ERROR, "", f"{kind}: {text.removeprefix(PREFIX)}",
                                            getattr(e, "details", "")))
        finally:
            req.close()
        self.errors += [self.finding(WARNING, "", text) for text in req.warnings]

    def unused_capabilities(self, names: str) -> Iterator[Finding]:
        """Yield a Finding for each declared capability that none of the plugins takes. No Finding if a plugin passes
        capabilities on to other networks' plugins."""
        if any(getattr(module, "PASSES_CAPABILITIES", False) for module in self.readers.values()):
            return
        taken = {name for module in self.readers.values() for name in getattr(module, "CAPABILITIES", ())}
        taken |= {name for nested in nested_plugins(self.plugin) for name, on in nested.capabilities.items() if on}
        for name, wanted in self.plugin.capabilities.items():
            if wanted and name not in taken:
                yield self.finding(WARNING, f"capabilities.{name}", f'unused capability "{name}"', meant(name, taken)
                                   or f"not a capability of {names}: the runtime passes it for nothing")

    def finding(self, severity: str, key: str, what: str, hint: str = "") -> Finding:
        return Finding(severity, f"{self.where}.{key}" if key else self.where, what, hint, self.plugin.file)


def missing(kind: str, plugin_dirs: Sequence[str]) -> tuple[str, str] | None:
    """Return (what, hint) of a Finding if no directory has the plugin. Return None if the plugin is found, or if this
    user may not read one of the directories."""
    try:
        search.find(kind, plugin_dirs)
    except CniError as e:
        if not all(os.access(where, os.X_OK, effective_ids=True) for where in plugin_dirs if os.path.isdir(where)):
            return None
        known = kind in plugins.TABLE
        return e.msg, "`fastcni install` writes it" if known else meant(kind, plugins.TABLE) or "is it installed?"
    return None


def text_at(values: Any, *keys: str) -> str:
    """Return the string at a path of keys, such as "ipam", "type" for values["ipam"]["type"]; "" if there is no
    string."""
    for key in keys:
        values = Section(values).raw(key) if isinstance(values, dict) else None
    return values if isinstance(values, str) else ""
