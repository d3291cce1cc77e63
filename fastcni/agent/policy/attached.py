"""Record the pods that ADDs attach to this node: the agent knows a pod's addresses before its Pod object shows them.

    Attachment          the record of an ADD, which the agent stores in a file for the next agent
    AttachedCompiler    a Compiler that takes pods from the source and the addresses of these pods from ADDs
"""

from __future__ import annotations

import errno
import json
import os
import shutil
from dataclasses import dataclass, replace
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fastcni._system import read_file, write_file
from fastcni.agent.policy import ports, renames, salvage
from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.objects import Pod
from fastcni.agent.policy.ports import FAST
from fastcni.agent.policy.state import IN, MAPS, OUT, PREFIXES, TO_NODE, VERSIONS
from fastcni.spec import address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fastcni.agent.policy.compile import Element
    from fastcni.agent.policy.ports import Port
    from fastcni.agent.policy.state import Change
    from fastcni.kernel.rtnl import Link

    Id = tuple[str, str, str]           # (network, container ID, name of the pod's link)

DIRECTORY = "pods"                     # below the agent's directory
DAMAGED = ".damaged"                # suffix of damaged files, which read_all() renames
MAX_BYTES = 1 << 20                 # the maximum size of an attachment's file
NOT_REGULAR = (errno.ELOOP, errno.EISDIR, errno.EOPNOTSUPP)     # errors of read_file() if the file is not regular


@dataclass(frozen=True, slots=True)
class Attachment:
    """The record of an ADD. id: (network, container ID, name of the pod's link). pod: the pod's key, "shop/web".
    labels: the pod's labels at the ADD. addresses: packed. sequence: increases with each ADD on the node, also after a
    restart of the agent. port: the pod's port; None in a file of an earlier version. leaving: the index of the port's
    link, if a DEL came and the link still existed; otherwise 0."""

    id: Id
    pod: str
    labels: Mapping[str, str]
    addresses: tuple[bytes, ...]
    sequence: int = 0
    port: Port | None = None
    leaving: int = 0

    @property
    def all_addresses(self) -> tuple[bytes, ...]:
        """The addresses to which the pod's policies apply: `addresses`, and the further addresses of the port."""
        return (*self.addresses, *self.port.further) if self.port else self.addresses

    @property
    def file(self) -> str:
        return "@".join(self.id) + ".json"


