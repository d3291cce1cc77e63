"""netavark: networks of podman 4.4 and later, which calls the file `fastcni` by netavark's plugin protocol.

    {"type": "netavark", "name": "podman-net", "setup": {"container_id": ..., "network": {...}, ...}}

"setup" is podman's JSON. This plugin converts "setup" to a network list, runs the list's plugins as one request, and
stores the attachment in a result cache as libcni does. netavark does not call teardown if a setup has failed or was
lost. Therefore each step has a rollback, and a setup first runs DEL for an earlier setup of the same attachment.
"""

from __future__ import annotations

from fastcni.kernel import netns
from fastcni.kit.call import delegate
from fastcni.kit.podman import record
from fastcni.kit.podman.network import read_setup
from fastcni.spec import result as results
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.podman.network import ContainerNetwork


def read(req: Request) -> ContainerNetwork | None:
    """Return the network list that podman asks for. For DEL, return the list that the ADD recorded, or None if there is
    nothing to delete."""
    setup = req.conf.section("setup")
    if req.command != "DEL":
        return read_setup(setup)
    if kept := record.read(req, req.name):
        return kept
    try:
        return read_setup(setup)
    except CniError as e:               # the setup has failed for the same reason, or its list no longer exists
        req.warn(f"nothing is deleted: {e}")
        return None


def sub_request(req: Request, made: ContainerNetwork) -> Request:
    """Return a request for a chain of all plugins of the attachment's network list."""
    plugins = Section(made.document).sections("plugins")
    declared = {name: on for plugin in plugins for name, on in plugin.section("capabilities").values.items() if on}
    values = {**made.document, "type": "chain", "capabilities": declared, "runtimeConfig": made.capability_args}
    if made.outcome is not None:
        values["prevResult"] = results.printed(made.outcome)
    found = req.for_network("chain", Section(values), made.name, req.ifname, "", req.path)
    found.prefers_own = found.caller_listens = True
    return found


def add(req: Request, conf: ContainerNetwork, undo: Undo) -> dict[str, Any]:
    if left := record.read(req, conf.name):
        delete_left(req, left)
    if conf.capability_args.get("portMappings"):        # each network of a container gets all ports
        conf.leave_ports(record.families_of_ports(req, conf.name))
    undo(record.remove, req, conf.name)
    record.write(req, conf)
    result = delegate.add(sub_request(req, conf), undo)
    record.write(req, conf, result)
    return result


def delete_left(req: Request, left: ContainerNetwork) -> None:
    """Run DEL for an earlier setup that had no teardown, in that setup's network namespace if the namespace still
    exists."""
    found = sub_request(req, left)
    found.netns, found.fds, found.opened, found.command = left.netns, {}, [], "DEL"
    try:
        found.fds["netns"] = netns.open_path(left.netns)
    except (FileNotFoundError, NotADirectoryError, netns.NotNamespace, ValueError):
        found.netns = ""                # the namespace no longer exists, or never existed
    try:
        found.mode.announce_delete(found)
        delegate.run(found, "DEL")
    finally:
        found.close()


def delete(req: Request, conf: ContainerNetwork | None) -> None:
    if conf:
        delegate.run(sub_request(req, conf), "DEL")
        record.remove(req, conf.name)


def check(req: Request, conf: ContainerNetwork) -> None:
    """Do nothing: netavark's protocol has no CHECK."""
