"""Release an address whose pod no longer exists but had no DEL, when two checks have found that the pod's network
namespace does not exist.

Between the checks and the release a request may make the attachment again. So release() reads the record and the
namespace again, under the lock of the address files.
"""

from __future__ import annotations

from fastcni.kit.ipam.cluster.contract import HELD, KEPT
from fastcni.server.cluster.times import Job, spread

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from fastcni.kit.ipam.cluster.contract import IPClaim
    from fastcni.server.cluster.pods import Pods
    from fastcni.server.cluster.space import ClusterSpace

    Key = tuple[str, str, str]              # address, container id, ifname


class Reconcile:
    """The search for addresses without a pod in one address space."""

    def __init__(self, space: ClusterSpace, pods: Pods) -> None:
        self.space, self.pods = space, pods
        self.gone: dict[Key, float] = {}            # {key: since when the pod is missing, in monotonic seconds}
        self.gone_ip_claims: dict[Key, float] = {}
        self.containers: dict[tuple[str, str], set[str]] = {}       # {(path of a namespace, ifname): its containers}
        self.jobs = [Job(self._look, 0.0, remote=False), Job(self._look_at_ip_claims, 0.0)]

    def _look(self, now: float) -> float:
        self.pods.forget()
        space = self.space
        holders = {key_of(one): one for one in space.local.all_holders()}
        self.containers = {}
        for one in holders.values():
            self.containers.setdefault((one.get("netns", ""), one["ifname"]), set()).add(one["container"])
        due, self.gone = self._due(holders, self.gone, now)
        for key in due:
            if space.local.release(holders[key], self._is_gone):
                del self.gone[key]
                space.log.warning("cluster_address_released", space=space.name, address=key[0], container=key[1],
                                  ifname=key[2], why="the pod's network namespace is gone")
                space.note_released(key[0])
        return self._next(now, self.gone)

    def _look_at_ip_claims(self, now: float) -> float:
        """Check the pods of this node's IP claims that have no file. Keep a sticky claim for its pod."""
        space = self.space
        if not space.ip_claims.any:
            return now + spread(space.times.reconcile_s)
        local = {one["address"] for one in space.local.all_holders()}
        mine = {key_of(one.to_dict()): one for one in space.member.store.ip_claims(space.name, space.member.name)
                if one.state == HELD and one.address not in local}
        known = {key: one.to_dict() for key, one in mine.items()}
        due, self.gone_ip_claims = self._due(known, self.gone_ip_claims, now)
        for key in due:
            if self._end(mine[key]):
                del self.gone_ip_claims[key]
        return self._next(now, self.gone_ip_claims)

    def _end(self, ip_claim: IPClaim) -> bool:
        """Release an IP claim. Raises Changed if the claim in the store is no longer `ip_claim`."""
        space = self.space
        if ip_claim.sticky and ip_claim.pod:
            space.member.store.change_ip_claim(ip_claim, state=KEPT)
        elif not space.member.store.release_ip_claim(ip_claim):
            return False
        space.log.warning("cluster_address_released", space=space.name, address=ip_claim.address,
                          container=ip_claim.container, ifname=ip_claim.ifname,
                          kept=bool(ip_claim.sticky and ip_claim.pod),
                          why="the pod's network namespace is gone")
        return True

    def _due(self, holders: Mapping[Key, Mapping[str, Any]], before: dict[Key, float],
             now: float) -> tuple[list[Key], dict[Key, float]]:
        """Return (the addresses to release now, {each address without a pod: since when its pod is missing})."""
        gone = {key: before.get(key, now) for key, one in holders.items() if self._is_gone(one)}
        return [key for key, since in gone.items() if now - since >= self.space.times.apart_s], gone

    def _is_gone(self, record: Mapping[str, Any]) -> bool:
        """Return whether the pod of an address no longer exists."""
        attachment = record.get("network", ""), record["container"], record["ifname"]
        path = record.get("netns", "")
        shared = len(self.containers.get((path, record["ifname"]), ())) > 1
        return self.pods.is_gone(attachment, path, record.get("since", 0.0), shared=bool(path) and shared)

    def _next(self, now: float, gone: Mapping[Key, float]) -> float:
        times = self.space.times
        return min([now + spread(times.reconcile_s), *(since + times.apart_s for since in gone.values()
                                                       if since + times.apart_s > now)])


def key_of(record: Mapping[str, Any]) -> Key:
    return record["address"], record.get("container", ""), record.get("ifname", "")


