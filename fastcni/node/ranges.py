"""Read the ranges of host-local from configurations, and count their held addresses."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fastcni.kit.ipam.host_local_conf import read_keys
from fastcni.kit.ipam.ranges import Range
from fastcni.runtime.parse import flattened
from fastcni.runtime.records import NetworkList
from fastcni.spec import address
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError


@dataclass(frozen=True, slots=True)
class NetworkRange:
    """A range of addresses, with its network's name and the directory of its address files."""

    network: str
    directory: str
    range: Range

    def held(self, ips: Iterable[str]) -> int:
        """Return how many of these addresses are in the range."""
        return sum(self.range.contains(address.read_ip(ip)) for ip in ips)


def ranges_of(nets: Iterable[NetworkList]) -> Iterator[NetworkRange]:
    """Yield each range of each host-local plugin. Skip invalid sections, because `fastcni doctor` reports them.

    The ranges that the runtime passes with each ADD (the capability ipRanges) are unknown.
    """
    for net in nets:
        for plugin in flattened(net.plugins):
            ipam = plugin.values.get("ipam")
            if not isinstance(ipam, dict) or ipam.get("type") != "host-local":
                continue
            try:
                keys = read_keys(Section({**plugin.values, "cniVersion": net.version, "name": net.name}))
            except CniError:
                continue
            directory = f"{keys.data_dir.rstrip('/')}/{net.name}"
            for range_set in keys.sets:
                yield from (NetworkRange(net.name, directory, one) for one in range_set)
