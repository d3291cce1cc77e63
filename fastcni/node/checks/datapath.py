"""Check the datapath ebpf: its pins, its programs, its filters and the free elements in its maps."""

from __future__ import annotations

from collections.abc import Iterator

from fastcni.kernel import wire
from fastcni.kernel.bpf import objects
from fastcni.kernel.bpf.redirect_programs import PROGRAMS
from fastcni.kernel.wire import Socket
from fastcni.kit.call.conf import EBPF
from fastcni.kit.datapath import filters, pins
from fastcni.node.attachments.address_dirs import sections
from fastcni.node.attachments.attachment import RUNNING
from fastcni.node.checks.denied import denied
from fastcni.node.checks.findings import ERROR, NEARLY, WARNING, Finding, Node, plural, some
from fastcni.node.own import datapath as own

LOAD = "fastcni datapath load"


def datapath(node: Node) -> Iterator[Finding]:
    """Pods whose network has the datapath ebpf are in its map, and their links have this version's programs."""
    with wire.open_socket() as sock:
        try:
            found, links = own.read(sock), filters.linked(sock)
            if links and not found:
                yield Finding(ERROR, f"{plural(len(links), 'link')} of pods redirect{'s' * (len(links) == 1)} flows by "
                              f"maps that have no pins in {pins.ROOT}", "no policy and no DEL can end these flows; "
                              "another program has removed the pins, or has mounted bpffs again", LOAD)
                return
            if found:
                yield from of_links(node, found, links, own_programs(sock))
                yield from full(found)
        except OSError as e:
            if not denied(e):
                raise
            node.unseen.append(f"datapath ebpf: {e}")
            return
    yield from without(node)


def own_programs(sock: Socket) -> set[int]:
    """Return the ids of this version's programs that are pinned. Raises OSError."""
    found = set()
    for name in pins.program_pins():
        try:
            fd = objects.get(f"{pins.directory(sock)}/{name}")
        except FileNotFoundError:
            continue
        found.add(objects.program_id(fd))
        objects.close(fd)
    return found


def of_links(node: Node, found: own.Status, links: dict[int, set[int]], programs: set[int]) -> Iterator[Finding]:
    """Yield findings for links in the map of pods that lack filters, or have programs of another version."""
    names = {link.index: link.name for link in node.links}
    other = [names.get(index, str(index)) for index, ids in links.items() if not ids <= programs]
    if other:
        yield Finding(WARNING, f"{plural(len(other), 'link')} of pods ({some(other)}) "
                      f"{'has' if len(other) == 1 else 'have'} programs of another version of fastcni",
                      "redirected flows go on by that version's rules", LOAD)
    indexes = {pod.link for pod in found.pods.values()}
    lost = [names[index] for index in sorted(indexes) if index in names and len(links.get(index, ())) < len(PROGRAMS)]
    if PROGRAMS and lost:
        yield Finding(WARNING, f"{plural(len(lost), 'link')} of pods ({some(lost)}) "
                      f"{'has' if len(lost) == 1 else 'have'} lost filters of the datapath ebpf",
                      "packets of these pods pass through the host's stack, and CHECK fails", LOAD)


def full(found: own.Status) -> Iterator[Finding]:
    """Yield findings for maps that are full or nearly full."""
    for name, count, effect in (("pods", len(found.pods), "pods that are added work without the datapath"),
                                ("flows", found.entries, "new flows pass through the host's stack")):
        most = pins.MAPS[name][2]
        if count >= most * NEARLY:
            yield Finding(WARNING, f"the map of {name} of the datapath ebpf has {count} of {most} elements",
                          f"when the map is full, {effect}", "fastcni gc --all removes flows that have ended and pods "
                          "that no longer exist; a server does so every 30 s")


def without(node: Node) -> Iterator[Finding]:
    """Yield a finding for running pods that are not in the map although their network has datapath "ebpf"."""
    lacking = [it.name for it in node.inventory.attachments if it.state == RUNNING and not it.datapath
               and "bandwidth" not in it.plugins
               and any(keys.get("datapath") == EBPF for keys in sections(it.config, "ptp"))]
    if lacking:
        why = "" if PROGRAMS else "; this fastcni was built without clang, so it has no programs"
        yield Finding(WARNING, f'{plural(len(lacking), "running pod")} ({some(lacking)}) '
                      f'{"is" if len(lacking) == 1 else "are"} not in the datapath "ebpf" of their network{why}',
                      "their packets pass through the host's stack", "the runtime's log has the warning of ADD, which "
                      "says why; remove the cause, then delete the pod, so that the runtime creates a new pod")
