"""Find the configuration of a network that a pod or the multus plugin's configuration names. Search the Kubernetes API,
if the plugin has a kubeconfig, and then files.

    /etc/cni/multus/net.d/storage/mynet.conf    a network of the namespace "storage", found by the `name` in the file
    /etc/cni/multus/net.d/mynet.conflist        a network of every namespace
"""

from __future__ import annotations

import posix

from fastcni.kit.call import files
from fastcni.kit.networks.network import define
from fastcni.kit.networks.selection import is_label
from fastcni.spec import errors, json
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any

    from fastcni.kit.networks.api_objects import ApiObjects
    from fastcni.kit.networks.copies import Stored
    from fastcni.kit.networks.keys import Keys
    from fastcni.kit.networks.network import Definition

ENDINGS = (".conf", ".conflist", ".json")
S_IFMT, S_IFDIR = 0o170000, 0o040000        # stat(2)
OF_DAEMON = "/host"             # where the daemon of Multus mounts the host's files


class Definitions:
    """The sources of a request's network definitions.

    objects: the Kubernetes API, searched before the files; None: search only files. version: the cniVersion for
    definitions without this key. warn: called with a text if a definition is a copy.
    """

    def __init__(self, keys: Keys, objects: ApiObjects | None, version: str, warn: Callable[[str], object]) -> None:
        self.keys, self.objects, self.version, self.warn = keys, objects, version, warn

    def by_name(self, namespace: str, name: str, *, selected: bool = True) -> Definition:
        """Return the network `namespace/name`. Raises CniError 7 if the network does not exist, 11 if the API server
        does not answer and there is no copy.

        selected: whether a pod names the network. As in Multus, a network has the title `namespace/name` if a pod names
        the network or if its definition is in the Kubernetes API; otherwise the title is `name`.
        """
        title, stored = f"{namespace}/{name}", self._stored(namespace, name)
        if stored and stored.config.strip():
            return self._of_api(stored, name, title)
        broken: list[str] = []
        for directory in (f"{self.keys.conf_dir}/{namespace}", self.keys.conf_dir):
            for path, document in configurations(directory, broken):
                if document.get("name") == name:
                    found = define(document, name, self.version, path, title if selected or stored else "")
                    found.resource = stored.resource if stored else ""
                    return found
        api = "the Kubernetes API has none, and " if self.objects and not stored else ""
        raise errors.bad_config(f'no network "{title}"', f"{api}no file in {self.keys.conf_dir}/"
                                f'{namespace} or {self.keys.conf_dir} has the name "{name}"'
                                + "".join(f"; {text}" for text in broken))

    def _stored(self, namespace: str, name: str) -> Stored | None:
        """Return the definition in the Kubernetes API, None if the API has no such definition. Raises CniError 11."""
        if not (self.objects and is_label(namespace) and is_label(name)):
            return None
        from fastcni.clients.errors import Away

        try:
            return self.objects.definition(namespace, name)
        except Away as e:
            raise CniError(errors.TRY_AGAIN_LATER, f'network "{namespace}/{name}": {e}',
                           f"its definition is at the API server of the kubeconfig {self.keys.kubeconfig}") from None

    def _of_api(self, stored: Stored, name: str, title: str) -> Definition:
        where = f"NetworkAttachmentDefinition {title}"
        try:
            document = json.read(stored.config.encode("utf-8", "replace"))
        except json.JsonError as e:
            raise errors.bad_config(f"failed to load netconf: {where}: {e}") from None
        found = define(document, name, self.version, where, title)
        found.resource = stored.resource
        if stored.stale:
            found.stale = stored.stale
            self.warn(f"multus: network {title}: using a stored copy of the definition: {stored.stale}")
        return found

    def of_cluster(self, name: str) -> Definition:
        """Return the network that `clusterNetwork` or `defaultNetworks` names. name: the network's name, the path of
        its file, or the path of a directory whose first file is used. Raises CniError 7, and CniError 11 like
        by_name()."""
        if not name.startswith("/"):
            namespace, _, rest = name.rpartition("/")
            return self.by_name(namespace or self.keys.namespace, rest, selected=False)
        broken: list[str] = []
        for place in (name, name.removeprefix(OF_DAEMON)):
            kind = kind_of(place)
            if kind is None:
                continue
            found = configurations(place, broken) if kind == S_IFDIR else read(place, broken)
            for path, document in found:
                return define(document, "", self.version, path)
        raise errors.bad_config(f'no network in "{name}"', "; ".join(broken) or
                                "no such file, or a directory without *.conf, *.conflist and *.json")


    def auxiliary(self) -> Definition | None:
        """Return the network of the key auxiliaryCNIChainName. Its plugins are in the files *.conf of the directory of
        that name, next to the file of `clusterNetwork`. None if the directory has no such file. Raises CniError 7."""
        name = self.keys.auxiliary
        if not name:
            return None
        broken: list[str] = []
        place = self.keys.cluster_network.rpartition("/")[0]
        directories = [f"{place}/{name}", f"{place.removeprefix(OF_DAEMON)}/{name}"]
        directory = next((it for it in directories if kind_of(it) == S_IFDIR), directories[0])
        plugins = [document for file in sorted(files.names(directory)) if file.endswith(".conf")
                   for _, document in read(f"{directory}/{file}", broken)]
        if broken:                      # Multus ignores a chain with an unreadable file
            raise errors.bad_config(f"auxiliaryCNIChainName: {broken[0]}")
        # disableCheck, because CHECK of tuning needs the link CNI_IFNAME, which this network does not have
        document = {"cniVersion": self.version, "name": name, "disableCheck": True, "plugins": plugins}
        return define(document, name, self.version, directory) if plugins else None


def kind_of(path: str) -> int | None:
    try:
        return posix.stat(path).st_mode & S_IFMT
    except (OSError, ValueError):
        return None


def configurations(directory: str, broken: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (path, document) of each file in a directory, in the order of names. broken: gets a text for each
    unreadable file."""
    for name in sorted(files.names(directory)):
        if name.endswith(ENDINGS):
            yield from read(f"{directory}/{name}", broken)


def read(path: str, broken: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    try:
        content = files.read(path)
        document = json.read(content or b"")
        if isinstance(document, dict):
            if Section(document).has("name"):
                document = {**document, "name": Section(document).text("name")}
            yield path, document
        else:
            broken.append(f"{path} has no object")
    except CniError as e:
        broken.append(e.msg)
    except json.JsonError as e:
        broken.append(f"{path}: {e}")
