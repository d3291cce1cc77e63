"""Put the documents of a source into a Compiler. For an unreadable document, keep the last readable version in the
Compiler.

    content = Content(compiler)
    for _ in content.replace("/etc/fastcni/policies/web.yaml", [("document 1", line)]):
        ...                                     # between two steps, the caller can answer requests

A place is the unit that a source reads and replaces: a file with its documents, or an object of the Kubernetes API.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from fastcni.agent.egress.objects import EgressAddress
from fastcni.agent.policy.cluster_policies import ClusterPolicy
from fastcni.agent.policy.objects import Node, Pod, Policy
from fastcni.agent.policy.sources.documents import EGRESS_ADDRESS, NAMESPACE, NODE, POD, read_entry

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping

    from fastcni.agent.policy.compile import Compiler
    from fastcni.agent.policy.sources.documents import Entry, Id, Record


@dataclass(frozen=True, slots=True)
class Place:
    """The content of a place. entries: {document as encode() writes it: its Entry}. records: see records_of()."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    records: Mapping[Id, Record] = field(default_factory=dict)


class Content:
    """The documents of a source, in the Compiler. places: {name of a place: its Place}. errors: {place: texts} about
    unreadable documents. notes: {place: texts} about readable documents: parts that this version does not know, and
    several documents with one name. unsure: places with an unreadable document that may be a policy and has no previous
    version. superseded: {id: places} of documents with different versions in several places; the version in the last
    place is in force.

    While a place has errors, its previous documents stay in use. An unreadable document without a readable previous
    version closes pods (unreadable.py).
    """

    def __init__(self, compiler: Compiler, changed: Callable[[], object] | None = None) -> None:
        """compiler: gets the records. changed(): called after each change of `places`."""
        self.compiler, self.changed = compiler, changed
        self.places: dict[str, Place] = {}
        self.errors: dict[str, list[str]] = {}
        self.notes: dict[str, list[str]] = {}
        self.unsure: set[str] = set()
        self.superseded: dict[Id, list[str]] = {}
        self._records: dict[Id, dict[str, Record]] = {}         # {id: {place: record}}; the last record is in force

    def replace(self, place: str, documents: Collection[tuple[str, bytes]], broken: Collection[tuple[str, str]] = (),
                ) -> Iterator[None]:
        """Replace the documents of a place, and yield after each step. Unchanged documents are not read again.

        documents: (where, document as encode() writes it). broken: (where, why) for the parts that cannot be parsed. If
        both are empty, the place is forgotten.
        """
        old = self.places.get(place, Place())
        entries: dict[bytes, Entry] = {}
        errors = [join(where, why) for where, why in broken]
        for where, line in documents:
            entry = entries[line] = old.entries.get(line) or read_entry(line)
            if entry.error:
                errors.append(join(where, entry.error))
            yield
        if not errors:
            self.unsure.discard(place)
        elif keep_former(entries, old, bool(broken)) and place not in self.places:
            self.unsure.add(place)
        new = Place(entries, records_of(entries.values()))
        for id, record in new.records.items():
            if old.records.get(id) is not record:
                self._records.setdefault(id, {})[place] = record
                self._put(id)
                yield
        for id in old.records.keys() - new.records.keys():
            del self._records[id][place]
            self._put(id)
            yield
        self.errors.pop(place, None)
        if errors:
            self.errors[place] = errors
        self.notes.pop(place, None)
        if notes := [note for entry in entries.values() for note in entry.notes] + repeated(entries.values()):
            self.notes[place] = notes
        self.places.pop(place, None)
        if entries:
            self.places[place] = new
        if self.changed and entries.keys() != old.entries.keys():
            self.changed()

    def told(self) -> dict[str, list[str]]:
        """Return {place: texts} of `errors`, `notes` and `superseded`."""
        found = {place: [*self.errors.get(place, ()), *self.notes.get(place, ())]
                 for place in self.errors.keys() | self.notes.keys()}
        for (kind, key), (*others, last) in self.superseded.items():
            for place in others:
                text = f"{kind} {key} is not in force: {last} has another {kind} of this name"
                found.setdefault(place, []).append(text)
        return found

    def _put(self, id: Id) -> None:
        records, (kind, key), compiler = self._records[id], id, self.compiler
        last = max(records, default="")
        record = records.get(last)
        self.superseded.pop(id, None)
        if others := sorted(place for place, each in records.items() if each != record):
            self.superseded[id] = [*others, last]
        if isinstance(record, Pod):
            compiler.put_pod(record)
        elif isinstance(record, Policy | ClusterPolicy):
            compiler.put_policy(record)
        elif isinstance(record, Node):
            compiler.put_node(key, record)
        elif isinstance(record, EgressAddress):
            compiler.egress.put(key, record)
        elif kind == EGRESS_ADDRESS:
            compiler.egress.put(key, None)
        elif kind == NAMESPACE:
            compiler.put_namespace(key, record)
        elif kind == NODE:
            compiler.put_node(key, None)
        else:
            (compiler.delete_pod if kind == POD else compiler.delete_policy)(key)
        if not records:
            del self._records[id]


def keep_former(entries: dict[bytes, Entry], old: Place, unparsed: bool) -> bool:
    """Add to `entries`, the entries of a place with errors, the previous entries of this place that no new entry
    replaces. unparsed: whether a part of the place could not be parsed.

    Return whether an unreadable document may be a policy that no entry names. Only in this case, keep_former() adds
    previous entries that close pods.
    """
    good = records_of(entry for entry in entries.values() if not entry.error)
    unsure = unparsed or any(entry.error and not entry.records and entry.kind not in (POD, NAMESPACE, NODE)
                             for entry in entries.values())
    for line, entry in old.entries.items():
        if unsure if entry.error else not entry.records.keys() <= good.keys():
            entries.setdefault(line, entry)
    return unsure


def records_of(entries: Iterable[Entry]) -> Mapping[Id, Record]:
    """Return the records of the entries. Records of readable documents replace records of unreadable documents."""
    found: dict[Id, Record] = {}
    unreadable = []
    entries = list(entries)
    if len(entries) == 1:               # for an object of the API: saves memory with 100,000 pods
        return entries[0].records
    for entry in entries:
        if entry.error:
            unreadable.append(entry)
        else:
            found |= entry.records
    for entry in unreadable:
        found = {**entry.records, **found}
    return found


def repeated(entries: Iterable[Entry]) -> list[str]:
    """Return a note for each id that several readable documents of a place have."""
    count = Counter(id for entry in entries if not entry.error for id in entry.records)
    return [f"{kind} {key} occurs {number} times; the last one is in force"
            for (kind, key), number in count.items() if number > 1]


def join(where: str, text: str) -> str:
    return f"{where}: {text}" if where else text
