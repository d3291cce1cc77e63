"""Keep the previous attributes of a pod's link in a file until DEL restores them. The reference plugin writes the
same file, byte for byte. tuning and host-device keep such files, each in its own directory.

    <dataDir>/<container id>_<ifname>.json                      0600
    <dataDir>/.fastcni/<network>/<container id>_<ifname>.json   a symbolic link to that file, made by fastcni

The file does not name its network, but the symbolic link does. So GC of one network keeps the files of other networks.
"""

from __future__ import annotations

import posix

from fastcni._abandoned import check_request
from fastcni.kit.call import files
from fastcni.kit.links import attributes
from fastcni.spec import json
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo
    from fastcni.kit.links.attributes import Values

DIRECTORY = "/run/cni/tuning"
MAX_BYTES = 1 << 16             # most bytes that read() reads
BAD_DIRECTORY = "dataDir has to be a directory that can be written"


def read_directory(keys: Section, default: str = DIRECTORY) -> str:
    """Return the key dataDir. Raises CniError 7."""
    return keys.file("dataDir", default, absolute=False)


class Backup:
    """The backup file of one attachment. Methods raise CniError 5, with the path and the kernel's message."""

    __slots__ = ("mark", "name", "path")

    def __init__(self, req: Request, directory: str) -> None:
        self.name = f"{req.container_id}_{req.ifname}.json"
        self.path, self.mark = f"{directory}/{self.name}", f"{marks(directory, req.name)}/{self.name}"

    def read(self) -> Values:
        """Return {attribute: value}; {} if the file does not exist, or is incomplete after a crash."""
        content = files.read(self.path, MAX_BYTES, posix.O_NOFOLLOW)
        try:
            section = Section(json.read(content or b"{}") or {})
            return attributes.read(lambda key: section)
        except (json.JsonError, AttributeError, CniError):
            return {}

    def keep(self, values: Values, undo: Undo) -> None:
        """Write {attribute: value}. Keep the values that an earlier ADD has stored, because these are the link's
        original values."""
        before = self.read()
        after = {**values, **before}
        if after == before:             # do not write equal content again: a crash could lose the file
            self.set_mark()
            return
        undo(self.write, before)
        self.write(after)

    def write(self, values: Values) -> None:
        """Write the file; if `values` is empty, remove the file."""
        if not values:
            self.remove()
            return
        values = {key: values[key] for key in attributes.TABLE if key in values}
        check_request()
        self.set_mark()
        files.write(self.path, json.write(values, 1), BAD_DIRECTORY)

    def set_mark(self) -> None:
        """Create the symbolic link."""
        target = f"../../{self.name}"
        try:
            try:
                posix.symlink(target, self.mark)
            except FileNotFoundError:
                files.make_directories(self.mark.rpartition("/")[0], 0o755)
                posix.symlink(target, self.mark)
        except FileExistsError:
            return
        except OSError as e:
            raise files.file_error("write", self.path, e, BAD_DIRECTORY) from None

    def remove(self) -> None:
        """Remove the file and its symbolic link; success if they do not exist."""
        for path in (self.path, self.mark):
            files.remove(path, BAD_DIRECTORY)


def gc(req: Request, directory: str) -> None:
    """Remove the files of this network's attachments that are not valid. Files of other networks and of the reference
    plugin stay."""
    own = marks(directory, req.name)
    valid = {f"{container_id}_{ifname}.json" for container_id, ifname in req.valid_attachments}
    for name in files.names(own, BAD_DIRECTORY):
        if name not in valid:
            for path in (f"{directory}/{name}", f"{own}/{name}"):
                files.remove(path, BAD_DIRECTORY)
            req.release(f"file {directory}/{name}")


def marks(directory: str, network: str) -> str:
    """Return the directory of a network's symbolic links."""
    return f"{directory}/.fastcni/{network}"
