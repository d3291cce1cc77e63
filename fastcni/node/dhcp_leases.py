"""Read the leases of the dhcp daemon from its files, without changing any file."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from fastcni.dhcp.lease_files import DAMAGED, STATE_DIR, Saved, path_of, read_directory
from fastcni.dhcp.links import presence_of, unix_time
from fastcni.kernel import sysctl
from fastcni.kernel.presence import GONE
from fastcni.kit.dhcp.rpc import SOCKET_PATH
from fastcni.node.attachments.address_dirs import sections
from fastcni.spec import address

DIRECTORY = STATE_DIR


@dataclass(frozen=True, slots=True)
class PodLease:
    """A lease. path: its file. pod: the container and the interface. running: whether the lease is of this boot, and
    its pod may exist. ends: when the lease ends, in Unix seconds."""

    path: str
    pod: str
    network: str
    address: str
    running: bool
    ends: float


@dataclass(slots=True)
class Leases:
    """The leases in a directory. damaged: paths of files that are no valid leases, or that the daemon has marked as
    damaged."""

    directory: str
    found: list[PodLease] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)

    @property
    def running(self) -> list[PodLease]:
        return [it for it in self.found if it.running]

    @property
    def over(self) -> list[PodLease]:
        return [it for it in self.found if not it.running]


def read(directory: str = "") -> Leases:
    """Read the leases in a directory; "" stands for DIRECTORY. A missing directory has no leases. Raises OSError."""
    directory = directory or DIRECTORY
    leases = Leases(directory)
    if not os.path.isdir(directory):
        return leases
    boot = sysctl.boot_id()
    for saved in read_directory(directory):
        if isinstance(saved, Saved):
            owner, lease = saved.owner, saved.lease
            running = saved.boot == boot and presence_of(owner, unix_time(lease.acked)) != GONE
            leases.found.append(PodLease(path_of(directory, owner.key), owner.name, owner.network,
                                         address.ip_text(lease.address), running, saved.ends))
        else:
            leases.damaged.append(saved[0])
    leases.damaged += [f"{directory}/{name}" for name in sorted(os.listdir(directory)) if name.endswith(DAMAGED)]
    return leases


def sockets(configurations: Iterable[Any]) -> list[str]:
    """Return the sockets of the dhcp daemons that configurations name."""
    found = [section.get("daemonSocketPath") or SOCKET_PATH for section in sections(list(configurations), "dhcp")]
    return list(dict.fromkeys(path for path in found if isinstance(path, str)))
