"""Find the containers to which multus has attached networks, by pod, from libcni's files in one cniDir.

The files also name containers that the server did not add: containers from before the server's restart, and containers
that one-shot requests or Multus have added.
"""

from __future__ import annotations

from fastcni.kit.call import files
from fastcni.kit.networks.ready import exists
from fastcni.kit.networks.state import RESULTS
from fastcni.spec import cached_result, json
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.clients.kubernetes_watch import Key
    from fastcni.kit.networks.api_objects import Pod


class CachedAttachment:
    """The attachment that one of libcni's files records. args: the CNI_ARGS of the ADD, {name: value}."""

    __slots__ = ("container_id", "ifname", "netns", "args")

    def __init__(self, section: Section) -> None:
        """Read a decoded file. Raises CniError if the file is damaged."""
        self.container_id, self.netns = section.text("containerId"), section.text("netns")
        self.ifname = section.text("ifName")
        pairs = [pair for pair in section.items("cniArgs") if isinstance(pair, list) and len(pair) == 2]
        self.args = {str(name): str(value) for name, value in pairs}

    @property
    def pod(self) -> Key:
        return self.args.get("K8S_POD_NAMESPACE", ""), self.args.get("K8S_POD_NAME", "")


class Containers:
    """The containers of one cniDir. Each file is read once, because its name contains the container's id, and a
    container's pod does not change."""

    def __init__(self, cni_dir: str) -> None:
        self.directory = f"{cni_dir}/{RESULTS}"
        self.known: dict[str, CachedAttachment] = {}    # {file name: CachedAttachment}
        self.by_pod: dict[Key, list[CachedAttachment]] = {}

    def read(self) -> None:
        """Read the files that appeared since the last call. Raises CniError."""
        names = set(files.names(self.directory))
        for name in self.known.keys() - names:
            del self.known[name]
        for name in names - self.known.keys():
            try:
                document = json.read(files.read(f"{self.directory}/{name}", cached_result.MAX_BYTES) or b"")
                if isinstance(document, dict):
                    self.known[name] = CachedAttachment(Section(document, name))
            except (CniError, json.JsonError):      # an unfinished or damaged file, or a file of another program
                continue
        self.by_pod = {}
        for it in self.known.values():
            self.by_pod.setdefault(it.pod, []).append(it)

    def of(self, key: Key, pod: Pod) -> dict[str, list[CachedAttachment]]:
        """Return {container id: attachments} of a pod's containers whose network namespace exists. A pod has several
        containers while a runtime replaces its sandbox."""
        found: dict[str, list[CachedAttachment]] = {}
        for it in self.by_pod.get(key, ()):
            if pod.is_of(it.args.get("K8S_POD_UID", "")) and it.netns and exists(it.netns):
                found.setdefault(it.container_id, []).append(it)
        return found
