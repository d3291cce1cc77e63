"""Sysctls that a configuration names: below net/, and in the pod's namespace."""

import posix
from errno import EACCES, EIO

from fastcni.kernel import sysctl
from fastcni.spec import errors
from fastcni.spec.errors import CniError

SILENT = (EACCES, EIO)          # of a sysctl that is there: it can be written only, or has never been


def names(key, ifname):
    """What a key can name below /proc/sys, in turn; the first IFNAME in it stands for the pod's link.

    The reference takes every dot for a slash. Where there is no such file it is read as in sysctl(8), by which a dot
    can belong to a link's name: net/ipv4/conf/eth0.5/forwarding. Raises CniError 7 for what is not below net/.
    """
    found = []
    try:
        for name in dict.fromkeys((key.replace(".", "/"), sysctl.path(key).removeprefix(sysctl.ROOT))):
            parts = [part for part in name.replace("IFNAME", ifname, 1).split("/") if part not in ("", ".")]
            if parts[:1] != ["net"] or len(parts) == 1:
                raise ValueError
            found.append("/".join(parts))
    except ValueError:
        raise CniError(errors.INVALID_CONFIG, f'invalid net sysctl key: "{key.replace("IFNAME", ifname, 1)}"',
                       "those below net. belong to the pod, others to the whole node") from None
    return found


def write(pod, undo, sysctls):
    """Write {key: (names, value)}; the way back writes what was there. Raises CniError."""
    with pod.enter():
        for found, value in sysctls.values():
            name = there(found)
            before = read(name)
            if before is not None:
                undo(put_back, pod, name, before)
            try:
                sysctl.write(name, value)
            except OSError as e:
                raise refused(name, "open" if e.filename else "write", e) from None


def put_back(pod, name, value):
    with pod.enter():
        sysctl.write(name, value)


def check(pod, sysctls):
    """Raises CniError for one that has another value; white space may differ."""
    with pod.enter():
        for found, value in sysctls.values():
            name = there(found)
            current = read(name)
            if current is not None and current.split() != value.split():
                raise CniError(errors.INTERNAL, f"Error: Tuning configured value of {sysctl.path(name)} is {value}, "
                               f"current value is {current}")


def there(found):
    """The first of several names that exists, else the first."""
    return next((name for name in found[1:] if not sysctl.exists(found[0])), found[0])


def read(name):
    """The value, None where the kernel tells none. Raises CniError for a sysctl that there is not."""
    try:
        return sysctl.read(name)
    except OSError as e:
        if e.errno not in SILENT:
            raise refused(name, "open", e) from None
        return None


def refused(name, verb, error):
    return CniError(errors.INTERNAL, f"{verb} {sysctl.path(name)}: {posix.strerror(error.errno).lower()}",
                    "in the pod's network namespace; is the value one that this sysctl takes?" if verb == "write" else
                    "in the pod's network namespace; does this kernel have it, and is /proc/sys mounted writable?")
