"""Adopt a node: list the attachments that fastcni recognises, and build indexes of host-local's directories."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from fastcni import plugins, third_party
from fastcni.kit.ipam.store import SPACE_DIRECTORY, Store
from fastcni.kit.networks.keys import CNI_DIR
from fastcni.kit.networks.network import RUNS_NETWORKS
from fastcni.node import confs
from fastcni.node.attachments.address_dirs import sections
from fastcni.node.attachments.attachment import (
    ADDRESS_FILE,
    GONE,
    ORPHANED,
    RUNNING,
    UNKNOWN,
    Inventory,
    NodeAttachment,
)
from fastcni.node.attachments.inventory import Places, look
from fastcni.node.attachments.merge import merge
from fastcni.runtime import NetworkList
from fastcni.spec.errors import CniError

DEFAULT_PLACES = Places()
INDEX = ".fastcni.index"
BUILT, WOULD_BUILD, FAILED = "built", "would be built", "failed"


@dataclass(frozen=True, slots=True)
class Verdict:
    """An attachment, and whether fastcni can check and delete it (owned). why: why fastcni cannot do this, or a remark,
    or ""."""

    attachment: NodeAttachment
    owned: bool
    why: str


@dataclass(frozen=True, slots=True)
class IndexedDirectory:
    """The directory of a host-local network. addresses: the number of its address files. state: BUILT, WOULD_BUILD or
    FAILED. error: why building the index failed, or ""."""

    path: str
    addresses: int
    state: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Adoption:
    """The outcome of adopt(): all attachments, a Verdict for each of them, and the directories with an index."""

    inventory: Inventory
    verdicts: tuple[Verdict, ...]
    directories: tuple[IndexedDirectory, ...]


def adopt(places: Places, *, dry_run: bool = False) -> Adoption:
    """Decide about every attachment. Unless dry_run is set, build the index of each network's address files.

    The index is a file next to host-local's files (kit/ipam/store.py), which the reference plugins ignore. adopt()
    changes nothing else.
    """
    seen = look(places)
    inventory = merge(seen.facts)
    third_party.register()
    known = {*plugins.BUILT_IN, *(plugin.kind for plugin in third_party.find() if not plugin.problem)}
    held: dict[str, int] = {}
    for it in seen.facts.sightings:
        directory = os.path.dirname(it.place)
        if it.kind == ADDRESS_FILE and not os.path.exists(f"{directory}/{SPACE_DIRECTORY}"):
            held[directory] = held.get(directory, 0) + 1
    networks = gc_networks(inventory, confs.networks(seen.files))
    return Adoption(inventory, tuple(judge(it, known, inventory, places, networks(it))
                                     for it in inventory.attachments),
                    tuple(index(directory, held[directory], dry_run) for directory in sorted(held)))


def judge(attachment: NodeAttachment, known: Collection[str], inventory: Inventory, places: Places,
          of_gc: str) -> Verdict:
    """Decide whether fastcni can check and delete an attachment. of_gc: the network whose GC releases the
    attachment."""
    foreign = [kind for kind in attachment.plugins if kind not in known]
    if foreign:
        return Verdict(attachment, False,
                       f"fastcni has no plugin {' and '.join(foreign)}: keep that plugin until the pod ends")
    if attachment.state in (ORPHANED, GONE):
        return Verdict(attachment, True,
                       f"{attachment.why}; `{gc_command(inventory, of_gc, places)}` releases it")
    if not attachment.network:
        return Verdict(attachment, False, "nothing names its network")
    if not attachment.cached:
        return Verdict(attachment, True,
                       "no cached result: the runtime has to send the network's configuration with DEL, as usual")
    if not attachment.cached.config:
        return Verdict(attachment, True,
                       "the cache file has no configuration: CHECK and DEL use the network's present one")
    return Verdict(attachment, True, "")


def gc_networks(inventory: Inventory, nets: Iterable[NetworkList]) -> Callable[[NodeAttachment], str]:
    """Return a function of an attachment. That function returns the network whose GC releases the whole attachment:
    the network of multus if multus made the attachment, otherwise the attachment's own network. nets: the configured
    networks."""
    kinds = set(RUNS_NETWORKS)
    by_pod = {it.container_id: it.network for it in inventory.attachments if kinds.intersection(it.plugins)}
    by_dir = {plugin.get("cniDir") or CNI_DIR: net.name for net in nets for kind in RUNS_NETWORKS
              for plugin in sections(confs.values_of([net]), kind)}

    def network_of(attachment: NodeAttachment) -> str:
        kept = os.path.dirname(os.path.dirname(attachment.cached.path)) if attachment.cached else ""
        return by_dir.get(kept) or by_pod.get(attachment.container_id) or attachment.network

    return network_of


def gc_command(inventory: Inventory, network: str, places: Places = DEFAULT_PLACES) -> str:
    """Return the command that releases what pods have left on a network. If this node shows no running pod of the
    network, the command asks the operator first.

    The command names the running pods that are not in the first cache directory, because gc reads only that directory.
    The command also names each directory that is not gc's default.
    """
    found = [it for it in inventory.attachments if it.network == network]
    cached = [it for it in found if it.cached and it.cached.path.startswith(f"{places.cache_dirs[0]}/")]
    valid = [f"--valid {it.container_id}/{it.ifname or 'IFNAME'}" for it in found
             if it not in cached and it.state in (RUNNING, UNKNOWN)]
    words = valid if valid or cached else ["--all"]
    if places.conf_dir != DEFAULT_PLACES.conf_dir:
        words.append(f"--conf-dir {places.conf_dir}")
    if places.cache_dirs[0] != DEFAULT_PLACES.cache_dirs[0]:
        words.append(f"--cache-dir {places.cache_dirs[0]}")
    return " ".join(["fastcni gc", *words, network or "NET"])


def index(directory: str, addresses: int, dry_run: bool) -> IndexedDirectory:
    """Build the index of a host-local directory, under its lock."""
    if dry_run:
        return IndexedDirectory(directory, addresses, WOULD_BUILD)
    data_dir, _, network = directory.rpartition("/")
    warnings: list[str] = []
    try:
        with Store(data_dir, network, warnings.append) as store:
            if store is None:
                return IndexedDirectory(directory, 0, FAILED, "the directory has vanished")
            store.read_all()
            addresses = len(store.index)
    except CniError as e:
        return IndexedDirectory(directory, addresses, FAILED, e.msg)
    trouble = [text for text in warnings if INDEX in text]
    return IndexedDirectory(directory, addresses, FAILED if trouble else BUILT, "; ".join(trouble))
