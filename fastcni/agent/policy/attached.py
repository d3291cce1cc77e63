"""The pods of this node by what ADDs say: a pod has its addresses before its object shows them.

    Attachment          the record of an ADD; the agent stores it in a file, so that a restarted agent knows it
    AttachedCompiler    a Compiler to which sources give pods, and ADDs give the addresses of these pods
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
from fastcni.agent.policy import ports, salvage
from fastcni.agent.policy.compile import Compiler
from fastcni.agent.policy.objects import Pod
from fastcni.agent.policy.state import IN, MAPS, OUT, PREFIXES, TO_NODE, VERSIONS
from fastcni.spec import address

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from fastcni.agent.policy.compile import Element
    from fastcni.agent.policy.ports import Port
    from fastcni.agent.policy.state import Change

    Id = tuple[str, str, str]           # network, container ID, name of the link

DIRECTORY = "pods"                     # in that of the agent
DAMAGED = ".damaged"                # ends the name of a file that was put aside
MAX_BYTES = 1 << 20                 # of a file
NOT_REGULAR = (errno.ELOOP, errno.EISDIR, errno.EOPNOTSUPP)     # read_file()'s errors


@dataclass(frozen=True, slots=True)
class Attachment:
    """id: network, container ID, name of the link. pod: key of the pod, "shop/web". labels: as they were at ADD.
    addresses: packed. sequence: a later ADD of the node has a higher number, also after a restart of the agent. port:
    the pod's port; None: an earlier version has written the file. leaving: index of the port's link, if the link
    existed at the DEL; 0: before the DEL."""

    id: Id
    pod: str
    labels: Mapping[str, str]
    addresses: tuple[bytes, ...]
    sequence: int = 0
    port: Port | None = None
    leaving: int = 0

    @property
    def all_addresses(self) -> tuple[bytes, ...]:
        """The pod's addresses for policies."""
        return (*self.addresses, *self.port.further) if self.port else self.addresses

    @property
    def file(self) -> str:
        return "@".join(self.id) + ".json"


class AttachedCompiler(Compiler):
    """put_pod() and delete_pod() are for the source of pods.

    said: the pods that the source has put. sequence: the number of the latest ADD. replaced: attachments that settle()
    has ended. The caller removes their files, or writes a file if the attachment is still in `attachments`. link_of:
    returns the index of a link by its name, 0 if the link does not exist.
    """

    def __init__(self, node: str = "", link_of: Callable[[str], int] = lambda name: 0) -> None:
        super().__init__(node)
        self.link_of = link_of
        self.said: dict[str, Pod] = {}
        self.attachments: dict[Id, Attachment] = {}
        self.sequence = 0
        self.replaced: list[Attachment] = []
        self._expected: list[Attachment] = []           # of expect(), until settle()
        self._deleted: dict[str, Pod] = {}              # last objects of pods that have attachments
        self._written: dict[Id, set[Element]] = {}      # elements of ports
        self._tunnels: set[Element] = set()             # elements of the node's tunnels
        self._of: dict[str, set[Id]] = {}               # by pod
        self._on: dict[str, Id] = {}                    # by name of the port
        self._at: dict[tuple[str, bytes], Id] = {}      # by network and address

    def put_pod(self, pod: Pod) -> None:
        self.said[pod.key] = pod
        self._put_both(pod.key)

    def delete_pod(self, key: str) -> None:
        """A pod that has attachments keeps the labels of its object until its DEL or the next ADD of its name."""
        if (last := self.said.pop(key, None)) and key in self._of:
            self._deleted[key] = last
        self._put_both(key)

    def take(self) -> Change:
        self.settle()
        return super().take()

    def expect(self, attachment: Attachment) -> None:
        """Record an ADD at the next settle(). Until then `attachments` and `state` do not have the attachment."""
        self.sequence = max(self.sequence, attachment.sequence)
        self._expected.append(attachment)

    def settle(self) -> None:
        """Record the ADDs of expect()."""
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
        """Return whether the attachment, or a restricted pod with one of its addresses, was recorded before."""
        elements = self.state.elements
        return (attachment.id in self.attachments or any(attachment.id == each.id for each in self._expected)
                or any(packed in elements[name] for name in MAPS for packed in attachment.addresses))

    def attach(self, attachment: Attachment) -> list[Attachment]:
        """Record an ADD. Return the attachments that the ADD replaces: earlier attachments with one of its addresses or
        its port.

        An earlier attachment whose own port still exists stays, without addresses: the port is closed until its link
        is deleted.
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
        """Record a DEL. Return the attachment that it ends."""
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

    def _put_both(self, key: str) -> None:
        """Put a pod by its object and its ADDs. A pod without an object has the labels of its latest ADD: the DEL of an
        earlier pod of this name may come later, or never."""
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
        """Return the port of an attachment without prefixes of the families in which the pod has an egress address: no
        packets from a prefix leave from that address."""
        assert attachment.port
        if attachment.pod not in self.cluster.pods or all(pair.single for pair in attachment.port.pairs):
            return attachment.port
        chosen = self.egress.selects(self.cluster.pods[attachment.pod])
        return replace(attachment.port, pairs=tuple(pair for pair in attachment.port.pairs if pair.single or not any(
            each.closed or each.of_family(pair.packed) for each in chosen)))

    def egress_changed(self) -> None:
        """Follow the egress addresses."""
        for id, it in self.attachments.items():
            if id in self._written and it.port and not all(pair.single for pair in it.port.pairs):
                self._put_port(id)

    def put_tunnels(self, wanted: set[Element]) -> None:
        """Put the elements of the node's tunnels, see tunnels.py."""
        self._exchange(self._tunnels, wanted)
        self._tunnels = wanted

    def _exchange(self, old: set[Element], wanted: set[Element]) -> None:
        for element in wanted - old:
            self._hold(element)
        for element in old - wanted:
            self._release(element)

    def _lead(self, map_name: str, packed: bytes, direction: str, names: tuple[str, ...]) -> None:
        """A port whose pod becomes restricted, or is no longer, has other elements."""
        before = packed in self.state.elements.get(map_name, ())
        super()._lead(map_name, packed, direction, names)
        if before != (packed in self.state.elements.get(map_name, ())):
            for key in self._local.get(packed, ()):
                for id in self._of.get(key, ()):
                    if id in self._written:             # attach() writes those of a new one, once
                        self._put_port(id)


