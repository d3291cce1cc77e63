"""Use etcd v3 through its JSON gateway: transactions, leases, users. Keys and values are text.

    etcd = Client(settings)
    outcome = etcd.txn([revision_is("/a", 0)], [put("/a", "1")], [get("/a")])
    outcome.done, outcome.revision  # whether the comparison held, and the current revision
    outcome.answers[0]              # [Pair("/a", "0", revision 17)] if the comparison did not hold

Each transaction and each read is linearizable. The gateway of etcd 3.4 and later is at /v3; the paths of older versions
are tried, too.
"""

from __future__ import annotations

import posix
from binascii import a2b_base64, b2a_base64
from time import monotonic

from fastcni._system import read_file
from fastcni.clients.errors import Away
from fastcni.clients.http import Answer, Http
from fastcni.spec import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from fastcni.clients.http import Stream

GATEWAYS = ("/v3", "/v3beta", "/v3alpha")       # path of the gateway in etcd 3.4 and later, in 3.3, in 3.2
MAX_OPERATIONS = 128            # etcd's --max-txn-ops: the limit of comparisons, and of the operations of each branch
MAX_BYTES = 1 << 20             # limit of the values in a transaction; etcd's --max-request-bytes is 1.5 MiB
MAX_PASSWORD_BYTES = 4096
IDLE_S = 1500.0         # a watch ends after this many seconds without a message; etcd reports progress every 10 minutes
# gRPC status codes
INVALID, NOT_FOUND, DENIED, PRECONDITION, UNAUTHENTICATED = 3, 5, 7, 9, 16


class Refused(Exception):
    """etcd answered a request with an error. code: the gRPC status. text: etcd's message."""

    def __init__(self, code: int, text: str, endpoint: str) -> None:
        super().__init__(code, text)
        self.code, self.text, self.endpoint = code, text, endpoint


class Pair:
    """A key with its value. revision: the revision of the last change. created: the revision that created the key.
    lease: the id of the key's lease, 0 without a lease."""

    __slots__ = ("key", "value", "revision", "lease", "created")

    def __init__(self, key: str, value: str, revision: int, lease: int = 0, created: int = 0) -> None:
        self.key, self.value, self.revision, self.lease, self.created = key, value, revision, lease, created

    def fields(self) -> tuple[str, str, int, int, int]:
        """Return the arguments of Pair() that make an equal Pair."""
        return self.key, self.value, self.revision, self.lease, self.created


class Outcome:
    """The outcome of a transaction. done: whether all comparisons held. answers: for each operation of the branch that
    ran, the Pairs that it has read. revision: the revision of the transaction's writes."""

    __slots__ = ("done", "answers", "revision")

    def __init__(self, done: bool, answers: list[list[Pair]], revision: int) -> None:
        self.done, self.answers, self.revision = done, answers, revision


# Comparisons

def value_is(key: str, value: str) -> dict[str, Any]:
    return {"key": encode(key), "target": "VALUE", "result": "EQUAL", "value": encode(value)}


def revision_is(key: str, revision: int) -> dict[str, Any]:
    """Return a comparison of a transaction, which holds if the key's last change has this revision; 0: if the key does
    not exist."""
    return {"key": encode(key), "target": "MOD", "result": "EQUAL", "mod_revision": revision}


def lease_is(key: str, lease: int) -> dict[str, Any]:
    return {"key": encode(key), "target": "LEASE", "result": "EQUAL", "lease": lease}


def exists(key: str) -> dict[str, Any]:
    return {"key": encode(key), "target": "CREATE", "result": "GREATER", "create_revision": 0}


def none_in(first: str, end: str) -> dict[str, Any]:
    """Return a comparison of a transaction, which holds if no key from `first` up to, but excluding, `end` exists."""
    return {"key": encode(first), "range_end": encode(end), "target": "CREATE", "result": "EQUAL", "create_revision": 0}


# Operations

def put(key: str, value: str, lease: int = 0) -> dict[str, Any]:
    return {"request_put": {"key": encode(key), "value": encode(value)} | ({"lease": lease} if lease else {})}


def get(key: str, end: str = "") -> dict[str, Any]:
    """Return the operation that reads a key, or with `end` all keys from `key` up to, but excluding, `end`."""
    return {"request_range": {"key": encode(key)} | ({"range_end": encode(end)} if end else {})}


def delete(key: str, end: str = "") -> dict[str, Any]:
    return {"request_delete_range": {"key": encode(key)} | ({"range_end": encode(end)} if end else {})}


def encode(text: str) -> str:
    return b2a_base64(text.encode(), newline=False).decode()


def decode(text: str) -> str:
    return a2b_base64(text).decode("utf-8", "replace")


