"""Read and write the files in which ovs-cni stores the configuration of each ADD. ovs-cni's DEL does nothing if the
file is missing.

/var/lib/cni/ovs-cni/cache/CONTAINER-IFNAME is {"Netconf": {...}, "OrigIfName": "", ...}. fastcni writes the same file
with one more member: the socket of the OVSDB that has the port. After ADD, the network's
configuration may be changed and name another socket.
"""

from __future__ import annotations

from fastcni.kit.call import files
from fastcni.spec import json
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.ovs.ovs_conf import OvsConf

DIRECTORY = "/var/lib/cni/ovs-cni/cache"
ATTACHMENT = "fastcni"          # fastcni's own member: {"containerID", "ifname"}


def path(directory: str, container_id: str, ifname: str) -> str:
    return f"{directory}/{container_id}-{ifname}"


def write(req: Request, conf: OvsConf, bridge: str) -> None:
    """Write the file of the request's attachment. Raises CniError 5."""
    net_conf = {key: value for key, value in req.conf.common.values.items() if key != "prevResult"}
    net_conf |= {"bridge": bridge, "socket_file": conf.socket_file}
    content = {"Netconf": net_conf, "OrigIfName": "", "UserspaceMode": False, "VdpaType": "",
               ATTACHMENT: {"containerID": req.container_id, "ifname": req.ifname}}
    files.write(path(conf.directory, req.container_id, req.ifname), json.write(content))


def read(req: Request, conf: OvsConf) -> dict[str, Any] | None:
    """Return the member Netconf of the attachment's file. {} if the file is damaged, None if it does not exist."""
    return parsed(files.read(path(conf.directory, req.container_id, req.ifname)), "Netconf")


def parsed(content: bytes | None, member: str) -> dict[str, Any] | None:
    if content is None:
        return None
    try:
        found = json.read(content)[member]
    except (json.JsonError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def delete(directory: str, container_id: str, ifname: str) -> None:
    files.remove(path(directory, container_id, ifname))


def contents(directory: str, warn: Callable[[str], object]) -> Iterator[tuple[str, bytes | None]]:
    """Yield (name, content) of each file in a directory. warn: gets the error of a file that cannot be read."""
    try:
        names = files.names(directory)
    except CniError as e:
        warn(e.msg)
        return
    for name in names:
        try:
            yield name, files.read(f"{directory}/{name}")
        except CniError as e:
            warn(e.msg)


def attachments(directory: str, network: str, warn: Callable[[str], object]) -> Iterator[tuple[str, str]]:
    """Yield (container id, ifname) of each file that fastcni has written for a network. warn: see contents()."""
    for name, content in contents(directory, warn):
        if (parsed(content, "Netconf") or {}).get("name") == network:
            owner = parsed(content, ATTACHMENT) or {}
            if name == f"{owner.get('containerID')}-{owner.get('ifname')}":
                yield owner["containerID"], owner["ifname"]


def addresses(directory: str, warn: Callable[[str], object]) -> set[str]:
    """Return the addresses of OVSDB that the files in a directory name. warn: see contents()."""
    return {address for _, content in contents(directory, warn)
            if (address := address_in(parsed(content, "Netconf")))}


def address_in(net_conf: dict[str, Any] | None) -> str:
    """Return the address of OVSDB in a file's Netconf. "": the file has no address, so use the network's."""
    found = (net_conf or {}).get("socket_file")
    return found if isinstance(found, str) else ""
