"""Read and write the files that Multus keeps about a pod's networks. fastcni and Multus can read each other's files.

    <cniDir>/<container id>                                     the list of the pod's networks: JSON objects
    <cniDir>/results/<network>-<container id>-<interface>       libcni's cache file of each attachment, with its result

ADD writes the list before it adds the first network, so a DEL knows all networks that the ADD may have added.
"""

from __future__ import annotations

import posix

from fastcni.kit.call import files
from fastcni.kit.networks.network import Definition, Network, define, ifname_at
from fastcni.kit.networks.ready import exists
from fastcni.spec import cached_result, config, errors, json
from fastcni.spec import result as results
from fastcni.spec.cached_result import MAX_BYTES, from_base64, to_base64
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Container, Iterable
    from typing import Any

    from fastcni.kit.call.request import Request

RESULTS = "results"
STANDING = "fastcniStanding"    # key of fastcni in the list, see Network.standing; Multus ignores it
DAMAGED = (CniError, json.JsonError, ValueError)       # errors that a damaged file causes


class State:
    """The files of a container: the list and the cache files. Methods raise CniError 5 for a file that cannot be read,
    written or removed."""

    def __init__(self, cni_dir: str, container_id: str) -> None:
        self.cni_dir, self.container_id = cni_dir, container_id
        self.path = f"{cni_dir}/{container_id}"

    # Functions for ADD

    def write(self, networks: list[Network]) -> None:
        files.write(self.path, json.write([element(network, place) for place, network in enumerate(networks)]))

    def rewrite(self, elements: list[dict[str, Any]]) -> None:
        """Write the list of a running pod. A killed process leaves either the old list or the new list."""
        files.write(self.new_path, json.write(elements))
        try:
            posix.rename(self.new_path, self.path)
        except OSError as e:
            raise files.file_error("rename", self.new_path, e) from None

    @property
    def new_path(self) -> str:
        return f"{self.path}.new"

    def write_result(self, req: Request, network: Network, result: dict[str, Any]) -> None:
        """Write libcni's cache file of an attachment. result: in the shape of the newest cniVersion."""
        definition = network.definition
        shaped = results.to_version({"cniVersion": "1.1.0", **result}, definition.conf.values["cniVersion"])
        args = network.cni_args or ""
        document = cached_result.document(
            definition.name, self.container_id, network.ifname, definition.raw, netns=req.netns,
            args=[(name, value) for name, _, value in (pair.partition("=") for pair in args.split(";") if pair)],
            capability_args=network.capabilities, outcome=shaped)
        files.write(self.path_of_result(definition.name, network.ifname), json.write(document))

    def path_of_result(self, name: str, ifname: str) -> str:
        return f"{self.cni_dir}/{RESULTS}/{name}-{self.container_id}-{ifname}"

    # Functions for the other commands

    def listed(self, ifname: str) -> list[tuple[dict[str, Any], Network]]:
        """Return [(object, network)] of the list; [] if the list is lost or damaged."""
        content = files.read(self.path, MAX_BYTES)
        try:
            return [(it.values, self.from_element(it, place, ifname)) for place, it in enumerate(
                elements(content) if content is not None else ())]
        except DAMAGED:
            return []

    def interfaces(self) -> list[str]:
        """Return the interface names in the list, without the first network's; [] if the list is lost or damaged."""
        content = files.read(self.path, MAX_BYTES)
        try:
            return [section.text("ifnameRequest") or ifname_at(place, "")
                    for place, section in enumerate(elements(content)) if place] if content else []
        except DAMAGED:
            return []

    def reject_list(self) -> None:
        """Raise CniError 5 if the container has any file. Call reject_list() if listed() returns []."""
        is_there = exists(self.path)
        if is_there or any(self.kept_results()):
            raise CniError(errors.IO_FAILURE, f"{self.path} is {'damaged' if is_there else 'missing'}",
                           "only this file names all networks of the pod")

    def kept_results(self, listed: Iterable[Network] = ()) -> tuple[list[Network], list[Damaged]]:
        """Return (networks with a readable cache file, damaged cache files). Each file shows that an ADD has added its
        network completely. listed: networks whose files to leave out."""
        others = {self.path_of_result(it.definition.name, it.ifname).rpartition("/")[2] for it in listed}
        found, damaged = kept_results(self.cni_dir, {self.container_id}, f"-{self.container_id}-", others)
        return ([it for it in found if it.container_id == self.container_id],
                [it for it in damaged if it.container_id == self.container_id])

    def from_element(self, section: Section, place: int, ifname: str) -> Network:
        """Return the network of an object in the list. Raises one of DAMAGED."""
        document = json.read(from_base64(section.text("Bytes")))
        is_list = section.has("ConfList") and section.section("ConfList").has("plugins")
        keys = section.section("ConfList" if is_list else "Conf")
        title = section.text("Name")
        definition = define(document, keys.text("name") or title.rpartition("/")[2], keys.text("cniVersion"), self.path,
                            title)
        ifname = section.text("ifnameRequest") or ifname_at(place, ifname)
        config.check_ifname(ifname)
        kept = read_result(self.path_of_result(definition.name, ifname), definition)
        found = kept if kept and kept.container_id == self.container_id else Network(definition, ifname)
        found.standing = not place or "/" not in title or section.flag(STANDING)
        return found

    # Functions for DEL

    def remove_result(self, network: Network) -> None:
        files.remove(self.path_of_result(network.definition.name, network.ifname))

    def remove(self) -> None:
        files.remove(self.new_path)
        files.remove(self.path)


