"""Define the reports of CHECK, DEL, STATUS and GC: which plugins were called, and why plugins were skipped."""

from collections.abc import Sequence
from dataclasses import dataclass

from fastcni.runtime.records import Attachment, PluginConf
from fastcni.spec.errors import CniError


@dataclass(frozen=True, slots=True)
class Report:
    """The report of a CHECK, DEL or STATUS that succeeded.

    called: the plugins in the order of the calls. skipped: why no plugin was called, or "". unknown: why the plugins
    did not get the cached result of ADD; "" if they got the result.
    """

    called: tuple[PluginConf, ...] = ()
    skipped: str = ""
    unknown: str = ""


@dataclass(frozen=True, slots=True)
class Released:
    """An object that GC released. plugin: the type of the plugin, or of its IPAM delegate. what: "address 10.1.0.5".
    of: the attachment to which the object belonged, as text, or ""."""

    plugin: str
    what: str
    of: str


@dataclass(frozen=True, slots=True)
class Judged:
    """An attachment, and the reason why GC keeps or deletes it."""

    attachment: Attachment
    why: str


@dataclass(frozen=True, slots=True)
class Deleted:
    """An attachment whose DEL was run. why: the reason why the attachment is stale. error: None if the DEL
    succeeded."""

    attachment: Attachment
    why: str
    error: CniError | None = None


@dataclass(frozen=True, slots=True)
class Collected:
    """The outcome of GC of one plugin. skipped: why the plugin was not called, or "". released: the objects that the
    plugin reports as released, None without a report."""

    plugin: PluginConf
    skipped: str = ""
    error: CniError | None = None
    released: tuple[Released, ...] | None = None


@dataclass(frozen=True, slots=True)
class GcReport:
    """The outcome of GC.

    kept, deleted: the cached attachments of the network. plugins: the outcome of each plugin's GC, in order. skipped:
    why nothing was done, or "". dry_run: no plugin was called, and `deleted` lists the attachments that would be
    deleted. error: why the plugins could not be called, or None.
    """

    kept: tuple[Judged, ...] = ()
    deleted: tuple[Deleted, ...] = ()
    plugins: tuple[Collected, ...] = ()
    skipped: str = ""
    dry_run: bool = False
    error: CniError | None = None

    @property
    def errors(self) -> Sequence[CniError]:
        """Return the errors of DELs, then `error`, then the errors of the plugins' GC."""
        found = [*(it.error for it in self.deleted), self.error, *(it.error for it in self.plugins)]
        return [error for error in found if error]
