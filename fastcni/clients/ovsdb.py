"""Use OVSDB, the database of Open vSwitch, by JSON-RPC on one connection (RFC 7047), without fetching the schema.

The Python package `ovs` of Open vSwitch copies tables, for which it needs the schema. Importing it takes ten times as
long as this module: CONTRIBUTING.md has the figures.
"""

from __future__ import annotations

from errno import ETIMEDOUT

from fastcni.clients.errors import Away
from fastcni.kernel import waiting
from fastcni.kernel.sockets import streams
from fastcni.spec import json
from fastcni.spec.address import ip_text, read_ip

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    Operation = dict[str, Any]
    Row = dict[str, Any]

DATABASE = "Open_vSwitch"
VSWITCHD_LOCK = "ovs_vswitchd"      # a running ovs-vswitchd holds this lock (bridge_init() of vswitchd/bridge.c)
DEFAULT_ADDRESS = "unix:/var/run/openvswitch/db.sock"
MAX_ANSWER_BYTES = 16 << 20         # limit of one message: enough for many more ports than a node has


class Refused(Exception):
    """The database rejected a transaction, and made none of the transaction's changes. The exception has the database's
    text."""


class Ovsdb:
    """One connection to a database. Close the connection by `with` or close().

    address: "unix:PATH", "tcp:IP:PORT", or a path. seconds: the limit of all methods together. Each method may raise
    Away, whose text names the address; CallerGone; and Refused, if the program at the address is no database. The
    constructor raises ValueError for an invalid address.
    """

    def __init__(self, address: str, seconds: float) -> None:
        self.address, self.received, self.asked = address, b"", 0
        self.answers: dict[int, Any] = {}           # {number of a request: answer that answer() has not returned}
        self.updates: list[dict[str, Any]] = []     # updates of monitored tables that next_update() has not returned
        try:
            self.stream = streams.Stream(socket_address(address), waiting.limit(seconds), waiting.OVSDB)
        except OSError as e:
            raise self.away(e) from None

    def __enter__(self) -> Ovsdb:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self.stream.close()

    def transact(self, *operations: Operation) -> list[Any]:
        """Run a transaction, and return the result of each operation, in order. Raises Refused if the database made
        none of the changes."""
        return self.transacted(self.ask("transact", [DATABASE, *operations]), operations)

    def transacted(self, number: int, operations: tuple[Operation, ...]) -> list[Any]:
        """Wait for the answer to the request `number`, and return the results as transact() does."""
        results = self.answer(number)
        # A failed operation is the last result. An error of the whole transaction, such as a constraint, is an
        # additional result
        for i, result in enumerate(results):
            if result and "error" in result:
                where = f"{operations[i]['op']} {operations[i].get('table', '')}: " if i < len(operations) else ""
                raise Refused(f"{where}{result['error']}: {result.get('details', '')}".rstrip(": "))
        return results

    def vswitchd_runs(self) -> bool:
        """Return whether ovs-vswitchd is connected to the database, that is, holds its lock. The method changes no
        table.

        The request `lock` takes the lock if it is free. The same write sends `unlock`, so that a starting ovs-vswitchd
        gets the lock.
        """
        locked = self.ask("lock", [VSWITCHD_LOCK], more=("unlock", [VSWITCHD_LOCK]))
        self.answer(locked + 1)
        return not self.answer(locked)["locked"]

    def await_vswitchd(self) -> None:
        """Return when ovs-vswitchd has applied the database's configuration. Raises Away if ovs-vswitchd does not apply
        it, for example because the process is stopped but keeps its lock. Like ovs-vsctl, this method increments
        next_cfg, which ovs-vswitchd copies to cur_cfg.

        Source: ovs-vswitchd.conf.db(5), next_cfg.
        """
        table = "Open_vSwitch"
        _, found = self.monitor(table, ["cur_cfg"], [], after=(
            {"op": "mutate", "table": table, "where": [], "mutations": [["next_cfg", "+=", 1]]},
            {"op": "select", "table": table, "where": [], "columns": ["next_cfg"]}))
        wanted, applied = found["rows"][0]["next_cfg"], -1
        while applied < wanted:
            applied = (self.next_update(table) or {}).get("cur_cfg", applied)

    def monitor(self, table: str, columns: list[str], where: list[list[Any]], *,
                after: tuple[Operation, ...] = ()) -> list[Any]:
        """Start to monitor a table, after the transaction `after` in the same message. Return the results of the
        transaction. Then next_update() returns the rows that match `where`, first with their current state."""
        number = self.ask("transact", [DATABASE, *after],
                          more=("monitor_cond", [DATABASE, None, {table: [{"columns": columns, "where": where}]}]))
        results = self.transacted(number, after)
        self.updates.insert(0, self.answer(number + 1))
        return results

    def next_update(self, table: str) -> Row | None:
        """Wait for the next change in a monitored table. Return the columns of a row that are new or have changed; None
        if a row was deleted."""
        while True:
            while self.updates:
                rows = self.updates.pop(0).get(table, {})
                for change in rows.values():
                    kind, row = next(iter(change.items()))          # "initial", "insert", "modify" or "delete"
                    return None if kind == "delete" else row
            self.receive()

    def ask(self, method: str, parameters: list[Any], *, more: tuple[str, list[Any]] | None = None) -> int:
        """Send a request, followed in the same write by the request `more` with the next number. Return the number of
        the first request."""
        data = b""
        for each, its in ((method, parameters), *([more] if more else ())):
            data += json.write({"method": each, "params": its, "id": self.asked})
            self.asked += 1
        self.send(data)
        return self.asked - (2 if more else 1)

    def answer(self, number: int) -> Any:
        while number not in self.answers:
            self.receive()
        message = self.answers.pop(number)
        if message.get("error"):
            raise Refused(json.write(message["error"]).decode())
        return message["result"]

    def send(self, data: bytes) -> None:
        try:
            self.stream.send_all(data)
        except OSError as e:
            raise self.away(e) from None

    def receive(self) -> None:
        """Receive and store the next message."""
        # No separator ends a message, so parse only data that ends in a brace: an incomplete message seldom does.
        while not self.received.endswith(b"}") or (message := self.take()) is None:
            try:
                data = self.stream.receive()
            except OSError as e:
                raise self.away(e) from None
            if not data:
                raise Away(f"OVSDB at {self.address} has closed the connection")
            self.received += data
            if len(self.received) > MAX_ANSWER_BYTES:
                raise Refused(f"OVSDB at {self.address} sends more than {MAX_ANSWER_BYTES} bytes")
        if not isinstance(message, dict):
            raise Refused(f"{self.address} is no OVSDB: it sends {json.write(message)[:40]!r}")
        if message.get("method") == "echo":         # over TCP a server sends "echo" after five idle seconds
            self.send(json.write({"id": message["id"], "result": message["params"], "error": None}))
        elif message.get("method") == "update2":
            self.updates.append(message["params"][1])
        elif message.get("id") is not None:
            self.answers[message["id"]] = message

    def take(self) -> Any:
        """Return the first received message; None if the message is not complete."""
        text = self.received.decode("utf-8", "replace")
        try:
            message, end = json.scan(text)
        except (StopIteration, ValueError):
            return None
        self.received = text[end:].lstrip().encode()
        return message

    def away(self, error: OSError) -> Away:
        why = ("does not answer" if error.errno == ETIMEDOUT
               else f"cannot be reached: {error.strerror or error} (errno {error.errno})")
        return Away(f"OVSDB at {self.address} {why}")


def socket_address(address: str) -> str | tuple[str, int]:
    """Return the argument of Stream() for an OVSDB address. Raises ValueError for an invalid address."""
    kind, _, rest = address.partition(":")
    if "\0" in address:
        raise ValueError("a NUL in an address")
    if kind == "tcp":
        host, _, port = rest.rpartition(":")
        if not host or not port.isdecimal():
            raise ValueError(f"expected tcp:IP:PORT, got {address}")
        return ip_text(read_ip(host.strip("[]"))), int(port)        # no host name, because a resolver has no time limit
    if kind in ("ssl", "ptcp", "punix", "pssl"):
        raise ValueError(f"{kind}: is not supported, but unix:PATH and tcp:IP:PORT")
    return rest if kind == "unix" else address


def as_list(value: Any) -> list[Any]:
    """Decode a set, which is ["set", [...]] or its only member."""
    return value[1] if isinstance(value, list) and value[:1] == ["set"] else [value]


def as_dict(value: Any) -> dict[str, str]:
    """Decode a map, which is ["map", [[key, value], ...]]."""
    return dict(value[1])
