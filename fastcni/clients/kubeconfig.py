"""Read the address of a cluster's API server and the credentials, from a kubeconfig or from the files that every pod
has.

Supported in a kubeconfig: `token`, `tokenFile`, client certificates and CAs as files or `-data`, user and password,
`insecure-skip-tls-verify`, `tls-server-name`, the namespace of the context. `exec`, `auth-provider`, `proxy-url` and
impersonation are errors, because they need another program or service: use a service account's token.
"""

from __future__ import annotations

import posix
from _thread import allocate_lock
from time import monotonic

from fastcni._system import read_file
from fastcni.clients.errors import Away
from fastcni.clients.site_packages import make_importable
from fastcni.spec import json

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

POD_FILES = "/var/run/secrets/kubernetes.io/serviceaccount"
TOKEN_MAX_AGE_S = 60.0          # a token file is read again after this time; kubelets replace it long before it expires
MAX_BYTES = 1 << 20
REFUSED = {
    "cluster": {"proxy-url": "a proxy"},
    "user": {"exec": "a program for credentials", "auth-provider": "an auth provider", "as": "impersonation",
             "as-uid": "impersonation", "as-groups": "impersonation", "as-user-extra": "impersonation"},
}


class Access:
    """An API server and the credentials for it.

    source: where the Access was read, for errors. server: the URL. ca, cert, key: PEM files or texts. verify: whether
    to check the server's certificate. server_name: the name in the certificate, "" for the URL's host. namespace: the
    namespace of the context, or "". token, token_file, basic ("user:password"): at most one of them is set; the other
    values are "".
    """

    __slots__ = ("source", "server", "ca", "cert", "key", "verify", "server_name", "namespace", "token", "token_file",
                 "basic", "_read", "_until", "_lock")

    def __init__(self, source: str, server: str) -> None:
        self.source, self.server = source, server
        self.ca = self.cert = self.key = self.server_name = self.namespace = ""
        self.token = self.token_file = self.basic = ""
        self.verify = True
        self._read, self._until, self._lock = "", 0.0, allocate_lock()

    def place(self) -> tuple[Any, ...]:
        """Return the values on which a connection depends. Credentials in headers are not among these values."""
        return self.server, self.ca, self.cert, self.key, self.verify, self.server_name

    def headers(self) -> dict[str, str]:
        """Return the headers with the credentials. Raises Away."""
        if self.token_file:
            return {"Authorization": f"Bearer {self._current_token()}"}
        if self.token:
            return {"Authorization": f"Bearer {self.token}"}
        if self.basic:
            from binascii import b2a_base64

            return {"Authorization": f"Basic {b2a_base64(self.basic.encode(), newline=False).decode()}"}
        return {}

    def _current_token(self) -> str:
        with self._lock:
            if monotonic() >= self._until:
                self._read = read_text(self.token_file, "token").strip()
                self._until = monotonic() + TOKEN_MAX_AGE_S
            return self._read


def in_cluster(directory: str = POD_FILES, environment: dict[bytes, bytes] | None = None) -> Access:
    """Return the Access of the pod in which this process runs. environment: the variables, with KUBERNETES_SERVICE_HOST
    and _PORT; None: the process's environment. Raises Away."""
    variables = posix.environ if environment is None else environment
    host = variables.get(b"KUBERNETES_SERVICE_HOST", b"").decode()
    if not host:
        raise Away("kubernetes: not in a pod (KUBERNETES_SERVICE_HOST is not set): name a `kubeconfig`")
    port = variables.get(b"KUBERNETES_SERVICE_PORT", b"443").decode()
    access = Access("this pod", f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}")
    access.ca, access.token_file = f"{directory}/ca.crt", f"{directory}/token"
    access.namespace = read_text(f"{directory}/namespace", "namespace").strip()
    return access


