"""The administrator's list of the sysctls that networks may set: one regular expression in each line, unanchored."""

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

    Without the file every key is allowed. If it cannot be read, none is (code 5).
    """
    lines = read() if keys else None
    if lines is None:
        return
    import re  # a node without a list does not need it

    patterns = []
    for line in lines:
        try:
            if "[:" in line:            # a POSIX class, which Go knows; to Python these are characters
                raise re.error("classes as [:alnum:] are not understood")
            patterns.append(re.compile(line, re.ASCII))
        except (re.error, RecursionError) as e:
            raise CniError(errors.INVALID_CONFIG, f"{PATH}: {line}: {e}", "each line is a regular expression") from None
    for key in keys:
        if not any(pattern.search(key) for pattern in patterns):
            raise CniError(errors.INVALID_CONFIG, f"Sysctl {key} is not allowed. Only the following sysctls are "
                           f"allowed: [{' '.join(lines)}]", f"{PATH} says so")


def read() -> list[str] | None:
    """The trimmed lines that are not empty; None without the file."""
    try:
        content = read_file(PATH, posix.O_RDONLY, MAX_BYTES, regular=True)
    except FileNotFoundError:
        return None
    except OSError as e:
        raise CniError(errors.IO_FAILURE, f"read {PATH}: {e.strerror} (errno {e.errno})",
                       "a list that cannot be read allows nothing") from None
    return [line.strip() for line in content.decode("utf-8", "replace").splitlines() if line.strip()]
