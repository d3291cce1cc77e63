"""Make a plugin's stdin from its configuration and the runtime's values."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from fastcni.runtime.errors import ConfError
from fastcni.runtime.records import PluginConf, RuntimeConf
from fastcni.spec import json, result
from fastcni.spec.config import VALID_ATTACHMENTS

ATTACHMENTS = (VALID_ATTACHMENTS, "cni.dev/attachments")        # the second name is from early drafts


def inject(plugin: PluginConf, values: Mapping[str, Any], prev_result: dict[str, Any] | None = None) -> bytes:
    """Return the plugin's configuration as compact JSON with `values` set, keys sorted, and Go's number formats.

    The keys of a prevResult are in the order of its version. Raises ConfError for an empty key or a null value.
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
    """Return stdin of ADD, CHECK and DEL."""
    values: dict[str, Any] = {"name": name, "cniVersion": version}
    matched = {key: rt.capability_args[key] for key, on in plugin.capabilities.items()
               if on and key in rt.capability_args}
    if matched:                 # otherwise a runtimeConfig in the file stays
        values["runtimeConfig"] = matched
    return inject(plugin, values, prev_result)


def for_gc(name: str, version: str, plugin: PluginConf, valid: Sequence[tuple[str, str]] | None,
           more: Mapping[str, Any] = MappingProxyType({})) -> bytes:
    """Return stdin of GC. valid: (container id, interface name) pairs; None leaves the key out. more: further keys."""
    values: dict[str, Any] = {"name": name, "cniVersion": version, **more}
    if valid is not None:
        entries = [{"containerID": container_id, "ifname": ifname} for container_id, ifname in valid]
        values.update(dict.fromkeys(ATTACHMENTS, entries))
    return inject(plugin, values)


def for_status(name: str, version: str, plugin: PluginConf) -> bytes:
    """Return stdin of STATUS."""
    return inject(plugin, {"name": name, "cniVersion": version})
