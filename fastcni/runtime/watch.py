"""Call a function after changes of a configuration directory (by inotify), even if the directory does not exist yet."""

import math
import os
import select
import threading
import time
from collections.abc import Callable
from typing import Generic, TypeVar

from fastcni.runtime.directory_changes import DirectoryChanges
from fastcni.runtime.network_directory import NetworkDirectory

SETTLE_S = 0.05                 # seconds to wait after a change, because several files are often written together

T = TypeVar("T")


class Watch(Generic[T]):
    """A thread that calls changed(look()) whenever the value of look() has changed.

    directory: the thread calls look() after a change in this directory. interval_s: the thread also calls look() every
    `interval_s` seconds; None: only after changes. `changed` is called once before the constructor returns. An
    exception of `changed` or `look` ends the thread, and close() raises it.
    """

    def __init__(self, directory: NetworkDirectory, look: Callable[[], T], changed: Callable[[T], None],
                 interval_s: float | None = None):
        self._directory, self._look, self._changed, self._interval_s = directory, look, changed, interval_s
        self._changes = DirectoryChanges()
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._error: BaseException | None = None
        self._add_watches()             # before the first look(), so that no change is missed
        self._last = look()
        changed(self._last)
        self._thread = threading.Thread(target=self._run, name="fastcni-watch", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until an exception ends the thread. close() raises it."""
        self._thread.join()

    def close(self) -> None:
        """End the thread. Raises the exception that has ended the thread, if any. The caller may repeat close()."""
        if self._stop < 0:
            return
        os.eventfd_write(self._stop, 1)
        self._thread.join()
        self._changes.close()
        os.close(self._stop)
        self._stop = -1
        if self._error:
            raise self._error

    def __enter__(self) -> "Watch[T]":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        poll = select.poll()
        for descriptor in (self._changes.descriptor, self._stop):
            poll.register(descriptor, select.POLLIN)
        interval_s = math.inf if self._interval_s is None else self._interval_s
        due = time.monotonic() + interval_s
        try:
            while self._stop not in (ready := [descriptor for descriptor, _ in poll.poll(milliseconds_until(due))]):
                if ready:
                    time.sleep(SETTLE_S)
                    changed = self._changes.take()
                    self._add_watches()
                    if not changed:
                        continue
                due = time.monotonic() + interval_s
                found = self._look()
                if found != self._last:
                    self._last = found
                    self._changed(found)
        except BaseException as e:
            self._error = e

    def _add_watches(self) -> None:
        """Watch the directory, its subdirectories and, in case the directory is created later, each parent directory
        for the next part of the path.

        An existing watch stays. The kernel removes the watches of deleted directories.
        """
        watched, path = [(each, "") for each in self._directory.directories()], os.path.abspath(self._directory.path)
        while (parent := os.path.dirname(path)) != path:
            watched.append((parent, os.path.basename(path)))
            path = parent
        for directory, only in watched:
            try:
                self._changes.add(directory, only)
            except (FileNotFoundError, NotADirectoryError):
                continue


def milliseconds_until(due: float) -> float | None:
    """Return the timeout for poll(), None if `due` is infinite. due: in seconds of time.monotonic()."""
    return None if due == math.inf else max(0.0, due - time.monotonic()) * 1000
