"""Find the networks with cluster-wide addresses in the node's configurations. This node may have used these networks
before the server started."""

from __future__ import annotations

from fastcni.kit.ipam.cluster.conf import read_keys
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from fastcni.kit.ipam.cluster.conf import Keys

KINDS = ("cluster", "whereabouts")


def read_configured(configurations: Iterable[Any]) -> Iterator[Keys]:
    """Yield the Keys of each plugin whose `ipam` is of one of KINDS, anywhere in the configurations, also in delegates.
    Skip invalid configurations, because their requests report the error."""
    for plugin in plugins_in(list(configurations)):
        try:
            yield read_keys(Section(plugin))
        except CniError:
            continue


def plugins_in(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        ipam = value.get("ipam")
        if isinstance(ipam, dict) and ipam.get("type") in KINDS:
            yield value
        for inner in value.values():
            yield from plugins_in(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from plugins_in(inner)