class AttachedCompiler(Compiler):
    """A Compiler that joins the pods of a source with the attachments of ADDs. The source calls put_pod() and
    delete_pod(); ADDs and DELs call the other methods.

    said: {key: the pod as the source describes it}. sequence: the number of the latest ADD. replaced: attachments that
    settle() has ended. The caller removes the file of such an attachment, or writes the file again if `attachments`
    still has the attachment. link_of(name): returns the index of a link, 0 if the link does not exist.
    """

    def __init__(self, node: str = "", link_of: Callable[[str], int] = lambda name: 0) -> None:
        super().__init__(node)
        self.link_of = link_of
        self.said: dict[str, Pod] = {}
        self.attachments: dict[Id, Attachment] = {}
        self.sequence = 0
        self.replaced: list[Attachment] = []
        self._expected: list[Attachment] = []           # ADDs between expect() and settle()
        self._deleted: dict[str, Pod] = {}              # {pod: its last object}, of deleted pods that have attachments
        self._written: dict[Id, set[Element]] = {}      # the elements of each attachment's port
        self._tunnels: set[Element] = set()             # elements of the node's tunnels
        self._of: dict[str, set[Id]] = {}               # {pod: its attachments}
        self._on: dict[str, Id] = {}                    # {port name: its attachment}
        self._at: dict[tuple[str, bytes], Id] = {}      # {(network, address): its attachment}

    def put_pod(self, pod: Pod) -> None:
        self.said[pod.key] = pod
        self._put_both(pod.key)

    def delete_pod(self, key: str) -> None:
        """Forget the source's pod. If the pod has attachments, keep its last labels until the pod's DEL, or until the
        next ADD of a pod with this name."""
        if (last := self.said.pop(key, None)) and key in self._of:
            self._deleted[key] = last
        self._put_both(key)

    def take(self) -> Change:
        self.settle()
        return super().take()

    def expect(self, attachment: Attachment) -> None:
        """Store an ADD for the next settle(). Before that call, `attachments` and `state` lack the attachment."""
        self.sequence = max(self.sequence, attachment.sequence)
        self._expected.append(attachment)

    def settle(self) -> None:
        """Record the ADDs that expect() has stored since the last call."""
        expected, self._expected = self._expected, []
        for it in expected:
            self.replaced += self.attach(it)

    def restricted(self, attachment: Attachment) -> list[str]:
        """Return the directions in which policies restrict the pod of an attachment: "in", "out"; and "node" if
        policies restrict packets from the pod to its own node."""
        namespace, _, name = attachment.pod.partition("/")
        pod = Pod(namespace, name, attachment.labels)
        return [PREFIXES[direction] for direction in self.directions_of(pod)] + [TO_NODE] * self.reaches_nodes(pod)

    def knows(self, attachment: Attachment) -> bool:
        """Return whether the compiler already has this attachment, or a restricted pod with one of its addresses."""
        elements = self.state.elements
        return (attachment.id in self.attachments or any(attachment.id == each.id for each in self._expected)
                or any(packed in elements[name] for name in MAPS for packed in attachment.all_addresses))

    def attach(self, attachment: Attachment) -> list[Attachment]:
        """Record an ADD. Return the attachments that the ADD replaces: earlier attachments with the same port, or with
        one of the addresses in the same network.

        If a replaced attachment has another port whose link still exists, the attachment stays, without addresses. Its
        port is then closed until the link is deleted.
        """
        network = attachment.id[0]
        self.sequence = max(self.sequence, attachment.sequence)
        self._deleted.pop(attachment.pod, None)
        there = {self._at[network, packed] for packed in attachment.addresses if (network, packed) in self._at}
        if attachment.port and attachment.port.name in self._on:
            there.add(self._on[attachment.port.name])
        gone = [found for id in there if (found := self.detach(id)) and found.id != attachment.id]
        self.detach(attachment.id)
        for each in gone:
            link = each.leaving or (each.port and self.link_of(each.port.name))
            if each.port and link and not (attachment.port and attachment.port.name == each.port.name):
                self._record(replace(each, addresses=(), leaving=link))
        self._record(attachment)
        return gone

    def _record(self, attachment: Attachment) -> None:
        self.attachments[attachment.id] = attachment
        self._of.setdefault(attachment.pod, set()).add(attachment.id)
        self._at.update({(attachment.id[0], packed): attachment.id for packed in attachment.addresses})
        self._put_both(attachment.pod)
        if attachment.port:
            self._on[attachment.port.name] = attachment.id
            self._put_port(attachment.id)

    def detach(self, id: Id) -> Attachment | None:
        """Remove the attachment `id` from the records and return it; None if no such attachment is recorded."""
        self.settle()
        it = self.attachments.pop(id, None)
        if it is None:
            return None
        for packed in it.addresses:
            self._at.pop((id[0], packed), None)
        if it.port:
            self._on.pop(it.port.name, None)
            self._put_port(id)
        self._of[it.pod].discard(id)
        if not self._of[it.pod]:
            del self._of[it.pod]
            self._deleted.pop(it.pod, None)
        self._put_both(it.pod)
        return it

    def follow(self, links: Iterable[Link]) -> list[tuple[Attachment, Attachment]]:
        """Give each port the name, index and MAC that its link has now. Return (attachment before, attachment now) for
        each changed attachment. links: all links of the node."""
        self.settle()
        moved = list(renames.moved(self.attachments.values(), links))
        for before, _ in moved:
            if before.port:
                del self._on[before.port.name]
        for _, now in moved:
            self.attachments[now.id] = now
            if now.port:
                self._on[now.port.name] = now.id
            self._put_port(now.id)
        return moved

    def _put_both(self, key: str) -> None:
        """Put the pod `key`, joined from the source's pod and its attachments. A pod that the source does not have gets
        the labels of its latest ADD, because the DEL of an earlier pod of this name may come later, or never."""
        said, there = self.said.get(key), sorted(map(self.attachments.__getitem__, self._of.get(key, ())), key=order)
        if not there:
            if said:
                super().put_pod(said)
            else:
                super().delete_pod(key)
            return
        namespace, _, name = key.partition("/")
        known = said or self._deleted.get(key) or Pod(namespace, name, there[-1].labels)
        told = [*(said.addresses if said else ()), *(packed for each in there for packed in each.all_addresses)]
        super().put_pod(replace(known, addresses=tuple(dict.fromkeys(told)), node=self.node or known.node))

    def _put_port(self, id: Id) -> None:
        it, wanted = self.attachments.get(id), set()
        if it and it.port:
            shut, mute = (any(packed in self.state.elements[f"{direction}{VERSIONS[len(packed)]}"]
                              for packed in it.addresses) for direction in (IN, OUT))
            wanted = set(ports.elements(self._without_prefixes(it), it.addresses, shut=shut, mute=mute,
                                        index=self.link_of(it.port.name)))
        old = self._written.pop(id, set())
        if wanted:
            self._written[id] = wanted
        self._exchange(old, wanted)

    def _without_prefixes(self, attachment: Attachment) -> Port:
        """Return the port of an attachment. If the pod has an egress address of a family, leave out the port's prefixes
        of that family: packets from a prefix would not leave from the egress address."""
        assert attachment.port
        if attachment.pod not in self.cluster.pods or all(pair.single for pair in attachment.port.pairs):
            return attachment.port
        chosen = self.egress.selects(self.cluster.pods[attachment.pod])
        return replace(attachment.port, pairs=tuple(pair for pair in attachment.port.pairs if pair.single or not any(
            each.closed or each.of_family(pair.packed) for each in chosen)))

    def egress_changed(self) -> None:
        """Update the elements of ports with prefixes, after a change of the pods' egress addresses."""
        for id, it in self.attachments.items():
            if id in self._written and it.port and not all(pair.single for pair in it.port.pairs):
                self._put_port(id)

    def put_tunnels(self, wanted: set[Element]) -> None:
        """Replace the elements of the node's tunnels by `wanted`, see tunnels.py."""
        self._exchange(self._tunnels, wanted)
        self._tunnels = wanted

    def _exchange(self, old: set[Element], wanted: set[Element]) -> None:
        """Also fill each set of FAST that has free places after the exchange."""
        super()._exchange(old, wanted)
        for name in FAST.intersection(name for name, _ in old - wanted):
            self._journal.fill(name, self._held[name])

    def _lead(self, map_name: str, packed: bytes, direction: str, names: tuple[str, ...]) -> None:
        """Also replace the elements of the pod's ports, when policies begin or cease to restrict the address."""
        before = packed in self.state.elements.get(map_name, ())
        super()._lead(map_name, packed, direction, names)
        if before != (packed in self.state.elements.get(map_name, ())):
            for key in self._local.get(packed, ()):
                for id in self._of.get(key, ()):
                    if id in self._written:             # attach() puts the elements of a new port
                        self._put_port(id)


