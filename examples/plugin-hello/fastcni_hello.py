"""hello: a veth pair; the pod has routes to the networks `to` through the host."""

from __future__ import annotations

from typing import Any

from fastcni import plugin as cni

Route = dict[str, str]


def read(req: cni.Request) -> list[Route]:
    """Return the routes of the pod, [{"dst": CIDR}]."""
    if req.command in ("DEL", "GC"):            # these need no keys, and must not fail for a bad one
        return []
    try:
        return [{"dst": text} for text in req.conf.texts("to") if cni.read_cidr(text)]
    except ValueError as e:
        raise cni.CniError(cni.errors.INVALID_CONFIG, f"to: {e}") from None


def add(req: cni.Request, routes: list[Route], undo: cni.Undo) -> dict[str, Any]:
    result = cni.add_addresses(req, undo, interface=1)
    result["routes"] = [*result.get("routes", ()), *routes]
    pod = cni.Pod(req)
    host, inside = cni.add_veth(req, pod, undo)
    cni.configure_host(pod, host, result)
    cni.configure_link(pod, inside, result)
    result["interfaces"] = [cni.interface(host), cni.interface(inside, req.netns)]
    return result


def delete(req: cni.Request, _: list[Route]) -> None:
    addresses = cni.free_addresses(req)         # found now, freed when the link is gone
    cni.every((cni.delete_link, req), *addresses)


def check(req: cni.Request, _: list[Route]) -> None:
    cni.check_addresses(req)
    cni.check_link(req, "veth")


def gc(req: cni.Request, _: list[Route]) -> None:
    cni.gc_addresses(req)


def status(req: cni.Request, _: list[Route]) -> None:
    cni.ipam_status(req)
