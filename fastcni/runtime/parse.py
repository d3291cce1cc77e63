"""Parse network configurations from bytes to records. Reads no files.

A file has the same meaning for fastcni as for the Go library: both agree on which keys are case-insensitive, and on the
order of the checks.
"""

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from fastcni.plugins import chain
from fastcni.runtime.errors import ConfError
from fastcni.runtime.records import NetworkList, PluginConf
from fastcni.spec import errors, json, version
from fastcni.spec.config import Section, shown

Json = Any


def go_type(value: Json) -> str:
    """Return a decoded value's type as Go's error texts name it, such as "float64"."""
    if value is None:
        return "<nil>"
    if isinstance(value, bool):
        return "bool"
    for kind, word in ((str, "string"), ((int, float), "float64"), (list, "[]interface {}")):
        if isinstance(value, kind):
            return word
    return "map[string]interface {}"


# One plugin ------------------------------------------------------------------------------------

def parse_plugin(raw: bytes) -> PluginConf:
    """Read a single plugin's configuration. Raises ConfError if the configuration is invalid or has no `type`."""
    prefix = "error parsing configuration: "
    values = read_object(raw, prefix)
    section = Section(values)
    for key, check, wanted in TYPED:
        value = section.raw(key)
        if value is not None and not check(value):
            raise ConfError(f'{prefix}{key}: expected {wanted}, got {shown(value)}', errors.DECODING_FAILURE)
    kind = section.raw("type", "")
    if not kind:
        raise ConfError(f"{prefix}missing 'type'")
    return PluginConf(
        raw, values, kind, name=section.raw("name", ""), version=section.raw("cniVersion", ""),
        capabilities={name: bool(on) for name, on in section.raw("capabilities", {}).items()},
    )


def is_text(value: Json) -> bool:
    return isinstance(value, str)


def is_object(value: Json) -> bool:
    return isinstance(value, dict)


def is_flags(value: Json) -> bool:
    return is_object(value) and all(isinstance(on, bool) or on is None for on in value.values())


def is_ipam(value: Json) -> bool:
    return is_object(value) and isinstance(Section(value).raw("type", ""), str)


def is_dns(value: Json) -> bool:
    if not is_object(value):
        return False
    section = Section(value)
    lists = [section.raw(key, []) for key in ("nameservers", "search", "options")]
    return is_text(section.raw("domain", "")) and all(
        isinstance(entries, list) and all(isinstance(entry, str | None) for entry in entries)
        for entries in lists)


TYPED: tuple[tuple[str, Callable[[Json], bool], str], ...] = (
    ("cniVersion", is_text, "a string"),
    ("name", is_text, "a string"),
    ("type", is_text, "a string"),
    ("capabilities", is_flags, "an object of booleans"),
    ("ipam", is_ipam, "an object whose type is a string"),
    ("dns", is_dns, "an object of strings and lists of strings"),
    ("prevResult", is_object, "an object"),
)


def read_object(raw: bytes, prefix: str) -> dict[str, Json]:
    """Decode a JSON object; return {} for null. Raises ConfError."""
    try:
        values = json.read(raw)
    except json.JsonError as e:
        raise ConfError(f"{prefix}{e}", errors.DECODING_FAILURE) from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise ConfError(f"{prefix}expected an object, got {shown(values)}", errors.DECODING_FAILURE)
    return values


# A list ----------------------------------------------------------------------------------------

LIST = "error parsing configuration list: "
LIST_FLAGS = ("disableCheck", "disableGC", "loadOnlyInlinedPlugins")
LIST_KEYS = ("cniVersion", "cniVersions", "name", "plugins", *LIST_FLAGS)


def parse_list(raw: bytes) -> NetworkList:
    """Read a network list. The list may have no plugins; discover.py adds plugins from a directory. Raises
    ConfError."""
    values = read_object(raw, LIST)
    if "name" not in values:
        raise ConfError(f"{LIST}no name")
    name = values["name"]
    if not isinstance(name, str):
        raise ConfError(f"{LIST}invalid name type {go_type(name)}")
    selected = select_version(values)
    flags = {key: read_flag(values, key) for key in LIST_FLAGS}
    return NetworkList(
        name, selected, read_plugins(values, flags["loadOnlyInlinedPlugins"]), raw,
        disable_check=flags["disableCheck"], disable_gc=flags["disableGC"],
        only_inlined_plugins=flags["loadOnlyInlinedPlugins"],
    )


