"""Read a backend's part of the network's configuration: the keys of the object `Backend`, and the address families."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastcni.agent.contract import FAMILIES, ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from fastcni.agent.contract import NetworkConf, Underlay


def read_keys(backend: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return {key of `defaults`: its value in `backend`, or its default}. Keys are case-insensitive. As in flannel,
    unknown keys are ignored. Raises ConfigurationError for a value of another type than the default, and for a negative
    number."""
    given = {key.lower(): value for key, value in backend.items() if value is not None}
    found = {}
    for key, default in defaults.items():
        value = found[key] = given.get(key.lower(), default)
        if type(value) is not type(default) or (type(value) is int and value < 0):
            kind = {bool: "true or false", int: "a number, 0 or more", str: "a string"}[type(default)]
            raise ConfigurationError(f"Backend.{key}: expected {kind}, got {value!r}")
    return found


def chosen_families(conf: NetworkConf, underlay: Underlay) -> list[int]:
    """Return the network's address families. Raises ConfigurationError if the underlay has no address of a family."""
    for family in conf.families:
        if family not in underlay.addresses:
            raise ConfigurationError(f'the network has IPv{family}, and link "{underlay.name}" has no IPv{family} '
                                     "address")
    return [family for family in FAMILIES if family in conf.families]
