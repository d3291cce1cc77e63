"""Store the last documents of a source in a file, so that a restarted agent enforces the same policies while the source
is unreadable.

    kept = DocumentFile("/var/lib/fastcni/agent/policies", "/etc/fastcni/policies", log)
    for place, lines in (kept.read() or {}).items(): ...
    kept.follow(content)
    kept.changed()                              # the thread writes the content to the file soon

The file survives a reboot, after which the kernel has no table. A thread writes a new file, calls fsync(2) and renames
the file, so that a busy disk does not delay the agent. The first line has a digest of the other lines.
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
from fastcni.agent import files
from fastcni.agent.policy.sources.documents import FOREIGN

if TYPE_CHECKING:
    from fastcni.agent.policy.sources.content import Content
    from fastcni.daemon.log import Logger

FORMAT = 2                      # the version of the file's format
FORMER = 1                      # read() also accepts this format, which has no ClusterNetworkPolicy and no Node
MAX_BYTES = 64 << 20
HEAD_BYTES = 1 << 16
SHARE = 10                      # the thread spends at most 1/SHARE of the time on writing
RETRY_S = 10.0                  # seconds until the next attempt after an error


class DocumentFile:
    """The file with the last documents of a source. path: the file's path. source: the source's name; read() ignores
    the file of another source. outdated: the path of a marker on another file system; the marker exists if the file has
    old policies and cannot be removed.

    mounted: whether the source's directory was a mount point when it was read last. lost: whether the file is damaged,
    outdated or of another version.
    """

    def __init__(self, path: str, source: str, log: Logger, outdated: str = "") -> None:
        self.path, self.source, self.log = Path(path), source, log
        self.outdated = Path(outdated or f"{path}.outdated")
        self._changed, self._ended = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None
        self._said = ""                         # the last error
        self.mounted, self.lost = False, False

    def read(self) -> dict[str, list[bytes]] | None:
        """Return {place: its documents}; None if this source has no complete file. Sets `mounted` and `lost`."""
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
        """Start to store the documents of `content`, which must be complete; further calls do nothing."""
        if not self._thread:
            self._changed.set()
            self._thread = threading.Thread(target=self._run, args=(content,), name="kept-policies", daemon=True)
            self._thread.start()

    def changed(self) -> None:
        """Let the thread write the file, because the content has changed."""
        self._changed.set()

    def close(self) -> None:
        """Write the last changes, and end the thread."""
        self._ended.set()
        self._changed.set()
        if self._thread:
            self._thread.join()

    def _run(self, content: Content) -> None:
        ended, failed = False, False
        while not ended:
            self._changed.wait(RETRY_S if failed else None)
            ended = self._ended.is_set()        # read before the last write, so that this write has all changes
            self._changed.clear()
            began = monotonic()
            failed = not self._write(content)
            self._ended.wait((SHARE - 1) * (monotonic() - began))

    def _write(self, content: Content) -> bool:
        """Write the documents of `content` to the file. Return whether this succeeded."""
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
        """Remove the file, so that the next agent does not enforce old policies. If the file cannot be removed, make
        the marker `outdated`."""
        try:
            self.path.unlink(missing_ok=True)
        except OSError:                         # for example on a read-only file system
            with suppress(OSError):
                self.outdated.touch(0o600)

    def _head(self, body: bytes) -> dict[str, object]:
        return {"format": FORMAT, "source": self.source, "digest": blake2b(body, digest_size=16).hexdigest(),
                **({"mounted": True} if self.mounted else {})}


def open_own(path: str, flags: int) -> int:
    """Open a regular file, not through a symbolic link, and return its descriptor. Raises OSError."""
    return open_regular(path, flags | os.O_NOFOLLOW, 0o600)


def write(path: Path, head: dict[str, object], body: bytes) -> None:
    """Replace the file in one step: even after a crash of the node, the file has either the old or the new content.
    Raises OSError."""
    path.parent.mkdir(0o700, parents=True, exist_ok=True)
    files.write(path, json.dumps(head).encode() + b"\n" + body, 0o600)
    directory = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
