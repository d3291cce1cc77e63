"""Find the store of cluster-wide addresses that this node's network configurations name."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastcni.clients.errors import Away
from fastcni.kit.ipam.address_files import address_of, owner_of
from fastcni.kit.ipam.cluster import conf, flat_file, grid, node_state, stores
from fastcni.node import confs
from fastcni.node.attachments import address_dirs
from fastcni.node.cluster import state as cluster_state
from fastcni.node.cluster.survey import USED, Holder, Place, Survey, places_of, sentence, survey
from fastcni.node.cluster.whereabouts import Net, Source, read_source
from fastcni.runtime.records import NetworkList
from fastcni.spec import address, errors
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.kit.ipam.cluster.contract import Store
    from fastcni.kit.ipam.cluster.grid import Range

@dataclass(frozen=True, slots=True)
class ClusterNetwork:
    """A network with cluster-wide addresses. section: the plugin's configuration. keys: the keys that name the store,
    the address space and the directory of this node's files."""

    name: str
    section: Section
    keys: conf.Keys

    @property
    def where(self) -> str:
        """Return the store as text: "etcd https://10.0.0.1:2379"."""
        return stores.store_text(self.keys.store)


@dataclass(slots=True)
class Site:
    """A store, and this node's networks that use the store. `with` closes the store.

    node: this node's name in the store. where: the store as text.
    """

    store: Store
    node: str
    where: str
    networks: list[ClusterNetwork] = field(default_factory=list)

    def __enter__(self) -> Site:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.store.close()
        if isinstance(error, Away):
            raise away(self.where, error) from None

    def survey(self, space: str = "") -> Survey:
        """Return the Survey of the store. The holders in this node's blocks come from this node's files. Raises
        Away."""
        here: dict[tuple[str, str], list[Holder]] = {}
        for keys in {it.keys.space: it.keys for it in self.networks}.values():
            if space in ("", keys.space):
                here |= holders_here(keys)
        return survey(self.store, space, here)

    def release_here(self, holder: Holder) -> bool:
        """Remove an address from this node's files. Return False if another holder has the address. Raises CniError 4
        and 5."""
        keys = next((it.keys for it in self.networks if it.keys.space == holder.space), None)
        if keys is None:
            raise CniError(errors.INVALID_ENVIRONMENT, f"no network of this node has the space {holder.space}",
                           "name the directory of its configuration with --conf-dir")
        owner = owner_of(holder.container, holder.ifname)
        with node_state.Space(keys, warn) as space:
            if space is None:
                return False
            found = space.files.read_owner(holder.address) or b""
            marker = holder.ip_claim is not None and found.startswith(node_state.KEPT_OWNER.encode())
            if found != owner and not marker:
                return False
            space.drop_file(address.read_ip(holder.address), found)
            return True

    def read_whereabouts(self, kubeconfig: str, namespace: str) -> Source:
        """Read whereabouts' objects, with this kubeconfig or, if it is "", with the kubeconfig of the networks. Raises
        CniError 4 if there is no kubeconfig, 11 if the API server does not answer."""
        settings = {"type": "kubernetes", "kubeconfig": kubeconfig} if kubeconfig else self.kubernetes()
        store: Any = stores.open_store(settings)
        try:
            return read_source(store, namespace)
        except Away as e:
            raise CniError(errors.TRY_AGAIN_LATER, f"cannot read whereabouts' objects from "
                           f"{stores.store_text(settings)}: {e}", "is whereabouts installed, and may this user list "
                           "its objects and pods? See --kubeconfig and --namespace") from None
        finally:
            store.close()

    def kubernetes(self) -> stores.Settings:
        """Return the settings of the Kubernetes API: the settings of the store, otherwise those in whereabouts' key
        `kubernetes`."""
        for it in self.networks:
            if it.keys.store["type"] == "kubernetes":
                return it.keys.store
            ipam, _ = conf.merged_section(it.section)
            if kubeconfig := ipam.section("kubernetes").text("kubeconfig"):
                return {"type": "kubernetes", "kubeconfig": kubeconfig}
        raise CniError(errors.INVALID_ENVIRONMENT, "no network names a Kubernetes API", "give its --kubeconfig")


def holders_here(keys: conf.Keys) -> dict[tuple[str, str], list[Holder]]:
    """Return {(space, cidr): holders} of this node's blocks, from the node's files. If the files cannot be read, print
    a warning and return {}."""
    try:
        with node_state.Space(keys, warn) as space:
            if space is None or space.state.node != keys.node:
                return {}
            found: dict[tuple[str, str], list[Holder]] = {(keys.space, cidr): [] for cidr in space.state.blocks}
            for name in space.files.names():
                if holder := holder_here(space, name):
                    found[keys.space, holder.block].append(holder)
            return found
    except CniError as e:
        warn(f"this node's own addresses are left out: {e}")
        return {}


def holder_here(space: node_state.Space, name: str) -> Holder | None:
    """Return the holder of an address in this node's blocks, from the address's file. None: the file is of no address
    in these blocks, or holds its address for an IP claim."""
    packed = address_of(name)
    block = space.state.own_block(packed) if packed else None
    owner = (space.files.read_owner(name) or b"").decode("utf-8", "replace")
    if block is None or not owner or owner.startswith(node_state.KEPT_OWNER):
        return None
    network, pod, _ = space.files.note(name)
    container, _, ifname = owner.partition("\r\n")
    since = os.stat(name, dir_fd=space.files.fd, follow_symlinks=False).st_mtime
    return Holder(space.keys.space, name, block.cidr, USED, space.keys.node, container, ifname, pod, network, since)


