"""A node in the test's namespace, its agent with files, and HTTP servers in pods with separate links."""

import contextlib
import select
import socket
import ssl
import threading
import time

import pytest
from unit.agent.policy.pods import FORWARDING, batch, mac_of_pod
from unit.agent.policy.test_service import Running

from fastcni.agent.policy.http import part
from fastcni.agent.policy.ruleset import see_bridged_traffic
from fastcni.kernel import sysctl
from fastcni.testing.namespaces import Inside
from fastcni.testing.witnesses import eventually

ADDRESSES = {name: (f"10.9.{number}.1", f"fd00:9:{number}::1") for number, name in enumerate("abc", 1)}
GATEWAYS = ("169.254.1.1", "fd00:9::fe")
PORT = 80
WAIT_S = 10
WEBSOCKET = ("Connection: Upgrade", "Upgrade: websocket", "Sec-WebSocket-Version: 13",
             "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==")
SWITCHING = (b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
             b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n\r\n")


class Server:
    """An HTTP server. It answers a request with the data that the connection has received. seen: (source address,
    request lines)."""

    def __init__(self, netns, port=PORT):
        self.seen, self.ended = [], False
        with Inside(netns):
            self.sock = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=128)
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def close(self):
        self.ended = True
        self.thread.join()
        self.sock.close()

    def _run(self):
        connections = {}
        while not self.ended:
            for it in select.select([self.sock, *connections], [], [], 0.05)[0]:
                if it is self.sock:
                    connection, ends = it.accept()
                    connections[connection] = (ends[0].removeprefix("::ffff:"), b"")
                    continue
                with contextlib.suppress(OSError):
                    data = it.recv(65536)
                    source, before = connections[it]
                    if data:
                        connections[it] = source, self._answer(it, source, before + data)
                        continue
                del connections[it]
                it.close()
        for it in connections:
            it.close()

    def _answer(self, it, source, data):
        while b"\r\n\r\n" in data:
            head, _, data = data.partition(b"\r\n\r\n")
            line = head.split(b"\r\n")[0].decode(errors="replace")
            self.seen.append((source, line))
            it.sendall(SWITCHING if b"\r\nupgrade: websocket" in head.lower() else
                       b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        return data


class Agent(Running):
    addresses = ADDRESSES


class World:
    """A node, its agent and pods with HTTP servers. pods: {name: namespace}."""

    def __init__(self, tmp_path, make_netns):
        for name in FORWARDING:
            sysctl.write(name, "1")
        self.pods = {name: make_netns() for name in ADDRESSES}
        for netns in (None, *self.pods.values()):
            with Inside(netns):
                sysctl.write("net/ipv6/conf/default/accept_dad", "0")
        batch(None, "link set lo up")
        for name, netns in self.pods.items():
            v4, v6 = ADDRESSES[name]
            batch(None, f"link add port-{name} type veth peer eth0 address {mac_of_pod(name)} netns {netns}",
                  f"addr add {GATEWAYS[0]}/32 dev port-{name}", f"addr add {GATEWAYS[1]}/128 dev port-{name} nodad",
                  f"link set port-{name} up", f"route add {v4}/32 dev port-{name}",
                  f"route add {v6}/128 dev port-{name}")
            batch(netns, "link set lo up", f"addr add {v4}/32 dev eth0", f"addr add {v6}/128 dev eth0 nodad",
                  "link set eth0 up", *(f"route add {gateway} dev eth0" for gateway in GATEWAYS),
                  *(f"route add default via {gateway} dev eth0" for gateway in GATEWAYS))
        self.open = contextlib.ExitStack()
        self.servers = {name: self.open.enter_context(contextlib.closing(Server(netns)))
                        for name, netns in self.pods.items()}
        self.agent = Agent(tmp_path)
        self.open.callback(self.agent.stop)

    def close(self):
        self.open.close()

    def add(self, name, **labels):
        """Run the plugin `policy` for a pod."""
        self.agent.add(name, **labels)

    def connect(self, source, to, version=0, seconds=WAIT_S, port=PORT):
        """Return a connection of a pod. Raises OSError."""
        address = ADDRESSES[to][version] if to in ADDRESSES else to
        with Inside(self.pods.get(source)):
            it = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
        self.open.callback(it.close)
        it.settimeout(seconds)
        it.connect((address, port))
        return it

    def ask(self, source, to, data, version=0, port=PORT):
        """Send bytes from a pod. Return the HTTP status of the first answer, or 0 without an answer."""
        if isinstance(data, str):
            data = request(data)
        with contextlib.closing(self.connect(source, to, version, port=port)) as it:
            it.sendall(data)
            return status(read(it))


def request(text, host="web", more=()):
    """Return an HTTP/1.1 request as bytes. text: method and path, such as "GET /a"."""
    return "\r\n".join((f"{text} HTTP/1.1", f"Host: {host}", *more, "", "")).encode()


def read(it):
    """Return the bytes of a complete answer."""
    found = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        while b"\r\n\r\n" not in found and (data := it.recv(65536)):
            found += data
        head, _, body = found.partition(b"\r\n\r\n")
        lengths = [int(line.split(b":")[1]) for line in head.split(b"\r\n")
                   if line.lower().startswith(b"content-length")]
        while lengths and len(body) < lengths[0] and (data := it.recv(65536)):
            found, body = found + data, body + data
    return found


def status(answer):
    return int(answer.split()[1]) if answer.startswith(b"HTTP/") else 0


def policy(name="web", selector=None, **directions):
    """Return a document of kind CiliumNetworkPolicy."""
    return {"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": {"name": name},
            "spec": {"endpointSelector": {"matchLabels": selector or {"app": "web"}}, **directions}}


def http(*requests, port="80", **peers):
    """Return an item of ingress or egress."""
    return {**peers, "toPorts": [{"ports": [{"port": port, "protocol": "TCP"}], "rules": {"http": list(requests)}}]}


def eventually_status(world, expected, *asked, **named):
    until = time.monotonic() + WAIT_S
    while (found := world.ask(*asked, **named)) != expected and time.monotonic() < until:
        time.sleep(0.02)
    return found


@pytest.fixture(name="world")
def http_world(host_netns, pod_netns, tmp_path):
    if not see_bridged_traffic():
        pytest.skip("needs br_netfilter in the kernel")
    it = World(tmp_path, pod_netns)
    yield it
    it.close()


CLIENTS = [{"matchLabels": {"app": "client"}}]
READ_ONLY = policy(ingress=[http({"method": "GET", "path": "/public/.*"}, fromEndpoints=CLIENTS)])


def begin(world, *documents, labels=None):
    """Add the pods `a` and `b` under these policies, and wait for a running proxy. The proxy knows a pod before the
    kernel lets the pod connect."""
    world.agent.write(*documents)
    proxy = next(each for each in world.agent.it.parts if isinstance(each, part.Proxy))
    assert eventually(lambda: proxy.process and proxy.process.listens)
    for name, app in (labels or {"a": "client", "b": "web"}).items():
        world.add(name, app=app)
    return proxy


def begin_tls(world, name, source="a"):
    """Begin TLS for a name. Return the connection, or None if the bytes do not reach the server."""
    it, out = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(it, out, server_hostname=name)
    with contextlib.suppress(ssl.SSLWantReadError):
        client.do_handshake()
    to = world.connect(source, "b")
    to.sendall(out.read() + b"\r\n\r\n")
    return to if read(to).startswith(b"HTTP/1.1 200") else None


def begin_websocket(world, path, source="a"):
    """Begin a websocket. The server answers each text that the websocket carries."""
    it = world.connect(source, "b")
    it.sendall(request(f"GET {path}", more=WEBSOCKET))
    assert status(read(it)) == 101
    return it


def passes(it):
    """Return whether the server receives a client's bytes and answers. If the connection has ended, the client reads
    its end."""
    with contextlib.suppress(ConnectionError):
        it.sendall(b"more\r\n\r\n")
        return status(read(it)) == 200
    return False


# Requests that a server may parse in another way than the proxy
ATTACKS = {
    "dot segments": request("GET /public/../secret"), "one dot": request("GET /public/./x"),
    "an encoded dot": request("GET /public/%2e%2E/secret"), "a half encoded dot": request("GET /public/.%2e/secret"),
    "an encoded slash": request("GET /public/..%2fsecret"), "a backslash": request("GET /public/..\\secret"),
    "an encoded backslash": request("GET /public/%5c..%5csecret"), "twice encoded": request("GET /public/%252e%252e/x"),
    "overlong UTF-8": request("GET /public/%c0%ae%c0%ae/secret"),
    "overlong UTF-8 of three bytes": request("GET /public/%e0%80%ae%E0%80%AE/secret"),
    "overlong UTF-8 of four bytes": request("GET /public/%f0%80%80%af../secret"),
    "overlong UTF-8 of five bytes": request("GET /public/%f8%80%80%80%ae/secret"),
    "a surrogate": request("GET /public/%ed%a0%80"), "an encoded line break": request("GET /public/a%0d%0aGET%20/x"),
    "dots before an encoded semicolon": request("GET /public/..%3bx/secret"),
    "dots before a space": request("GET /public/..%20/secret"), "three times encoded": request("GET /public/%25252e/x"),
    "NUL": request("GET /public/%00/x"),
    "path parameters": request("GET /public/..;a=b/secret"), "an empty segment": request("GET //public/x"),
    "an encoded letter": request("GET /public/%73ecret"), "broken encoding": request("GET /public/%zz"),
    "a fragment": request("GET /public/#/../../secret"),
    "an absolute target": request("GET http://web/public/x"),
    "an absolute target of another host": request("GET http://other/public/x"),
    "CONNECT": request("CONNECT web:80"), "an asterisk": request("OPTIONS *"),
    "the method in lower case": request("get /public/x"), "a longer method": request("GETX /public/x"),
    "HTTP/2 by prior knowledge": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9),
    "an upgrade to HTTP/2": request("GET /public/x", more=(
        "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")),
    "an upgrade to two protocols": request("GET /public/x", more=("Connection: Upgrade", "Upgrade: websocket, h2c")),
    "two Hosts": request("GET /public/x", more=("Host: other",)),
    "HTTP/0.9": b"GET /public/x\r\n\r\n",
    "a folded header": request("GET /secret", more=("X: 1", " GET /public/x HTTP/1.1")),
    "a space before the colon": request("GET /public/x", more=("Transfer-Encoding : chunked",)),
    "a bare carriage return": b"GET /secret\rGET /public/x HTTP/1.1\r\nHost: web\r\n\r\n",
    "no HTTP": b"\x00\x01\x02\x03\r\n\r\n",
    "two lengths": request("GET /public/x", more=("Content-Length: 0", "Content-Length: 44")),
}
