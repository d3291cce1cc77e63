"""Run a real etcd for tests: one member or several, with TLS or users. It keeps its data in memory, and listens on free
ports of loopback.

    with Etcd(directory, members=3) as etcd:
        etcd.endpoints                          # ["http://127.0.0.1:40001", ...]
        etcd.conf(prefix="/t1")                 # the "store" of an IPAM configuration
        etcd.members[0].kill()                  # also pause(), resume(), end(), start()
        saved = etcd.backup(); ...; etcd.restore(saved)
"""

import base64
import contextlib
import itertools
import json
import os
import shutil
import signal
import socket
import ssl
import subprocess
import tempfile
import urllib.request
from pathlib import Path

from stopping import stop

from fastcni.testing.witnesses import eventually

START_S = 60                    # until a member is healthy, also on a busy machine
NUMBERS = itertools.count()
USER, PASSWORD = "fastcni", "for tests only"


class Member:
    """One etcd process. endpoint: the URL for clients, https if TLS is used."""

    def __init__(self, number, directory, scheme, host):
        self.name, self.directory, self.popen = f"m{number}", directory / f"m{number}", None
        self.client, self.peer, self.metrics = free_ports(3)
        self.endpoint = f"{scheme}://{host}:{self.client}"
        self.peer_url = f"http://127.0.0.1:{self.peer}"
        self.metrics_url = f"http://127.0.0.1:{self.metrics}"       # serves /health by http, also if clients use TLS

    def start(self, initial, options=()):
        """Start the process. initial: the value of --initial-cluster."""
        self.options = (initial, options)
        words = ["etcd", "--name", self.name, "--data-dir", self.directory / "data", "--initial-cluster", initial,
                 "--listen-client-urls", self.endpoint, "--advertise-client-urls", self.endpoint,
                 "--listen-peer-urls", self.peer_url, "--initial-advertise-peer-urls", self.peer_url,
                 "--listen-metrics-urls", self.metrics_url, "--logger", "zap", "--log-outputs", "stderr",
                 "--snapshot-count", "1000", *options]
        self.directory.mkdir(parents=True, exist_ok=True)
        with open(self.directory / "log", "ab") as log:
            self.popen = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def restart(self):
        """Start the process again with the same options and data."""
        self.start(*self.options)

    def healthy(self):
        """Return whether the member answers and knows a leader. Raises RuntimeError with the member's log if the member
        has ended."""
        if self.popen.poll() is not None:
            raise RuntimeError(f"etcd has ended: {(self.directory / 'log').read_text()[-3000:]}")
        try:
            with urllib.request.urlopen(self.metrics_url + "/health", timeout=2) as answer:
                return json.loads(answer.read())["health"] == "true"
        except OSError:
            return False

    def signal(self, number):
        if self.popen and self.popen.poll() is None:
            self.popen.send_signal(number)

    def pause(self):
        """Stop all threads of the member, so that it hangs: the kernel accepts connections, and no process answers."""
        stop(self.popen.pid)

    def resume(self):
        self.signal(signal.SIGCONT)

    def kill(self):
        self.signal(signal.SIGKILL)
        if self.popen:
            self.popen.wait(START_S)


