"""Keep the last documents of a source in a file, so that a restarted agent enforces the same while the source is
unreadable.

    kept = Kept("/var/lib/fastcni/agent/policies", "/etc/fastcni/policies", log)
    for place, lines in (kept.read() or {}).items(): ...
    kept.follow(content)
    kept.changed()                              # soon in the file

The file lasts over a reboot, after which the kernel has no table. A thread writes a new file, syncs and renames it:
a busy disk does not delay the agent. The file's first line has the digest of the following lines.
"""

from __future__ import annotations

import json
import os
import threading
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING

from fastcni._system import open_regular
from fastcni.agent.policy.sources.documents import FOREIGN

if TYPE_CHECKING:
    from fastcni.agent.policy.sources.content import Content
    from fastcni.daemon.log import Logger

FORMAT = 2                      # raised when documents are written or read in another way
FORMER = 1                      # is also read: it has no ClusterNetworkPolicy and no Node
MAX_BYTES = 64 << 20
HEAD_BYTES = 1 << 16
SHARE = 10                      # at most one part in SHARE of the time passes in writing
RETRY_S = 10.0                  # after an error


class Kept:
    """path: of the file. source: the source whose documents the file has; a file of another source is not read.
    mounted: the source's directory was a mount point when it was read last. lost: the file is damaged, outdated or of
    another version. outdated: of a file, on another file system, that exists if `path` has former policies and could
    not be removed."""

    def __init__(self, path: str, source: str, log: Logger, outdated: str = "") -> None:
        self.path, self.source, self.log = Path(path), source, log
        self.outdated = Path(outdated or f"{path}.outdated")
        self._changed, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._said = ""                         # the last error
        self.mounted, self.lost = False, False

    def read(self) -> dict[str, list[bytes]] | None:
        """{place: its documents}; None without a complete file of this source. Sets `mounted`, and `lost`."""
        said = None
        try:
            with open(self.path, "rb", opener=open_own) as file:
                head, _, body = file.read(MAX_BYTES + HEAD_BYTES).partition(b"\n")
            said = json.loads(head)
            self.mounted = isinstance(said, dict) and said.get("source") == self.source and bool(said.get("mounted"))
            expected = self._head(body)
            if said not in (expected, {**expected, "format": FORMER}):
                raise ValueError("the file is damaged, or of another source or version")
            if self.outdated.exists():
                raise ValueError("the file is older than the policies that were in force")
            found: dict[str, list[bytes]] = {}
            for line in body.split(b"\n")[:-1]:
                place, _, document = line.partition(b"\t")
                found.setdefault(json.loads(place), []).append(document)
        except FileNotFoundError:
            return None
        except (OSError, ValueError, RecursionError) as e:
            self.lost = not isinstance(said, dict) or said.get("source", self.source) == self.source
            self.log.error("policies_not_kept", path=str(self.path), error=str(e))
            return None
        return found

    def follow(self, content: Content) -> None:
        """From now on keep the documents of `content`, which is complete."""
        if not self._thread:
            self._changed.set()
            self._thread = threading.Thread(target=self._run, args=(content,), name="kept-policies", daemon=True)
            self._thread.start()

    def changed(self) -> None:
        """Record that the content has changed."""
        self._changed.set()

    def close(self) -> None:
        """Write the changes that are not written so far."""
        self._ended.set()
        self._changed.set()
        if self._thread:
            self._thread.join()

    def _run(self, content: Content) -> None:
        ended, failed = False, False
        while not ended:
            self._changed.wait(RETRY_S if failed else None)
            ended = self._ended.is_set()        # before the content is read for the last time
            self._changed.clear()
            began = monotonic()
            failed = not self._write(content)
            self._ended.wait((SHARE - 1) * (monotonic() - began))

    def _write(self, content: Content) -> bool:
        """Return whether the file is as the content."""
        parts = [b"%s\t%s\n" % (json.dumps(place).encode(), line)
                 for place, found in list(content.places.items())
                 for line, entry in list(found.entries.items()) if entry.kind != FOREIGN]
        try:
            if sum(map(len, parts)) > MAX_BYTES:
                raise OSError(f"more than {MAX_BYTES >> 20} MB")
            write(self.path, self._head(body := b"".join(parts)), body)
            self.outdated.unlink(missing_ok=True)
        except OSError as e:
            if str(e) != self._said:
                self._said = str(e)
                self.log.error("policies_not_kept", path=str(self.path), error=self._said)
            self._discard()
            return False
        self._said = ""
        return True

    def _discard(self) -> None:
        """Remove the file: policies that are no longer in force must not replace a broken file of the source."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError:                         # a file system that is read-only
            with suppress(OSError):
                self.outdated.touch(0o600)

    def _head(self, body: bytes) -> dict[str, object]:
        return {"format": FORMAT, "source": self.source, "digest": blake2b(body, digest_size=16).hexdigest(),
                **({"mounted": True} if self.mounted else {})}


def open_own(path: str, flags: int) -> int:
    """A regular file that no link leads to. Raises OSError."""
    return open_regular(path, flags | os.O_NOFOLLOW, 0o600)


def write(path: Path, head: dict[str, object], body: bytes) -> None:
    """Replace the file in one step: also after a crash of the node it has the old or the new content. Raises
    OSError."""
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    with open(new, "wb", opener=open_own) as file:
        file.write(json.dumps(head).encode() + b"\n" + body)
        file.flush()
        os.fsync(file.fileno())
    os.replace(new, path)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
