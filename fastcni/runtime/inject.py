"""Make a plugin's stdin from its configuration and the runtime's values."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fastcni.runtime.errors import ConfError
from fastcni.runtime.records import PluginConf, RuntimeConf
from fastcni.spec import json, result
from fastcni.spec.config import VALID_ATTACHMENTS

ATTACHMENTS = (VALID_ATTACHMENTS, "cni.dev/attachments")        # the second key is from early drafts of the spec


def inject(plugin: PluginConf, values: Mapping[str, Any], prev_result: dict[str, Any] | None = None) -> bytes:
    """Return the plugin's configuration as compact JSON, with `values` added, sorted keys, and numbers as Go prints
    them.

    The keys of `prev_result` are in the order of its CNI version. Raises ConfError for an empty key or a null value.
    """
    for key, value in values.items():
        if not key:
            raise ConfError("keys cannot be empty")
        if value is None:
            raise ConfError(f"key '{key}' value must not be nil")
    members = {key: json.write(value, sort=True)
               for key, value in {**json.normalize(plugin.values), **values}.items()}
    if prev_result is not None:
        members["prevResult"] = result.encode(prev_result, indent=0)
    return json.write_members(members)


def for_attachment(name: str, version: str, plugin: PluginConf, rt: RuntimeConf,
                   prev_result: dict[str, Any] | None) -> bytes:
    """Return the stdin of ADD, CHECK and DEL. name, version: the network's name and cniVersion."""
    values: dict[str, Any] = {"name": name, "cniVersion": version}
    matched = {key: rt.capability_args[key] for key, on in plugin.capabilities.items()
               if on and key in rt.capability_args}
    if matched:                 # if no capability matches, the file's own runtimeConfig stays
        values["runtimeConfig"] = matched
    return inject(plugin, values, prev_result)


def for_gc(name: str, version: str, plugin: PluginConf, valid: Sequence[tuple[str, str]] | None,
           more: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    """Return the stdin of GC. valid: (container id, interface name) pairs; None omits the list. more: further keys of
    the stdin."""
    values: dict[str, Any] = {"name": name, "cniVersion": version, **more}
    if valid is not None:
        entries = [{"containerID": container_id, "ifname": ifname} for container_id, ifname in valid]
        values.update(dict.fromkeys(ATTACHMENTS, entries))
    return inject(plugin, values)


def for_status(name: str, version: str, plugin: PluginConf) -> bytes:
    """Return the stdin of STATUS."""
    return inject(plugin, {"name": name, "cniVersion": version})
