"""Read the flags of `dhcp daemon` by the rules of Go's flag package: -name value, -name=value, with one dash or two."""

from __future__ import annotations

from fastcni.dhcp.lease_files import STATE_DIR
from fastcni.kit.dhcp.rpc import SOCKET_PATH

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

UNITS_S = {"ns": 1e-9, "us": 1e-6, "\u00b5s": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
TRUTH = {"1": True, "t": True, "true": True, "0": False, "f": False, "false": False}
USAGE = """\
Usage of dhcp daemon:
  -broadcast               ask servers to broadcast their answers
  -hostprefix PATH         prefix of the socket, of the paths of network namespaces and of -statedir
  -pidfile PATH            write the process id to this file
  -resendmax DURATION      the longest wait before a packet is sent again (1m2s)
  -resendtimeout DURATION  give up an ADD after so long (3m28s)
  -socketpath PATH         where to listen; not used if systemd hands a socket over (/run/cni/dhcp.sock)
  -statedir PATH           where leases are kept (/var/lib/cni/dhcp)
  -timeout DURATION        the first long wait for an answer, before which packets are sent four times (10s)
"""


class FlagError(ValueError):
    """The command line is wrong; the text says why."""


class Help(Exception):
    """The command line has -h."""


class Flags:
    """The values of the flags. Durations are in seconds."""

    def __init__(self) -> None:
        self.broadcast = False
        self.hostprefix = self.pidfile = ""
        self.resendmax, self.resendtimeout, self.timeout = 62.0, 208.0, 10.0
        self.socketpath, self.statedir = SOCKET_PATH, STATE_DIR


def read(arguments: Sequence[str]) -> Flags:
    """Read the flags. Raises FlagError, Help."""
    flags, words = Flags(), list(arguments)
    while words:
        word = words.pop(0)
        name = word[2:] if word.startswith("--") else word[1:]
        if not word.startswith("-") or not name:
            raise FlagError(f"not a flag: {word}")
        name, equals, text = name.partition("=")
        if name in ("h", "help"):
            raise Help
        if name not in vars(flags):
            raise FlagError(f"flag provided but not defined: -{name}")
        if not equals and name == "broadcast":
            text = "true"
        elif not equals:
            if not words:
                raise FlagError(f"flag needs an argument: -{name}")
            text = words.pop(0)
        setattr(flags, name, value_of(name, text, getattr(flags, name)))
    if flags.pidfile and not flags.pidfile.startswith("/"):
        raise FlagError(f'Error writing pidfile "{flags.pidfile}": path not absolute')
    return flags


def value_of(name: str, text: str, default: Any) -> Any:
    try:
        if isinstance(default, bool):
            return TRUTH[text.lower()]
        return seconds_of(text) if isinstance(default, float) else text
    except (KeyError, ValueError):
        raise FlagError(f'invalid value "{text}" for flag -{name}: parse error') from None


def seconds_of(text: str) -> float:
    """Return the seconds of a duration in Go's form, "1m30s" or "500ms". Raises ValueError."""
    total, rest = 0.0, text
    while rest:
        digits = rest[:len(rest) - len(rest.lstrip("0123456789."))]
        rest = rest[len(digits):]
        unit = rest[:len(rest) - len(rest.lstrip("".join(UNITS_S)))]
        while unit not in UNITS_S and unit:
            unit = unit[:-1]
        total += float(digits) * UNITS_S[unit]
        rest = rest[len(unit):]
    if not text or total <= 0:
        raise ValueError(text)
    return total