class Etcd:
    """A cluster of etcd. tls: require client certificates; `directory` then has ca.pem, client.pem and client-key.pem.
    user: require a user and a password. options: more options of etcd. host: the address at which clients reach
    etcd."""

    def __init__(self, members=1, *, tls=False, user=False, options=(), host="127.0.0.1"):
        self.members, self.host, self.cluster_token = [], host, "etcd-cluster"
        memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.directory = Path(tempfile.mkdtemp(prefix="fastcni-etcd-", dir=memory))
        self.tls, self.user, self.options, self.count = tls, user, list(options), members
        if tls:
            make_certificates(self.directory)
            self.options += ["--client-cert-auth", "--trusted-ca-file", self.directory / "ca.pem", "--cert-file",
                             self.directory / "server.pem", "--key-file", self.directory / "server-key.pem"]

    def __enter__(self):
        try:
            self.start()
            if self.user:
                self._require_user()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self.end()
        shutil.rmtree(self.directory)

    @property
    def endpoints(self):
        return [member.endpoint for member in self.members]

    def conf(self, **keys):
        """Return the `store` of an IPAM configuration, with `keys` added."""
        conf = {"type": "etcd", "endpoints": self.endpoints} | keys
        if self.tls:
            conf |= {"ca": f"{self.directory}/ca.pem", "cert": f"{self.directory}/client.pem",
                     "key": f"{self.directory}/client-key.pem"} | keys
        if self.user:
            conf |= {"username": USER, "password": PASSWORD} | keys
        return conf

    def start(self):
        """Start all members, and wait until they are healthy. If another process has taken a port, use other ports."""
        for attempt in range(3):
            scheme = "https" if self.tls else "http"
            directory = self.directory / f"{attempt}"
            self.members = [Member(number, directory, scheme, self.host) for number in range(self.count)]
            try:
                self._start()
                return
            except RuntimeError as e:
                if attempt == 2 or "address already in use" not in str(e):
                    raise
                self.end()

    def _start(self):
        initial = ",".join(f"{member.name}={member.peer_url}" for member in self.members)
        for member in self.members:
            member.start(initial, self.options)
        self.await_health()

    def await_health(self):
        """Wait until every member is healthy."""
        for member in self.members:
            assert eventually(member.healthy, START_S), (member.directory / "log").read_text()[-3000:]

    def end(self):
        for member in self.members:
            member.resume()
            member.kill()

    def leader(self):
        """Return the Member that is the leader."""
        for member in self.members:
            if member.popen.poll() is None:
                status = self.call("/v3/maintenance/status", {}, member)
                if status["leader"] == status["header"]["member_id"]:
                    return member
        raise RuntimeError("no member of etcd is the leader")

    def backup(self):
        """Save a snapshot of the running member by `etcdctl snapshot save`. Return the snapshot's file."""
        saved = self.directory / f"snapshot-{next(NUMBERS)}"
        etcdctl("snapshot", "save", saved, "--endpoints", self.endpoints[0])
        return saved

    def restore(self, saved, token="etcd-cluster"):
        """End the only member, restore a backup() by `etcdctl snapshot restore`, and start the member with the restored
        data.

        token: a token other than the default gives the restored cluster another cluster id.
        """
        (member,) = self.members
        self.end()
        self.cluster_token = token
        shutil.rmtree(member.directory / "data")
        etcdctl("snapshot", "restore", saved, "--data-dir", member.directory / "data", "--name", member.name,
                "--initial-cluster", f"{member.name}={member.peer_url}", "--initial-advertise-peer-urls",
                member.peer_url, "--initial-cluster-token", token)
        self.restart()

    def restart(self):
        for member in self.members:
            member.restart()
        self.await_health()

    def call(self, path, body, member=None, token=""):
        """Send a request to etcd's JSON gateway, without fastcni's client. Return the answer."""
        asked = urllib.request.Request((member or self.members[0]).endpoint + path, json.dumps(body).encode())
        if token:
            asked.add_header("Authorization", token)
        context = None
        if self.tls:
            context = self.trusting()
            context.load_cert_chain(self.directory / "client.pem", self.directory / "client-key.pem")
        with urllib.request.urlopen(asked, timeout=START_S, context=context) as answer:
            return json.loads(answer.read())

    def trusting(self):
        """Return an SSLContext that trusts the tests' certificate authority, also without the extensions that strict
        checks need."""
        context = ssl.create_default_context(cafile=self.directory / "ca.pem")
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        return context

    def token(self):
        return self.call("/v3/auth/authenticate", {"name": "root", "password": PASSWORD})["token"]

    def keys(self, prefix="", token=""):
        """Return {key: value} of all keys that begin with `prefix`."""
        body = {"key": encoded(prefix or "\0"), "range_end": encoded(prefix_end(prefix))}
        return {decoded(each["key"]): decoded(each.get("value", ""))
                for each in self.call("/v3/kv/range", body, token=token).get("kvs", ())}

    def end_lease(self, prefix, node):
        """End a node's lease, as etcd does when `node_ttl` has passed since the node's last heartbeat."""
        (alive,) = self.call("/v3/kv/range", {"key": encoded(f"{prefix}/node/{node}/alive")})["kvs"]
        self.call("/v3/lease/revoke", {"ID": alive["lease"]})

    def _require_user(self):
        """Create the user root, and a user that may read and write only keys below /fastcni/. Require
        authentication."""
        for user in ("root", USER):
            self.call("/v3/auth/user/add", {"name": user, "password": PASSWORD})
        self.call("/v3/auth/role/add", {"name": "root"})
        self.call("/v3/auth/role/add", {"name": "ipam"})
        self.call("/v3/auth/role/grant", {"name": "ipam", "perm": {
            "permType": "READWRITE", "key": encoded("/fastcni/"), "range_end": encoded("/fastcni0")}})
        self.call("/v3/auth/user/grant", {"user": "root", "role": "root"})
        self.call("/v3/auth/user/grant", {"user": USER, "role": "ipam"})
        self.call("/v3/auth/enable", {})


def etcdctl(*words):
    done = subprocess.run(["etcdctl", *words], capture_output=True, text=True, env={**os.environ, "ETCDCTL_API": "3"})
    assert done.returncode == 0, done.stderr


def encoded(text):
    return base64.b64encode(text.encode()).decode()


def decoded(text):
    return base64.b64decode(text).decode()


def prefix_end(prefix):
    return prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else "\0"


def free_ports(count):
    """Return `count` ports that are free on 127.0.0.1 now."""
    with contextlib.ExitStack() as opened:
        sockets = [opened.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def make_certificates(directory):
    """Make a certificate authority, and certificates of the server (127.0.0.1), a client, and a client with a common
    name."""
    def openssl(*words):
        done = subprocess.run(["openssl", *words], cwd=directory, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    openssl("req", "-x509", *key, "-keyout", "ca-key.pem", "-out", "ca.pem", "-subj", "/CN=authority", "-days", "2")
    # etcd's JSON gateway is itself a client of etcd, with the server's certificate. etcd would take a common name in
    # this certificate for a user.
    for name, subject in (("server", "/O=etcd"), ("client", "/O=nodes"), ("named", f"/CN={USER}")):
        (directory / "extensions").write_text("subjectAltName=IP:127.0.0.1\nextendedKeyUsage=serverAuth,clientAuth\n")
        openssl("req", "-new", *key, "-keyout", f"{name}-key.pem", "-out", f"{name}.csr", "-subj", subject)
        openssl("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial",
                "-days", "2", "-out", f"{name}.pem", "-extfile", "extensions")
