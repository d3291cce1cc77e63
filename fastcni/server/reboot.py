"""Release host-local addresses of pods from before a reboot, in the usual dataDir, when the server starts.

In another dataDir, the first request of each network releases these addresses.
"""

from __future__ import annotations

import os

from fastcni.daemon.log import few
from fastcni.kit.ipam.address_files import owner_text
from fastcni.kit.ipam.host_local_conf import DATA_DIR
from fastcni.kit.ipam.store import Store
from fastcni.spec import address
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.daemon.log import Logger


def release_addresses(log: Logger, data_dir: str = DATA_DIR) -> None:
    """Open each network that has an index. Opening releases the addresses of a previous boot, see
    kit/ipam/before_reboot.py."""
    try:
        networks = sorted(entry.name for entry in os.scandir(data_dir)
                          if os.path.exists(f"{entry.path}/.fastcni.index"))
    except OSError:
        return                          # the directory has no networks
    for network in networks:
        try:
            with Store(data_dir, network, lambda text: log.debug("address_warning", text=text)) as store:
                released = store.released if store else []
        except CniError as e:
            log.warning("addresses_unread", network=network, error=e.msg)
            continue
        if released:
            log.info("addresses_released", network=network, number=len(released),
                     addresses=few([address.ip_text(packed) for packed, _ in released]),
                     owners=few([owner_text(owner) for _, owner in released]))
