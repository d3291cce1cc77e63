"""Store the records of all nodes in a file, so that a restarted agent asks its registry only for changes.

The file persists over a reboot. Its first line has the digest of the second line, which has the records as JSON.
"""

from __future__ import annotations

import json
import random
from hashlib import blake2b
from math import inf
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from fastcni.agent import files

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.daemon.log import Logger

FORMAT = 1                      # the version of the file's format
START_S_OF_A_RECORD, MAX_START_S = 2e-3, 10.0           # see start_pause()
EVERY_S = 3600.0                # seconds between two writes; the agent writes also at its end. 5,000 records are 1 MB


def start_pause(records: int) -> float:
    """Return random seconds that a restarted agent waits before it asks for changes. records: the number of stored
    records. All agents may have been restarted at the same time. With this pause, 5,000 agents together ask 500 times a
    second. On a node that has not been rebooted, the routes and entries of the previous agent are still in the
    kernel."""
    return random.uniform(0.0, min(START_S_OF_A_RECORD * records, MAX_START_S))


class RecordFile:
    """The file with the records of all nodes. path: the file's path; "": store nothing. directory: the records'
    directory in the registry; read() ignores a file with the records of another directory."""

    def __init__(self, path: str, directory: str, log: Logger) -> None:
        self.path, self.directory, self.log = path, directory, log
        self._due = 0.0 if path else inf        # when follow() writes next, monotonic

    def read(self) -> Any:
        """Return the stored content; None if the file is missing, damaged or of another version."""
        if not self.path:
            return None
        try:
            head, _, body = files.read(self.path).partition("\n")
            if head != self._head(body):
                raise ValueError("the file is damaged, or of another version, prefix or cluster")
            return json.loads(body)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as e:
            self._log(e)
            return None

    def follow(self, content: Callable[[], Any]) -> None:
        """Write the result of content(), unless the last write was less than EVERY_S ago."""
        if monotonic() >= self._due:
            self._due = monotonic() + EVERY_S
            self.write(content())

    def write(self, content: Any) -> None:
        """Replace the file in one step. content: a value for JSON. Log an error."""
        if not self.path:
            return
        body = json.dumps(content)
        try:
            files.write(Path(self.path), f"{self._head(body)}\n{body}", 0o600)
        except OSError as e:
            self._log(e)

    def remove(self) -> None:
        """Remove the file: the node leaves the network. Raises OSError."""
        if self.path:
            Path(self.path).unlink(missing_ok=True)

    def _log(self, e: Exception) -> None:
        self.log.warning("nodes_not_kept", path=self.path, error=str(e))

    def _head(self, body: str) -> str:
        digest = blake2b(body.encode(), digest_size=16).hexdigest()
        return json.dumps({"format": FORMAT, "directory": self.directory, "digest": digest})
