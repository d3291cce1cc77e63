"""Write and read the cache file of an attachment that podman has set up, in libcni's format.

`fastcni list`, `explain`, `restore` and the server read this file. A setup writes the file before its first change, and
again with the result. So a setup that finds a file knows that an earlier setup of the attachment was not torn down.
"""

from __future__ import annotations

from fastcni.kit.call import files
from fastcni.kit.podman.network import ContainerNetwork
from fastcni.spec import cached_result, json, version
from fastcni.spec import result as results
from fastcni.spec.cached_result import MAX_BYTES, from_base64
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request

DIRECTORY = "/var/lib/cni/results"


def path(req: Request, name: str) -> str:
    return f"{DIRECTORY}/{name}-{req.container_id}-{req.ifname}"


def write(req: Request, made: ContainerNetwork, result: dict[str, Any] | None = None) -> None:
    """Write the file. result: the ADD's result in the shape of the newest cniVersion; None before the ADD. Raises
    CniError 5."""
    outcome = None
    if result is not None:
        outcome = results.to_version({"cniVersion": version.CURRENT, **result}, made.document.get("cniVersion", ""))
    document = cached_result.document(made.name, req.container_id, req.ifname, json.write(made.document),
                                      netns=req.netns, args=(), capability_args=made.capability_args, outcome=outcome)
    files.write(path(req, made.name), json.write(document))


def read(req: Request, name: str) -> ContainerNetwork | None:
    """Return the attachment that an earlier setup has recorded; None if the file does not exist or is damaged. Raises
    CniError 5."""
    found = read_file(path(req, name))
    return found if found and found.name == name else None


def read_file(path: str) -> ContainerNetwork | None:
    content = files.read(path, MAX_BYTES)
    try:
        keys = Section(json.read(content or b"{}"))
        document = json.read(from_base64(keys.text("config")) or b"{}")
        if type(document.get("name")) is not str or not Section(document).sections("plugins"):
            return None
        found = ContainerNetwork(document, keys.section("capabilityArgs").values, keys.text("netns"))
        if keys.has("result"):
            found.outcome = results.to_version(results.create_any(keys.raw("result")), document.get("cniVersion", ""))
    except (CniError, ValueError, AttributeError):
        return None
    return found


def families_of_ports(req: Request, name: str) -> set[int]:
    """Return the families, as address lengths (4, 16), for which another network of the container maps its ports.
    Raises CniError 5."""
    found: set[int] = set()
    for file in files.names(DIRECTORY):
        if f"-{req.container_id}-" in file and f"{DIRECTORY}/{file}" != path(req, name):
            other = read_file(f"{DIRECTORY}/{file}")
            if other and other.outcome and "portMappings" in other.capability_args:
                newest = results.to_version(other.outcome, version.CURRENT)
                found |= {len(packed) for packed, _ in results.ips_of(newest)}
    return found


def remove(req: Request, name: str) -> None:
    files.remove(path(req, name))