def warn(text: str) -> None:
    """Print a warning about this node's files to stderr."""
    print(f"Warning: {text}", file=sys.stderr)


def away(where: str, error: Away) -> CniError:
    """Return the error of a command whose store did not answer."""
    return CniError(errors.TRY_AGAIN_LATER, f"the store {where} does not answer: {error}",
                    "pods go on with their addresses, and nodes give those of their own blocks; start the store, or "
                    "correct `store` in the network's configuration")


def networks_of(nets: Iterable[NetworkList]) -> Iterator[ClusterNetwork]:
    """Yield each network with cluster-wide addresses. Raises CniError 5 and 7 if the keys that name its store are
    invalid."""
    for net in nets:
        for kind in address_dirs.CLUSTER_KINDS:
            for ipam in address_dirs.sections([plugin.values for plugin in net.plugins], kind):
                section = Section({"cniVersion": net.version, "name": net.name, "ipam": ipam})
                try:
                    place = conf.read_place(section)
                except CniError as e:
                    raise CniError(e.code, f"network {net.name}: {e.msg}", e.details) from None
                yield ClusterNetwork(net.name, section, place)


def open_site(conf_dir: str, network: str = "") -> Site:
    """Return the Site of a network; without a name, of all networks with cluster-wide addresses. The Site connects to
    the store at its first use. Raises CniError 4 if no such network exists, or if the networks have several stores.

    If no configuration file in the directory has such a network, use the networks of elsewhere()."""
    nets = confs.networks(confs.read_directory(conf_dir))
    chosen = [net for net in nets if network in ("", net.name)]
    found = stores_of(chosen)
    if not found:
        list(networks_of(chosen))           # raises the error of a wrong key
        found = by_store(it for it in elsewhere() if network in ("", it.name))
    if not found:
        what = f"network {network} has" if network else f"the networks of {conf_dir} have"
        raise CniError(errors.INVALID_ENVIRONMENT, f"{what} no IPAM type cluster or whereabouts",
                       "name another directory with --conf-dir; docs/ipam.md shows a configuration")
    if len(found) > 1:
        named = "; ".join(f"{', '.join(it.name for it in one)}: {one[0].where}" for one in found)
        raise CniError(errors.INVALID_ENVIRONMENT, f"the networks of {conf_dir} have {len(found)} stores: {named}",
                       f"choose one with --network, for instance --network {found[0][0].name}")
    (networks,) = found
    first = networks[0]
    return Site(stores.open_store(first.keys.store), first.keys.node, first.where, networks)


def elsewhere() -> list[ClusterNetwork]:
    """Return the address spaces that this node has joined, as networks. Before the node's first pod, return a network
    with the store of the flat file. With Multus, the networks themselves are in the API server."""
    joined = cluster_state.states(address_dirs.cluster_dirs(()), [])
    sections = [cluster_state.section_of(directory, state) for directory, state in joined if state.node and state.store]
    if not sections and flat_file.find("") is not flat_file.NONE:
        sections = [Section({"name": conf.SPACE, "ipam": {"type": "whereabouts"}})]
    found = [ClusterNetwork(it.text("name"), it, conf.read_place(it)) for it in sections]
    return [it for it in found if it.section.section("ipam").has("store") or it.keys.store["type"] != "local"]


def grids(store: Store, ranges: Mapping[str, Sequence[Net]], dry_run: bool) -> dict[str, dict[str, int]]:
    """Return the block sizes {space: {"4": 26, "6": 122}}. In a new space the ranges determine the block size: as with
    a configuration, small ranges get small blocks. dry_run: do not write the block sizes to the store. Raises Away."""
    found = {}
    for space, nets in ranges.items():
        wanted: dict[str, int] = {}
        for net in nets:
            bits, network = net.max_prefixlen, int(net.network_address)
            one = grid.make_range(bits, network, net.prefixlen, grid.usable(bits, network, net.prefixlen), ())
            wanted[one.family] = max(wanted.get(one.family, 0), one.wanted_prefix())
        found[space] = wanted | store.grid(space, {} if dry_run else wanted)
    return found


def stores_of(nets: Iterable[NetworkList]) -> list[list[ClusterNetwork]]:
    """Return the networks with cluster-wide addresses, grouped by store. Leave out networks with invalid keys, because
    doctor's check of the keys reports them."""
    found: list[ClusterNetwork] = []
    for net in nets:
        try:
            found += networks_of([net])
        except CniError:
            continue
    return by_store(found)


def by_store(networks: Iterable[ClusterNetwork]) -> list[list[ClusterNetwork]]:
    """Return the networks grouped by store."""
    found: dict[str, list[ClusterNetwork]] = {}
    for it in networks:
        found.setdefault(it.keys.store_key, []).append(it)
    return list(found.values())


def ranges_of(net: ClusterNetwork) -> Sequence[Range]:
    """Return the ranges of a network; () if its keys are invalid."""
    try:
        return conf.read_keys(net.section).ranges
    except CniError:
        return ()


def texts_on(nets: Iterable[NetworkList], packed: bytes) -> Iterator[str]:
    """Yield a sentence about an address for each address space of these networks that contains the address."""
    for networks in stores_of(nets):
        spaces = {it.keys.space: it for it in networks if any(one.contains(packed) for one in ranges_of(it))}
        for space, net in spaces.items():
            store = stores.open_store(net.keys.store)
            try:
                found = places_of(survey(store, space), address.ip_text(packed), space)
                yield from map(sentence, found or [Place(space, address.ip_text(packed))])
            except Away as e:
                yield f"{address.ip_text(packed)} is in a range of network {net.name}; its store does not answer: {e}"
            finally:
                store.close()