def order(attachment: Attachment) -> tuple[int, Id]:
    """Key to sort by: later ADDs come last."""
    return attachment.sequence, attachment.id


# -- files -------------------------------------------------------------------------------------------------------------

def keep(directory: str, attachment: Attachment) -> None:
    """Write the attachment's file, before the ADD answers. A new file replaces an earlier file in one step. Raises
    OSError."""
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
    """Remove its file. Raises OSError."""
    Path(directory, attachment.file).unlink(missing_ok=True)


def read_all(directory: str) -> list[Attachment]:
    """Return the stored attachments, in the order of their ADDs. Rename a damaged file. If a damaged file still names
    an address, an attachment closes this address until `fastcni restore` sends the pod's ADD again. Raises OSError."""
    os.makedirs(directory, 0o700, exist_ok=True)
    found, broken = read_files(directory)
    forget_damaged(directory, {each.id for each in found}.__contains__)
    for path in broken:
        aside = path.with_name(path.name + DAMAGED)
        remove(aside)
        path.replace(aside)
    return [*filter(None, map(salvaged, damaged(directory))), *found]


def salvaged(path: Path) -> Attachment | None:
    """Return the attachment that closes the pod of a damaged file, None if the file names neither an address nor a
    port. Raises OSError.

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
    """Return attachments that close the ports without a record. held: the ports in the kernel's tables, with addresses.

    The port belongs to the attachment that has one of its addresses and no port. If a single port is left and a single
    damaged file has no attachment, the port is that file's: a DEL or GC of its ID ends the attachment. Any other port
    is closed until its link is deleted, or until an ADD or `fastcni restore`.
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
    """Files that were put aside and that no ADD has replaced. Raises OSError."""
    return [path for path in sorted(Path(directory).glob(f"*{DAMAGED}")) if not path.with_suffix("").exists()]


def forget_damaged(directory: str, gone: Callable[[Id], bool]) -> None:
    """Remove the damaged files of attachments that no longer exist, by `gone`. Raises OSError."""
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
    """(attachments in the order of their ADDs, damaged files) of a directory. Raises OSError."""
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
    """Raise ValueError if a file was changed after it was written. Earlier versions wrote no digest."""
    said = document.pop("digest", None)
    if said not in (None, digest(json.dumps(document))):
        raise ValueError("the file is damaged")


def read(document: Any, port: Port | None) -> Attachment:
    """Return the attachment of a file or a request. Raises ValueError, TypeError, KeyError."""
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