def order(attachment: Attachment) -> tuple[int, Id]:
    """Return the key that sorts attachments by their ADDs, the latest last."""
    return attachment.sequence, attachment.id


# -- files -------------------------------------------------------------------------------------------------------------

def keep(directory: str, attachment: Attachment) -> None:
    """Write the attachment's file; an ADD answers only after this call. rename(2) replaces an earlier file in one step.
    Raises OSError."""
    document = {"id": attachment.id, "pod": attachment.pod, "labels": dict(attachment.labels),
                "addresses": [address.ip_text(packed) for packed in attachment.addresses],
                "sequence": attachment.sequence,
                **({"port": ports.written(attachment.port)} if attachment.port else {}),
                **({"leaving": attachment.leaving} if attachment.leaving else {})}
    text = json.dumps(document)
    text = f'{text[:-1]}, "digest": "{digest(text)}"}}\n'
    write_file(new := f"{directory}/new", text.encode(), os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW)
    os.rename(new, f"{directory}/{attachment.file}")


def digest(text: str) -> str:
    return blake2b(text.encode(), digest_size=16).hexdigest()


def forget(directory: str, attachment: Attachment) -> None:
    """Remove the attachment's file, if it exists. Raises OSError."""
    Path(directory, attachment.file).unlink(missing_ok=True)


def read_all(directory: str) -> list[Attachment]:
    """Return the stored attachments, in the order of their ADDs, and rename damaged files. The list begins with an
    attachment for each damaged file that still names an address or a port: this attachment closes the pod until
    `fastcni restore` sends the pod's ADD again. Raises OSError."""
    os.makedirs(directory, 0o700, exist_ok=True)
    found, broken = read_files(directory)
    forget_damaged(directory, {each.id for each in found}.__contains__)
    for path in broken:
        aside = path.with_name(path.name + DAMAGED)
        remove(aside)
        path.replace(aside)
    return [*filter(None, map(salvaged, damaged(directory))), *found]


def salvaged(path: Path) -> Attachment | None:
    """Return the attachment that closes the pod of the damaged file `path`; None if the file names neither an address
    nor a port. Raises OSError.

    Any later ADD replaces this attachment, because its `sequence` is 0.
    """
    try:
        text = read_file(str(path), os.O_RDONLY | os.O_NOFOLLOW, MAX_BYTES, regular=True).decode(errors="replace")
    except OSError as e:
        if e.errno in NOT_REGULAR:
            return None
        raise
    id, addresses, port = id_of(path), salvage.addresses_of(text), salvage.port_of(text)
    if len(id) != 3 or not (addresses or port):
        return None
    return Attachment(id, f"{salvage.NAMESPACE}/{id[1]}", {}, addresses, port=port)


