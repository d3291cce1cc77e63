"""Look up the addresses of a host's name within a time limit. getaddrinfo(3) waits for name servers as long as
resolv.conf says, which may be half a minute. So each lookup runs in a thread. After the time limit the lookup
continues, but the caller gets an error."""

from __future__ import annotations

from _socket import EAI_AGAIN, SOCK_STREAM, gaierror, getaddrinfo
from _thread import allocate_lock, start_new_thread

from fastcni.spec import address

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class Lookup:
    """A running lookup. done: a lock that is held until the lookup ends. found: the addresses; [] if the lookup failed.
    failure: the error to raise if `found` is []."""

    __slots__ = ("done", "failure", "found")

    def __init__(self) -> None:
        self.done, self.failure = allocate_lock(), gaierror(EAI_AGAIN, "the lookup has failed")
        self.done.acquire()
        self.found: list[str] = []


class Lookups:
    """The running lookups, by host and port. Threads that need the same name wait for the same lookup."""

    def __init__(self) -> None:
        self.lock = allocate_lock()
        self.running: dict[tuple[str, int], Lookup] = {}

    def addresses(self, host: str, port: int, seconds: float) -> list[str]:
        """Return the addresses of a name, in the order in which to try them. Raises OSError: gaierror, also after the
        time limit."""
        key = host, port
        with self.lock:
            one = self.running.get(key)
            if one is None:
                one = self.running[key] = Lookup()
                start_new_thread(self._look_up, (key, one))
        if not one.done.acquire(timeout=seconds):
            raise gaierror(EAI_AGAIN, f"no name server has answered about {host} within {seconds:.1f} s")
        one.done.release()              # wakes the next thread that waits for this lookup
        if not one.found:
            raise one.failure
        return one.found

    def _look_up(self, key: tuple[str, int], lookup: Lookup) -> None:
        try:
            infos: list[Any] = getaddrinfo(*key, 0, SOCK_STREAM)
            lookup.found = list(dict.fromkeys(info[4][0] for info in infos))
        except gaierror as e:
            lookup.failure = e
        finally:
            with self.lock:
                del self.running[key]
            lookup.done.release()


def is_name(host: str) -> bool:
    """Return whether the host of a URL is a name, not an address."""
    try:
        address.read_ip(host.strip("[]").partition("%")[0])
    except ValueError:
        return True
    return False
