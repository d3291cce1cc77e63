"""Connect a request to OVSDB, and convert OVSDB's errors to CniErrors for the runtime."""

from __future__ import annotations

from fastcni.clients.errors import Away
from fastcni.clients.ovsdb import Ovsdb, Refused
from fastcni.kernel import waiting
from fastcni.spec import errors
from fastcni.spec.errors import CniError

# Limit of a connection. An ADD makes two connections, and its rollback one: 9 s if the database stops answering
TIMEOUT_S = 3.0
HINT = "is ovsdb-server running? `systemctl status openvswitch-switch`, or `ovsdb-client list-dbs ADDRESS`"
NO_VSWITCHD = "is ovs-vswitchd running? `systemctl status openvswitch-switch`"


class Database:
    """A context manager, `with Database(address) as db:`. db is an Ovsdb. Errors of db become CniErrors, with the code
    `away` if the database does not answer within `seconds` (None: TIMEOUT_S)."""

    __slots__ = ("address", "away", "seconds", "db")

    def __init__(self, address: str, seconds: float | None = None, away: int = errors.TRY_AGAIN_LATER) -> None:
        self.address, self.away = address, away
        self.seconds = TIMEOUT_S if seconds is None else seconds

    def __enter__(self) -> Ovsdb:
        waiting.admit(waiting.OVSDB)
        try:
            self.db = Ovsdb(self.address, self.seconds)
        except Away as e:
            raise CniError(self.away, str(e), HINT) from None
        except ValueError as e:         # an invalid address, from a pod's cache file
            raise errors.bad_config(f"OVSDB at {self.address}: {e}") from None
        return self.db

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.db.close()
        if isinstance(error, Away):
            raise CniError(self.away, str(error), HINT) from None
        if isinstance(error, Refused):
            raise CniError(errors.INTERNAL, f"OVSDB at {self.address}: {error}") from None
