"""Divide the modules of a plugin file into parts: the modules of one part are loaded together."""

from __future__ import annotations

from collections.abc import Container
from typing import NamedTuple

from fastcni.launcher.modules import Module
from fastcni.launcher.needs import ASKS_IPAM, FINDS_LINKS, common, in_one_part, late_groups, needed


class Division(NamedTuple):
    """Parts of fastcni's modules.

    shared     {"ipam" or "links": the modules of a part that several plugins load before their own part; "": the
               modules that all plugins load first}
    shared_of  {plugin: the name of the shared part that it loads before its own part}
    rests      {plugin: the modules of its own part}
    together   the groups of modules that requests import late and together, see late_groups()
    alone      {module that requests import late: the plugin whose part has the module}
    late       {name: Module} of the modules that requests import late, each by itself
    """

    shared: dict[str, list[str]]
    shared_of: dict[str, str]
    rests: dict[str, list[str]]
    together: list[tuple[list[str], list[int]]]
    alone: dict[str, str]
    late: dict[str, Module]


def divide(own: dict[str, Module], others: dict[str, dict[str, Module]]) -> Division:
    """Return the parts. own, others: as needed() takes them."""
    needs = needed(own, others)
    shared_of = {kind: shared_part(names) for kind, names in needs.items()}
    shared = {part: common(names for kind, names in needs.items() if shared_of[kind] == part)
              for part in ("ipam", "links")}
    every = shared[""] = common(needs.values())
    rests = {kind: [name for name in names if name not in shared[shared_of[kind]]] for kind, names in needs.items()}
    together = late_groups(own, every)
    grouped = {name for group, _ in together for name in group}
    alone = {name: kind for name, kind in in_one_part(rests).items()
             if name in own and name not in grouped and not any(name in names for names in shared.values())}
    late = {name: module for name, module in own.items() if not any(name in of for of in (every, grouped, alone))}
    return Division(shared, shared_of, rests, together, alone, late)


def shared_part(names: Container[str]) -> str:
    """Return the name of the shared part, "ipam" or "links", that a plugin with these modules loads before its own
    part; "": none."""
    return "ipam" if ASKS_IPAM in names else "links" if FINDS_LINKS in names else ""
