"""Check sysctls against the administrator's list of sysctls that networks may set. Each line is an unanchored regular
expression."""

from __future__ import annotations

import posix

from fastcni._system import read_file
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Collection

PATH = "/etc/cni/tuning/allowlist.conf"
MAX_BYTES = 1 << 20


def check(keys: Collection[str]) -> None:
    """Raise CniError 7 for a key, as written in the configuration, that no line of the list matches.

    Without the file every key is allowed. If the file cannot be read, no key is allowed (CniError 5).
    """
    lines = read() if keys else None
    if lines is None:
        return
    import re  # only a node with a list needs re

    patterns = []
    for line in lines:
        try:
            if "[:" in line:            # a POSIX class, which Go supports; Python reads it as a set of characters
                raise re.error("classes as [:alnum:] are not understood")
            patterns.append(re.compile(line, re.ASCII))
        except (re.error, RecursionError) as e:
            raise errors.bad_config(f"{PATH}: {line}: {e}", "each line is a regular expression") from None
    for key in keys:
        if not any(pattern.search(key) for pattern in patterns):
            raise errors.bad_config(f"Sysctl {key} is not allowed. Only the following sysctls are "
                                    f"allowed: [{' '.join(lines)}]", f"{PATH} says so")


def read() -> list[str] | None:
    """Return the trimmed lines that are not empty; None if the file does not exist."""
    try:
        content = read_file(PATH, posix.O_RDONLY, MAX_BYTES, regular=True)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise CniError(errors.IO_FAILURE, f"read {PATH}: {e.strerror} (errno {e.errno})",
                       "a list that cannot be read allows nothing") from None
    return [line.strip() for line in content.decode("utf-8", "replace").splitlines() if line.strip()]
