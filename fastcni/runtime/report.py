"""The reports of commands: which plugins were called, which were not, and why not."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastcni.runtime.records import Attachment, PluginConf
from fastcni.spec.errors import CniError


@dataclass(frozen=True, slots=True)
class Report:
    """A CHECK, DEL or STATUS that succeeded.

    called: the plugins in the order of the calls. skipped: why none was called, else "".
    unknown: what the plugins did not get (the result of ADD), and why; "" if nothing was missing.
    """

    called: tuple[PluginConf, ...] = ()
    skipped: str = ""
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """plugin: its type, or its IPAM delegate's. what: "address 10.1.0.5". of: the attachment as text, or ""."""

    plugin: str
    what: str
    of: str


@dataclass(frozen=True, slots=True)
class Judged:
    """An attachment, and why it is kept or deleted."""

    attachment: Attachment
    why: str


@dataclass(frozen=True, slots=True)
class Deleted:
    """An attachment whose DEL was run. why: the reason that it is stale. error: None if the DEL succeeded."""

    attachment: Attachment
    why: str
    error: CniError | None = None


@dataclass(frozen=True, slots=True)
class Collected:
    """GC of one plugin. skipped: why it was not called, else "". released: its report, None without one."""

    plugin: PluginConf
    skipped: str = ""
    error: CniError | None = None
    released: tuple[Released, ...] | None = None


@dataclass(frozen=True, slots=True)
class GcReport:
    """The outcome of GC.

    kept, deleted: the network's attachments in the cache. plugins: in order. skipped: why nothing was done, else "".
    dry_run: `deleted` would be deleted, and no plugin was called. error: why the plugins could not be called, or None.
    """

    kept: tuple[Judged, ...] = ()
    deleted: tuple[Deleted, ...] = ()
    plugins: tuple[Collected, ...] = ()
    skipped: str = ""
    dry_run: bool = False
    error: CniError | None = None

    @property
    def errors(self) -> Sequence[CniError]:
        """All errors, in order."""
        found = [*(it.error for it in self.deleted), self.error, *(it.error for it in self.plugins)]
        return [error for error in found if error]
