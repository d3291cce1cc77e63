"""Decode each network configuration once for all pods of the network, and keep the values that plugins read from it."""

from __future__ import annotations

import marshal
from collections.abc import Callable

from fastcni.kit.call.request import check_conf, decode_conf, read_name_and_version
from fastcni.server.bounded import forget_oldest
from fastcni.spec.config import Section

MAX_KNOWN = 256                 # limit of stored configurations: a further configuration replaces the oldest
MAX_BYTES = 16 << 10            # limit in bytes: a longer configuration is decoded for each request


class Configurations:
    """The decoded configurations. decode(stdin) returns and raises the same as kit.call.request.read_conf(). Pods share
    a configuration without its prevResult, which belongs to one pod.

    known  {stdin, or a configuration without its prevResult: Section}, the oldest first
    """

    def __init__(self) -> None:
        self.known: dict[bytes, Section] = {}

    def decode(self, stdin: bytes) -> Section:
        if found := self.known.get(stdin):
            return found
        values = decode_conf(stdin)
        if len(stdin) > MAX_BYTES:
            return check_conf(Section(values))
        if "prevResult" not in values:
            return self._keep(stdin, check_conf(Section(values)))
        rest = values.copy()
        del rest["prevResult"]
        # Version 2 of marshal has no references, so equal configurations have equal bytes
        key = marshal.dumps(rest, 2)
        return Section(values, common=self.known.get(key) or self._keep(key, check_conf(Section(rest))))

    def read(self, stdin: bytes) -> tuple[str, Callable[[bytes], Section]]:
        """Return (the network's name, decode). The mode calls decode(stdin), which returns the decoded configuration.
        If the configuration is invalid, the name is "", and decode() raises the error."""
        try:
            section = self.decode(stdin)
        except Exception as e:          # handle() reports the error, in its own order of checks
            return "", raising(e)
        return section.once(read_name_and_version)[0], lambda stdin: section

    def _keep(self, key: bytes, section: Section) -> Section:
        self.known[key] = section
        forget_oldest(self.known, MAX_KNOWN)
        return section


def raising(error: Exception) -> Callable[[bytes], Section]:
    """Return a decode() that raises `error`."""
    def decode(stdin: bytes) -> Section:
        raise error
    return decode
