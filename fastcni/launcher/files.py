"""Files that are replaced together: written beside under other names, then renamed into place."""

import os
import secrets


def replace(folder, names, write):
    """Each name in `folder` becomes the file that write(name, path) has made at another path, whole at any moment;
    when a step before the renames fails, all stay as they were. Returns the paths. Raises OSError."""
    staged, token = {}, secrets.token_hex(8)
    try:
        for name in names:
            temporary = os.path.join(folder, f".fastcni-{token}-{name}")    # the name of no CNI type and of no unit
            staged[os.path.join(folder, name)] = temporary
            write(name, temporary)
        for path, temporary in staged.items():
            os.rename(temporary, path)
        sync(folder)
        return list(staged)
    finally:
        for temporary in staged.values():
            try:
                os.unlink(temporary)
            except FileNotFoundError:
                pass                    # renamed, as it should be


def write(path, data, mode):
    """A new file on disk, with that mode whatever the umask: one that is empty after a power cut takes the node with
    it. Raises OSError."""
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), mode)
        file.flush()
        os.fsync(file.fileno())


def sync(folder):
    """The renames are on disk when this returns."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
