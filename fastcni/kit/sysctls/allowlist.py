"""The administrator's list of the sysctls that networks may set, one regular expression a line, unanchored."""

import posix

from fastcni._system import read_file
from fastcni.spec import errors
from fastcni.spec.errors import CniError

PATH = "/etc/cni/tuning/allowlist.conf"
LIMIT = 1 << 20                 # bytes


def check(keys):
    """Raises CniError 7 for a key, as written in the configuration, that no line of the list matches.

    Without the file every key is allowed; one that cannot be read allows none (code 5).
    """
    lines = read() if keys else None
    if lines is None:
        return
    import re  # a node without a list does without it

    patterns = []
    for line in lines:
        try:
            if "[:" in line:            # POSIX classes, which Go knows; Python would take them for characters
                raise re.error("classes as [:alnum:] are not understood")
            patterns.append(re.compile(line, re.ASCII))
        except (re.error, RecursionError) as e:
            raise CniError(errors.INVALID_CONFIG, f"{PATH}: {line}: {e}", "each line is a regular expression") from None
    for key in keys:
        if not any(pattern.search(key) for pattern in patterns):
            raise CniError(errors.INVALID_CONFIG, f"Sysctl {key} is not allowed. Only the following sysctls are "
                           f"allowed: [{' '.join(lines)}]", f"{PATH} says so")


def read():
    """The trimmed lines that are not empty; None without the file."""
    try:
        content = read_file(PATH, posix.O_RDONLY, LIMIT, regular=True)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise CniError(errors.IO_FAILURE, f"read {PATH}: {e.strerror} (errno {e.errno})",
                       "a list that cannot be read allows nothing") from None
    return [line.strip() for line in content.decode("utf-8", "replace").splitlines() if line.strip()]
