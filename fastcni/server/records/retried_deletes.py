"""Log the DELs that a runtime repeats because they failed: repetitions 1, 2, 4, 8 and so on of each DEL, and the
repetition that succeeds."""

from __future__ import annotations

from fastcni.server.bounded import forget_oldest
from fastcni.server.records.ended import DECLINED

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.daemon.log import Logger
    from fastcni.server.records.ended import Ended

MAX_FAILED = 1024               # DELs to remember; a further DEL replaces the oldest


class RetriedDeletes:
    """The failed DELs. note() receives the records of ended requests."""

    def __init__(self, log: Logger) -> None:
        self.log = log
        self.failed: dict[tuple[str, ...], int] = {}    # {(plugin, network, container, ifname): number of failed DELs}

    def note(self, ended: Ended) -> None:
        if ended.outcome == "0" and not self.failed:
            return                      # the usual case: no DEL has failed
        call = ended.call
        if call.command != "DEL" or ended.outcome == DECLINED or (attachment := call.attachment) is None:
            return
        key = (call.message.plugin, *attachment)
        failures = self.failed.pop(key, 0)
        if ended.outcome != "0":
            self.failed[key] = failures + 1             # the newest entry is the last
            forget_oldest(self.failed, MAX_FAILED)
        if failures and (ended.outcome == "0" or not failures & failures - 1):
            plugin, network, container, ifname = key
            self.log.warning("delete_retried", id=call.message.id, plugin=plugin, network=network, container=container,
                             ifname=ifname, failures=failures + (ended.outcome != "0"), outcome=ended.outcome)