def select_version(values: dict[str, Json]) -> str:
    """Return the CNI version of a list: the highest version that fastcni knows among `cniVersions` and `cniVersion`.

    Without `cniVersions`, return `cniVersion`, even if fastcni does not know that version. Raises ConfError.
    """
    given = values.get("cniVersion", "")
    if not isinstance(given, str):
        raise ConfError(f"{LIST}invalid cniVersion type {go_type(given)}")
    if "cniVersions" not in values:
        return given
    entries = values["cniVersions"]
    if not isinstance(entries, list):
        raise ConfError(f"{LIST}invalid type for cniVersions: []interface {{}}")
    numbers: dict[str, tuple[int, int, int]] = {}
    for index, entry in enumerate(entries):
        if not isinstance(entry, str):
            raise ConfError(f"{LIST}invalid type for cniVersions index {index}: {go_type(entry)}")
        numbers.setdefault(entry, read_version(
            entry, f"{LIST}invalid cniVersions entry {entry} at index {index}: "))
    if given:
        numbers.setdefault(given, read_version(given, f"{LIST}invalid cniVersion {given}: "))
    newest = version.parse(version.CURRENT)
    known = [entry for entry, number in numbers.items() if number <= newest]
    return max(known, key=numbers.__getitem__, default=given)


def read_version(text: str, prefix: str = "") -> tuple[int, int, int]:
    """Return the numbers of a version: (1, 0, 0). Raises ConfError, whose text begins with `prefix`."""
    try:
        return version.parse(text)
    except ValueError as e:
        raise ConfError(f"{prefix}{e}", errors.DECODING_FAILURE) from None


def read_flag(values: dict[str, Json], key: str) -> bool:
    value = values.get(key, False)
    if isinstance(value, bool):
        return value
    if not isinstance(value, str):
        raise ConfError(f"{LIST}invalid type {go_type(value)} for {key}")
    if value.lower() not in ("true", "false"):
        raise ConfError(f'{LIST}invalid value "{value.lower()}" for {key}')
    return value.lower() == "true"


def read_plugins(values: dict[str, Json], only_inlined: bool) -> tuple[PluginConf, ...]:
    if "plugins" not in values:
        if only_inlined:
            raise ConfError(f"{LIST}`loadOnlyInlinedPlugins` is true, and no 'plugins' key")
        return ()
    entries = values["plugins"]
    if not isinstance(entries, list):
        raise ConfError(f"{LIST}invalid 'plugins' type {go_type(entries)}")
    if not entries:
        raise ConfError(f"{LIST}no plugins in list")
    plugins = []
    for index, entry in enumerate(entries):
        try:
            plugins.append(replace(parse_plugin(json.write(json.normalize(entry), sort=True)), index=index))
        except ConfError as e:
            raise ConfError(f"failed to parse plugin config {index}: {e.msg}", e.code) from None
    return tuple(plugins)


def nested_plugins(plugin: PluginConf) -> tuple[PluginConf, ...]:
    """Return the valid plugin configurations inside a plugin `chain`; () for any other plugin."""
    entries = Section(dict(plugin.values)).raw("plugins") if plugin.type == chain.KIND else None
    found = []
    for index, entry in enumerate(entries if isinstance(entries, list) else ()):
        try:
            found.append(replace(parse_plugin(json.write(entry)), index=index, file=plugin.file))
        except ConfError:
            continue                    # read() of the plugin chain reports the error
    return tuple(found)


def flattened(plugins: Iterable[PluginConf]) -> list[PluginConf]:
    """Return the plugins of a list, with each `chain` replaced by its nested plugins."""
    return [one for plugin in plugins for one in nested_plugins(plugin) or (plugin,)]


def list_of_plugin(plugin: PluginConf) -> NetworkList:
    """Return a network list that has only this plugin. The plugin's configuration is a separate file (the form before
    CNI 1.0.0)."""
    return parse_list(json.write(
        {"cniVersion": plugin.version, "name": plugin.name, "plugins": [json.normalize(plugin.values)]},
        sort=True))
