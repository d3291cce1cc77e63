"""What tuning changes of a link, kept in a file until DEL puts it back: the Go plugin's file, to the byte. host-device
keeps the MAC of its device the same way, in a folder of its own.

    <dataDir>/<container id>_<ifname>.json                      0600
    <dataDir>/.fastcni/<network>/<container id>_<ifname>.json   ours alone: a symbolic link to it

The file does not say which network it belongs to; the link does, so that GC of one network leaves the others' alone.
"""

import posix

from fastcni._abandoned import check_request
from fastcni.kit.call import files
from fastcni.kit.call.conf import read_ethernet
from fastcni.spec import errors, json
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

FOLDER = "/run/cni/tuning"
ATTRIBUTES = ("mac", "promisc", "mtu", "allmulti", "txQLen")    # in the order of the file
FLAGS = ("promisc", "allmulti")
LIMIT = 1 << 16                 # bytes of a file that is read


def read_folder(keys, default=FOLDER):
    """The key dataDir. Raises CniError 7."""
    folder = keys.text("dataDir") or default
    if "\0" in folder:
        raise keys.wrong("dataDir", "a path has no NUL byte")
    return folder


def read_attributes(pick):
    """{attribute: value} of those that are there, in the order of ATTRIBUTES; pick(key) is the Section where it stands.
    An empty mac and an mtu of 0 are none. Raises CniError 7 for what the kernel's field has no room for."""
    found = {}
    for key in ATTRIBUTES:
        section = pick(key)
        if key == "mac":
            found[key] = section.text(key)
            if found[key]:
                read_ethernet(found[key])
        elif section.has(key):
            found[key] = section.flag(key) if key in FLAGS else section.integer(key, low=0, high=0xFFFFFFFF)
    return {key: value for key, value in found.items() if value or key not in ("mac", "mtu")}


class Backup:
    """The file of one attachment. Every method raises CniError 5, with the path and the kernel's words."""

    __slots__ = ("mark", "name", "path")

    def __init__(self, req, folder):
        self.name = f"{req.container_id}_{req.ifname}.json"
        self.path, self.mark = f"{folder}/{self.name}", f"{marks(folder, req.name)}/{self.name}"

    def read(self):
        """{attribute: value}; {} without a file, and of one that a crash has cut short."""
        content = files.read(self.path, LIMIT, posix.O_NOFOLLOW)
        try:
            section = Section(json.read(content or b"{}") or {})
            return read_attributes(lambda key: section)
        except (json.JsonError, AttributeError, CniError):
            return {}

    def keep(self, values, undo):
        """Write {attribute: value}. What an ADD before this one has kept stays: that is what the link came with."""
        before = self.read()
        after = {**values, **before}
        if after == before:             # a file that is not written again cannot be lost by it
            self.set_mark()
            return
        undo(self.write, before)
        self.write(after)

    def write(self, values):
        """Write the file; without values remove it."""
        if not values:
            self.remove()
            return
        values = {key: values[key] for key in ATTRIBUTES if key in values}
        check_request()
        self.set_mark()
        files.write(self.path, json.write_text(values, 1, sort=False))

    def set_mark(self):
        target = f"../../{self.name}"
        try:
            try:
                posix.symlink(target, self.mark)
            except FileNotFoundError:
                files.make_folders(self.mark.rpartition("/")[0], 0o755)
                posix.symlink(target, self.mark)
        except FileExistsError:
            return
        except OSError as e:
            raise trouble("write", self.path, e) from None

    def remove(self):
        """Remove file and mark; gone is fine."""
        remove(self.path)
        remove(self.mark)


def gc(req, folder):
    """Remove what no valid attachment of this network has; of other networks and of the Go plugin, nothing."""
    mine = marks(folder, req.name)
    valid = {f"{container_id}_{ifname}.json" for container_id, ifname in req.valid_attachments}
    try:
        names = posix.listdir(mine)
    except FileNotFoundError:
        return
    except OSError as e:
        raise trouble("list", mine, e) from None
    for name in names:
        if name not in valid:
            remove(f"{folder}/{name}")
            remove(f"{mine}/{name}")
            req.release(f"file {folder}/{name}")


def marks(folder, network):
    return f"{folder}/.fastcni/{network}"


def remove(path):
    check_request()
    try:
        posix.unlink(path)
    except (FileNotFoundError, NotADirectoryError):
        pass
    except OSError as e:
        raise trouble("remove", path, e) from None


def trouble(verb, path, error):
    return CniError(errors.IO_FAILURE, f"{verb} {path}: {posix.strerror(error.errno)} (errno {error.errno})",
                    "dataDir has to be a folder that can be written")