def unrecorded(compiler: AttachedCompiler, held: Iterable[tuple[Port, tuple[bytes, ...]]],
               damaged: Iterable[Path]) -> list[Attachment]:
    """Return attachments for the ports that no attachment has and whose link exists. held: (port, addresses) of each
    port in the kernel's tables.

    An attachment without a port gets the port that has one of its addresses. For each other port, a new attachment
    closes the port until its link is deleted, or until an ADD or `fastcni restore` comes for the port. If exactly one
    such port and one damaged file without an attachment remain, the new attachment has the file's ID, so that a DEL or
    GC of that ID ends it.
    """
    attachments, found, left = compiler.attachments.values(), [], []
    known = {it.port.name for it in attachments if it.port}
    owners = {packed: it for it in attachments for packed in it.all_addresses}
    for port, addresses in held:
        if port.name in known or not (link := compiler.link_of(port.name)):
            continue
        if owner := next((it for packed in addresses if (it := owners.get(packed)) and not it.port), None):
            found.append(replace(owner, port=port))
        else:
            left.append(Attachment(("", "", port.name), f"{salvage.NAMESPACE}/{port.name}", {}, tuple(
                packed for packed in addresses if packed not in owners), port=port, leaving=link))
    ids = [id for path in damaged if len(id := id_of(path)) == 3 and id not in compiler.attachments]
    if len(left) == len(ids) == 1:
        left = [replace(left[0], id=ids[0], leaving=0)]
    return found + left


def id_of(damaged: Path) -> Id:
    """Return the ID of the attachment whose damaged file has this path."""
    return tuple(damaged.name.removesuffix(f".json{DAMAGED}").split("@", 2))            # type: ignore[return-value]


def damaged(directory: str) -> list[Path]:
    """Return the renamed damaged files that no ADD has replaced by a new file. Raises OSError."""
    return [path for path in sorted(Path(directory).glob(f"*{DAMAGED}")) if not path.with_suffix("").exists()]


def forget_damaged(directory: str, gone: Callable[[Id], bool]) -> None:
    """Remove the damaged files for which gone(ID of the attachment) is true. Raises OSError."""
    for path in Path(directory).glob(f"*{DAMAGED}"):
        if gone(id_of(path)):
            remove(path)


def remove(path: Path) -> None:
    """Remove the file or directory at `path`, if it exists. Raises OSError."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def read_files(directory: str) -> tuple[list[Attachment], list[Path]]:
    """Return (attachments in the order of their ADDs, damaged files) of a directory. Raises OSError."""
    found, broken = [], []
    for name in os.listdir(directory):
        if name.endswith(".json"):
            path = Path(directory, name)
            try:
                data = read_file(str(path), os.O_RDONLY | os.O_NOFOLLOW, MAX_BYTES, regular=True)
                document = json.loads(data.decode())
                check(document)
                found.append(read(document, ports.read(document["port"]) if document.get("port") else None))
            except FileNotFoundError:           # a DEL has removed the file
                continue
            except OSError as e:
                if e.errno not in NOT_REGULAR:
                    raise
                broken.append(path)
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
                broken.append(path)
    return sorted(found, key=order), broken


def check(document: Any) -> None:
    """Remove the digest from a file's document. Raise ValueError if the digest is wrong. Files of earlier versions have
    no digest."""
    said = document.pop("digest", None)
    if said not in (None, digest(json.dumps(document))):
        raise ValueError("the file is damaged")


def read(document: Any, port: Port | None) -> Attachment:
    """Return the attachment that the document of a file or a request describes. Raises ValueError, TypeError, KeyError.
    """
    network, container, ifname = map(str, document["id"])
    if not isinstance(document["labels"], dict):
        raise TypeError("labels: expected an object")
    labels = {str(key): str(value) for key, value in document["labels"].items()}
    if not isinstance(sequence := document.get("sequence", 0), int):
        raise TypeError("sequence: expected a number")
    if not isinstance(leaving := document.get("leaving", 0), int):
        raise TypeError("leaving: expected a number")
    return Attachment((network, container, ifname), str(document["pod"]), labels,
                      tuple(map(address.read_ip, document["addresses"])), sequence, port, leaving)