class Damaged:
    """A damaged cache file of libcni. Its name still shows the network, the container and the interface."""

    __slots__ = ("path", "network", "container_id", "ifname")

    def __init__(self, path: str, network: str, container_id: str, ifname: str) -> None:
        self.path, self.network, self.container_id, self.ifname = path, network, container_id, ifname


def kept_results(cni_dir: str, containers: Iterable[str], part: str = "-",
                 others: Container[str] = ()) -> tuple[list[Network], list[Damaged]]:
    """Return (networks, damaged files) of the libcni cache files whose name contains `part` and is not in `others`.

    A damaged file counts only if its name has the id of a known container: an id in `containers`, or the id of a
    container with a list or a readable cache file.
    """
    directory = f"{cni_dir}/{RESULTS}"
    names = sorted(name for name in files.names(directory) if part in name and name not in others)
    found = {name: read_result(f"{directory}/{name}") for name in names}
    networks = [network for network in found.values() if network is not None]
    unread = [name for name, network in found.items() if network is None and exists(f"{directory}/{name}")]
    known = {*containers, *(it.container_id for it in networks), *files.names(cni_dir)} if unread else ()
    longest = sorted(known, key=len, reverse=True)          # one id may be a prefix of another id
    damaged = []
    for name in unread:
        owner = next((it for it in longest if f"-{it}-" in name), "")
        if owner:
            network_name, _, ifname = name.partition(f"-{owner}-")
            damaged.append(Damaged(f"{directory}/{name}", network_name, owner, ifname))
    return networks, damaged


def gone_containers(cni_dir: str, kept: list[Network], damaged: list[Damaged], living: set[str]) -> set[str]:
    """Return the containers of kept_results() that are not in `living` and whose network namespaces certainly no longer
    exist. living: the containers that the runtime lists; another runtime may have containers in the same cniDir.

    A damaged file does not name the namespace, so such a file counts only if its container has no other file.
    """
    from fastcni.kernel.presence import GONE, state_of

    def is_gone(path: str, netns: str) -> bool:
        try:
            added = posix.stat(path).st_mtime
        except OSError:                 # a DEL has removed the file
            added = 0.0
        return state_of(netns, added)[0] == GONE

    places = [(it.container_id, State(cni_dir, it.container_id).path_of_result(it.definition.name, it.ifname), it.netns)
              for it in kept]
    named = {it.container_id for it in kept}
    places += [(it.container_id, it.path, "") for it in damaged if it.container_id not in named]
    verdicts = [(container_id, is_gone(path, netns)) for container_id, path, netns in places
                if container_id not in living]
    return {it for it, _ in verdicts} - {it for it, gone in verdicts if not gone}


def read_result(path: str, definition: Definition | None = None) -> Network | None:
    """Return the network of a libcni cache file, with its result as prevResult. None if the file does not exist, is
    damaged, contradicts its own name or cannot be read.

    definition: replaces the definition in the file.
    """
    try:
        document = json.read(files.read(path, MAX_BYTES) or b"null")
        it = Section(document if isinstance(document, dict) else {}, path)
        if it.text("kind") != cached_result.KIND:
            return None
        definition = definition or define(json.read(from_base64(it.text("config"))),
                                          it.text("networkName"), "", path)
        network = Network(definition, it.text("ifName"), it.section("capabilityArgs").values)
        network.container_id, network.netns = it.text("containerId"), it.text("netns")
        config.check_ifname(network.ifname)
        config.check_container_id(network.container_id)
        if path.rpartition("/")[2] != f"{it.text('networkName')}-{network.container_id}-{network.ifname}":
            return None
        if it.has("cniArgs"):
            network.cni_args = ";".join("=".join(pair) for pair in it.items("cniArgs"))
        if it.has("result"):
            shaped = results.to_version(results.create_any(it.raw("result")), definition.conf.values["cniVersion"])
            network.given["prevResult"] = results.printed(shaped)
    except (*DAMAGED, TypeError):
        return None             # DEL uses the list of networks instead
    return network


def elements(content: bytes) -> list[Section]:
    """Decode the list of networks to JSON objects. Raises one of DAMAGED, also for an empty list."""
    holder = Section({"networks": json.read(content)})
    found = holder.sections("networks")
    if not found:
        raise ValueError("no networks")
    return found


def element(network: Network, place: int) -> dict[str, Any]:
    """Return the list's object for a network, with the keys of Multus' types.DelegateNetConf. place: the index in the
    list."""
    document, values = network.definition.document, network.definition.conf.values
    names = {"cniVersion": values["cniVersion"], "name": network.definition.name}
    is_list = not Section(document).has("type")
    found: dict[str, Any] = {
        "Conf": {**names, "type": ""} if is_list else {**names, "type": Section(document).text("type")},
        "ConfList": {**names, "plugins": [{"type": Section(it).text("type")} for it in values["plugins"]]
                     } if is_list else {},
        "Name": network.definition.title}
    if place:
        found["ifnameRequest"] = network.ifname
        if network.standing:
            found[STANDING] = True
    for key, capability in (("macRequest", "mac"), ("infinibandGUIDRequest", "infinibandGUID"), ("ipRequest", "ips"),
                            ("deviceID", "deviceID")):
        if place and capability in network.capabilities:
            found[key] = network.capabilities[capability]
    return {**found, "IsFilterV4Gateway": False, "IsFilterV6Gateway": False,
            "Bytes": to_base64(network.definition.raw)}
