"""Keep the benchmark's servers and plugins away from the node's own state.

A server reads configurations and cached results when it starts: it would release the node's stale addresses and restore
its pods' firewall rules. And firewalld, which the Go plugins ask by D-Bus, belongs to no network namespace.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from fastcni.kernel import dbus
from fastcni.spec import errors
from fastcni.spec.errors import CniError

HIDDEN = ("/etc/cni", "/var/lib/cni")
NO_BUS = {dbus.ADDRESS: "unix:path=/nonexistent/fastcni-bench"}
LATENCY_REQUEST = "FASTCNI_LATENCY_REQUEST_S"           # the only variable of fastcni that all sides get
OWN_VARIABLES = ("FASTCNI_", "OTEL_")


def isolated(command: Sequence[str]) -> list[str]:
    """Return the command that runs `command`, with the same process id, in a mount namespace in which HIDDEN are empty
    directories. Later mounts of the node appear in that namespace, but its own mounts do not appear on the node."""
    hide = f'for at in {" ".join(HIDDEN)}; do [ ! -d $at ] || mount -t tmpfs fastcni-bench $at || exit; done; exec "$@"'
    return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", hide, "sh", *command]


def environment() -> dict[str, str]:
    """Return the variables of a server, without those of the node's server, for example its address for metrics."""
    kept = {name: value for name, value in os.environ.items()
            if name == LATENCY_REQUEST or not name.startswith(OWN_VARIABLES)}
    return kept | NO_BUS


def check_data_dir(directory: str) -> None:
    """Raise CniError for a --data-dir that the server would not see."""
    for hidden in HIDDEN if directory else ():
        if f"{os.path.realpath(directory)}/".startswith(f"{hidden}/"):
            raise CniError(errors.INVALID_ENVIRONMENT,
                           f"--data-dir {directory}: the server of the benchmark does not see "
                           f"{hidden}", f"name a directory of the same disk outside of {hidden}")