def read_kubeconfig(path: str, context: str = "") -> Access:
    """Return the Access of a kubeconfig. context: the context's name, "" for the current context. Raises Away, whose
    text names the key with the error."""
    document = read_document(path)
    name = context or document.get("current-context") or ""
    chosen = find(path, document, "context", name)
    cluster = find(path, document, "cluster", chosen.get("cluster", ""))
    user = find(path, document, "user", chosen["user"]) if chosen.get("user") else {}
    access = Access(f"kubeconfig {path}", text_of(path, cluster, "server"))
    if not access.server.startswith(("https://", "http://")):
        raise wrong(path, f"server: expected a URL, got {access.server!r}")
    access.namespace = text_of(path, chosen, "namespace")
    read_tls(path, access, cluster, user)
    access.token, access.token_file = text_of(path, user, "token"), file_of(path, user, "tokenFile")
    if user.get("username"):
        access.basic = f"{text_of(path, user, 'username')}:{text_of(path, user, 'password')}"
    return access


def read_document(path: str) -> dict[str, Any]:
    """Return the mapping in a YAML kubeconfig. A kubeconfig in JSON, as deploy/fastcni-node writes, needs no PyYAML."""
    text = read_text(path, "kubeconfig")
    if text.lstrip()[:1] == "{":
        try:
            found: dict[str, Any] = json.read(text.encode())
            return found
        except json.JsonError:
            pass                        # not JSON, but maybe YAML, which may also begin with a brace
    make_importable()
    try:
        import yaml
    except ImportError as e:
        raise Away("the package PyYAML is missing: install fastcni[cluster], or Debian's python3-yaml, for the "
                   "interpreter of the plugins") from e
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as e:
        raise wrong(path, " ".join(str(e).split())) from None
    if not isinstance(document, dict):
        raise wrong(path, "is not a mapping")
    return document


def read_tls(path: str, access: Access, cluster: dict[str, Any], user: dict[str, Any]) -> None:
    access.ca = pem_of(path, cluster, "certificate-authority")
    access.cert, access.key = pem_of(path, user, "client-certificate"), pem_of(path, user, "client-key")
    if bool(access.cert) != bool(access.key):
        raise wrong(path, "client-certificate and client-key: only one of them is set")
    access.verify = not cluster.get("insecure-skip-tls-verify")
    access.server_name = text_of(path, cluster, "tls-server-name")


def find(path: str, document: dict[str, Any], kind: str, name: str) -> dict[str, Any]:
    """Return the entry `name` of the list `clusters`, `users` or `contexts`."""
    for entry in document.get(f"{kind}s") or ():
        if isinstance(entry, dict) and entry.get("name") == name and isinstance(found := entry.get(kind), dict):
            for key, what in REFUSED.get(kind, {}).items():
                if found.get(key):
                    raise wrong(path, f"{kind} {name!r}: `{key}`: {what} is not supported; use a token, a tokenFile or "
                                      "a client certificate")
            return found
    raise wrong(path, f"has no {kind} {name!r}" if name else f"names no {kind}")


def text_of(path: str, section: dict[str, Any], key: str) -> str:
    value = section.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise wrong(path, f"{key}: expected a string, got {type(value).__name__}")
    return value


def file_of(path: str, section: dict[str, Any], key: str) -> str:
    """Return the path of a file, which may be relative to the kubeconfig's directory."""
    name = text_of(path, section, key)
    return name if not name or name.startswith("/") else f"{path.rpartition('/')[0] or '.'}/{name}"


def pem_of(path: str, section: dict[str, Any], key: str) -> str:
    """Return the PEM file of `key`, or the PEM text of `key`-data, which has precedence."""
    data = text_of(path, section, f"{key}-data")
    if not data:
        return file_of(path, section, key)
    from binascii import Error, a2b_base64

    try:
        text = a2b_base64(data).decode()
    except (Error, ValueError):
        raise wrong(path, f"{key}-data is not base64 of a PEM text") from None
    if "-----BEGIN" not in text:
        raise wrong(path, f"{key}-data is not base64 of a PEM text")
    return text


def read_text(path: str, what: str) -> str:
    try:
        return read_file(path, posix.O_RDONLY, MAX_BYTES).decode()
    except OSError as e:
        raise Away(f"kubernetes: read the {what} {path}: {e.strerror} (errno {e.errno})") from None
    except ValueError:
        raise Away(f"kubernetes: the {what} {path} is not text") from None


def wrong(path: str, text: str) -> Away:
    return Away(f"kubeconfig {path}: {text}")