def below(prefix: str) -> tuple[str, str]:
    """Return the first and the end key of the keys with a prefix that ends in "/"."""
    return prefix, prefix[:-1] + "0"


def read_pair(document: dict[str, Any]) -> Pair:
    return Pair(decode(document["key"]), decode(document.get("value", "")), int(document.get("mod_revision", 0)),
                int(document.get("lease", 0)), int(document.get("create_revision", 0)))


class Client:
    """A client of an etcd cluster. settings: {"endpoints": [...]}, and optionally "ca", "cert", "key", "username",
    "password", "password_file"."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.http = Http(settings["endpoints"], ca=settings.get("ca", ""), cert=settings.get("cert", ""),
                         key=settings.get("key", ""), headers=self._headers, service="etcd")
        self.user: str = settings.get("username", "")
        self.password: str = settings.get("password", "")
        self.password_file: str = settings.get("password_file", "")
        self.gateway = 0
        self.token: str | None = None                   # None: not requested yet
        self.history: tuple[str, int] | None = None     # (cluster id, revision) of the last read or transaction
        self._noted = 0.0

    def txn(self, compare: Sequence[dict[str, Any]], success: Sequence[dict[str, Any]],
            failure: Sequence[dict[str, Any]] = ()) -> Outcome:
        """Run a transaction. Raises Away; Refused if a lease does not exist."""
        began = monotonic()
        document = self.call("/kv/txn", {"compare": compare, "success": success, "failure": failure})
        self._note(document, began)
        answers = [[read_pair(each) for each in answer.get("response_range", {}).get("kvs", ())]
                   for answer in document.get("responses", ())]
        return Outcome(bool(document.get("succeeded")), answers, int(document["header"]["revision"]))

    def read(self, *keys: str) -> list[Pair | None]:
        """Return the Pair of each key, None for a missing key. etcd reads up to MAX_OPERATIONS keys at the same
        revision."""
        found: list[Pair | None] = []
        for at in range(0, len(keys), MAX_OPERATIONS):
            outcome = self.txn([], [get(key) for key in keys[at:at + MAX_OPERATIONS]])
            found += [answer[0] if answer else None for answer in outcome.answers]
        return found

    def read_range(self, first: str, end: str) -> tuple[list[Pair], int]:
        """Return (all Pairs from `first` up to, but excluding, `end`, by key; the revision at which etcd read the
        Pairs)."""
        pairs, _, revision = self.read_changes(first, end, 0)
        return pairs, revision

    def read_changes(self, first: str, end: str, since: int, timeout_s: float = 0.0) -> tuple[list[Pair], int, int]:
        """Return (the Pairs of read_range() whose last change has the revision `since` or a later revision; the number
        of all keys in the range; the revision at which etcd read the Pairs). timeout_s: seconds; 0.0: the default."""
        began = monotonic()
        document = self.call("/kv/range", {"key": encode(first), "range_end": encode(end)} | (
            {"min_mod_revision": since} if since else {}), timeout_s)
        self._note(document, began)
        return ([read_pair(each) for each in document.get("kvs", ())], int(document.get("count", 0)),
                int(document["header"]["revision"]))

    def log(self) -> tuple[int, int] | None:
        """Return (the index of the last committed entry in the log of the member that answers, the member's revision).
        None: etcd does not let this user read the status, or a proxy has no path for the status. Raises Away.

        etcd reads the revision before the index, so the log had at most this index at this revision.
        """
        try:
            document = self._with_token("/maintenance/status", lambda path: self._post(path, {}))
        except Refused as e:
            if e.code == DENIED or is_unknown_path(e):
                return None
            raise away(e) from None
        return int(document["raftIndex"]), int(document["header"]["revision"])

    def grant(self, ttl: int) -> int:
        """Make a lease of `ttl` seconds. Return its id, which etcd chooses and never uses again. Raises Away."""
        return int(self.call("/lease/grant", {"TTL": ttl})["ID"])

    def renew(self, lease: int, key: str) -> bool:
        """Keep a lease alive. Return False if the lease no longer exists. key: any key that this user may read.

        The answer has the revision of the etcd member that answers. This member may be behind other members. So if that
        revision is lower than the revision in `history`, a read checks whether the cluster was restored from a backup.
        """
        result = self.call("/lease/keepalive", {"ID": lease}).get("result", {})
        header = result.get("header", {})
        if self.history and (header.get("cluster_id"), int(header.get("revision", 0))) < self.history:
            self.read(key)
        return int(result.get("TTL", 0)) > 0

    def watch(self, first: str, end: str, revision: int, stop: Callable[[], object]) -> Stream:
        """Return the stream of changes of the keys from `first` up to, but excluding, `end`. The stream begins with the
        changes of `revision`. stop: see Http. Raises Away."""
        body = {"create_request": {"key": encode(first), "range_end": encode(end), "start_revision": revision,
                                   "progress_notify": True}}

        def attempt(path: str) -> Stream:
            stream = self.http.stream("POST", path, body, stop=stop, idle=IDLE_S)
            if stream.status == 200:
                return stream
            with stream:
                raise refusal(stream.answer())
        try:
            return self._with_token("/watch", attempt)
        except Refused as e:
            raise away(e) from None

    def call(self, path: str, body: dict[str, Any], timeout_s: float = 0.0) -> dict[str, Any]:
        """Send a request and return the document of the answer. timeout_s: see Http.request(). Raises Refused if a
        lease does not exist; Away for all other errors."""
        try:
            return self._with_token(path, lambda gateway_path: self._post(gateway_path, body, timeout_s))
        except Refused as e:
            if "lease" in e.text:
                raise
            raise away(e) from None

    def close(self) -> None:
        self.http.close()

    def _post(self, path: str, body: dict[str, Any], timeout_s: float = 0.0) -> dict[str, Any]:
        answer = self.http.request("POST", path, body, timeout=timeout_s)
        if answer.status != 200:
            raise refusal(answer)
        document: dict[str, Any] = answer.document
        return document

    def _with_token(self, path: str, attempt: Callable[[str], Any]) -> Any:
        """Return attempt(the gateway's path + `path`). If the token has expired, get a new token and call attempt()
        once more."""
        renewed = self.token is None
        if self.token is None:
            self.token = self._authenticate()
        while True:
            try:
                return attempt(GATEWAYS[self.gateway] + path)
            except Refused as e:
                if is_unknown_path(e) and self.gateway + 1 < len(GATEWAYS):
                    self.gateway += 1
                elif self.user and is_old_token(e) and not renewed:
                    renewed, self.token = True, self._authenticate()
                else:
                    raise

    def _authenticate(self) -> str:
        """Return a new token; "" without a user. Raises Away."""
        if not self.user:
            return ""
        body = {"name": self.user, "password": self._password()}
        self.token = None               # with an old token etcd would reject this request, too
        while True:
            answer = self.http.request("POST", GATEWAYS[self.gateway] + "/auth/authenticate", body)
            if answer.status == 200:
                token: str = answer.document["token"]
                return token
            e = refusal(answer)
            if "authentication is not enabled" in e.text:
                return ""
            if not is_unknown_path(e) or self.gateway + 1 == len(GATEWAYS):
                raise away(e)
            self.gateway += 1

    def _password(self) -> str:
        if not self.password_file:
            return self.password
        try:
            return read_file(self.password_file, posix.O_RDONLY, MAX_PASSWORD_BYTES).decode().strip("\n")
        except (OSError, ValueError) as e:
            raise Away(f"read {self.password_file} for etcd: {getattr(e, 'strerror', None) or e}") from None

    def _headers(self) -> dict[str, str]:
        return {"Authorization": self.token} if self.token else {}

    def _note(self, document: dict[str, Any], began: float) -> None:
        """Record the cluster and the revision of an answer. Answers to several threads may overtake each other. So a
        revision below the recorded revision counts only if its request began after the recorded revision had
        arrived."""
        header = document["header"]
        now = header["cluster_id"], int(header["revision"])
        if self.history is None or now > self.history or began > self._noted:
            self.history, self._noted = now, monotonic()


def refusal(answer: Answer) -> Refused:
    """Return the error in an answer whose status is not 200."""
    try:
        document = json.read(answer.data)
        return Refused(int(document.get("code", 0)), str(document.get("message") or document.get("error")),
                       answer.endpoint)
    except (ValueError, AttributeError):
        return Refused(NOT_FOUND if answer.status == 404 else 0, f"status {answer.status}: {answer.text}",
                       answer.endpoint)


def is_unknown_path(e: Refused) -> bool:
    """Return whether the error says that the gateway does not have the path. An error about a missing lease has the
    same gRPC code, but a text that names etcdserver."""
    return e.code == NOT_FOUND and "not found" in e.text.lower() and "etcdserver" not in e.text


def is_old_token(e: Refused) -> bool:
    return e.code == UNAUTHENTICATED or any(
        text in e.text for text in ("auth token", "revision of auth store is old", "user name is empty"))


def away(e: Refused) -> Away:
    hint = "; may this user read and write the keys below the configuration's prefix?" if e.code == DENIED else ""
    return Away(f"etcd at {e.endpoint}: {e.text}{hint}")
