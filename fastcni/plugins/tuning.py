"""tuning: sysctls of the pod, and MAC, MTU, queue length, promiscuity and multicast of its link.

DEL restores the link's attributes, because a link may outlive the pod. Sysctls end with the pod's namespace.
"""

from __future__ import annotations

from fastcni.kit.call import chained
from fastcni.kit.call.conf import ENDINGS
from fastcni.kit.call.pod import Pod
from fastcni.kit.links import attribute_backup, attributes, find
from fastcni.kit.links.attribute_backup import Backup
from fastcni.kit.sysctls import allowlist, pod_sysctls
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.links.attributes import Values
    from fastcni.kit.links.find import Link
    from fastcni.kit.sysctls.pod_sysctls import Sysctls

CAPABILITIES, ARGS = ("mac",), attributes.ARGS
MISSING = "Required prevResult missing"


class Conf:
    """The configuration of a network. data_dir: the directory of the files with links' original attributes. sysctls: as
    pod_sysctls.read_keys() returns them. wanted: {attribute of the link: value}."""

    __slots__ = ("data_dir", "sysctls", "wanted")
    data_dir: str
    sysctls: Sysctls
    wanted: Values


def read(req: Request) -> Conf:
    conf = Conf()
    conf.data_dir = req.conf.once(attribute_backup.read_directory)
    if req.command not in ENDINGS:
        conf.sysctls, conf.wanted = pod_sysctls.read_keys(req), attributes.read_wanted(req)
    return conf


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    result = chained.previous(req, MISSING)
    allowlist.check(conf.sysctls)
    pod = Pod(req)
    pod_sysctls.write(pod, undo, conf.sysctls)
    if conf.wanted:
        link = find_link(req, pod)
        before = {key: value for key, value in attributes.of(link).items() if key in conf.wanted}
        Backup(req, conf.data_dir).keep(before, undo)
        undo(attributes.write, pod.inside, link, before)
        attributes.write(pod.inside, link, conf.wanted)
    for interface in result.get("interfaces", ()):
        if interface["name"] == req.ifname and "mac" in conf.wanted:
            interface["mac"] = conf.wanted["mac"]           # the configuration's spelling of the MAC
    return result


def find_link(req: Request, pod: Pod) -> Link:
    return find.pod_link(pod, req.ifname, f"Cannot find container link {req.ifname}")


def delete(req: Request, conf: Conf) -> None:
    """Restore the link's original attributes. An error is only a warning, so that the pod can end; the file with the
    attributes then stays."""
    backup = Backup(req, conf.data_dir)
    try:
        values = backup.read()
        if values and not req.netns_gone():
            pod = Pod(req)
            link = find.link(pod.inside, req.ifname)
            if link:
                attributes.write(pod.inside, link, values)
        backup.remove()
    except (CniError, OSError) as e:
        req.warn(f"tuning: the attributes of {req.ifname} are not restored: {e}")


def check(req: Request, conf: Conf) -> None:
    chained.previous(req, MISSING)
    pod = Pod(req)
    pod_sysctls.check(pod, conf.sysctls)
    attributes.check(find_link(req, pod), req.ifname, conf.wanted)


def gc(req: Request, conf: Conf) -> None:
    attribute_backup.gc(req, conf.data_dir)


def status(req: Request, conf: Conf) -> None:
    """Check that the administrator's list allows every sysctl of the configuration."""
    try:
        allowlist.check(conf.sysctls)
    except CniError as e:
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, e.msg, e.details) from None
