"""Keep the benchmark's servers and plugins away from the node's own state.

A server reads configurations and cached results when it starts. With the node's own files, the benchmark's server would
release the node's stale addresses and restore the firewall rules of its pods. The benchmark's network namespace does
not hide firewalld, which the Go plugins reach by D-Bus.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from fastcni.kernel import dbus
from fastcni.spec import errors
from fastcni.spec.errors import CniError

HIDDEN = ("/etc/cni", "/var/lib/cni")
NO_BUS = {dbus.ADDRESS: "unix:path=/nonexistent/fastcni-bench"}
LATENCY_REQUEST = "FASTCNI_LATENCY_REQUEST_S"           # the only FASTCNI_ variable that all implementations get
OWN_VARIABLES = ("FASTCNI_", "OTEL_")


def isolated(command: Sequence[str]) -> list[str]:
    """Return the command that runs `command` in a new mount namespace, where the directories HIDDEN are empty.
    `command` keeps the process id. Later mounts of the node appear in the new namespace; mounts of the new namespace do
    not appear on the node."""
    hide = f'for at in {" ".join(HIDDEN)}; do [ ! -d $at ] || mount -t tmpfs fastcni-bench $at || exit; done; exec "$@"'
    return ["unshare", "--mount", "--propagation", "slave", "sh", "-c", hide, "sh", *command]


def environment() -> dict[str, str]:
    """Return the environment of the benchmark's servers: without the variables that configure the node's server, such
    as its address for metrics."""
    kept = {name: value for name, value in os.environ.items()
            if name == LATENCY_REQUEST or not name.startswith(OWN_VARIABLES)}
    return kept | NO_BUS


def check_data_dir(directory: str) -> None:
    """Raise CniError if the directory of --data-dir is in a directory of HIDDEN, which the benchmark's server does not
    see."""
    for hidden in HIDDEN if directory else ():
        if f"{os.path.realpath(directory)}/".startswith(f"{hidden}/"):
            raise CniError(errors.INVALID_ENVIRONMENT,
                           f"--data-dir {directory}: the server of the benchmark does not see "
                           f"{hidden}", f"name a directory of the same disk outside of {hidden}")
