"""firewall: accepts the pod's packets on the host; the key ingressPolicy limits who reaches the pods of a bridge."""

from __future__ import annotations

from fastcni.kit.call import chained
from fastcni.kit.firewall.forward import keys as forward
from fastcni.spec import version

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.firewall.forward.keys import Conf

# As in the reference plugin, because earlier versions have no CHECK
VERSIONS = version.starting_from("0.4.0")


read = forward.read


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    result = conf.previous or chained.previous(req, "missing prevResult from earlier plugin")
    forward.add(req, conf, undo)
    isolate(req, conf)
    return result


def restore(req: Request, conf: Conf) -> None:
    if conf.previous:
        forward.restore(req, conf)
        isolate(req, conf)


def isolate(req: Request, conf: Conf) -> None:
    """If the key ingressPolicy isolates the pod, delete the set elements that disableFlooding has added for the pod's
    neighbour solicitations, because the copies of these packets would bypass the firewall."""
    if conf.isolated:
        from fastcni.kit.bridge import unflooded

        for port in conf.ports:
            unflooded.withdraw(req, conf.bridge, port)


delete = forward.delete


def check(req: Request, conf: Conf) -> None:
    from fastcni.kit.links import checks  # needed only by CHECK

    if conf.previous is None:
        chained.previous(req, "missing prevResult from earlier plugin")
    missing, do = forward.missing(req, conf)
    if missing:
        raise checks.wrong(missing, do)


gc = forward.gc
status = forward.status
