"""Read the devices of the node's pods from the kubelet's pod-resources API, by one gRPC call on a unix socket.

The package h2 does HTTP/2. Importing grpcio would take twice the time and six times the memory: CONTRIBUTING.md has the
figures. Source: pod-resources/v1/api.proto of k8s.io/kubelet, and PROTOCOL-HTTP2.md of gRPC.
"""

from __future__ import annotations

from fastcni.clients.errors import Away
from fastcni.clients.site_packages import make_importable
from fastcni.kernel import waiting
from fastcni.kernel.sockets import streams

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"
TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 16 << 20         # limit of an answer, the same as in Multus
HEADERS = ((":method", "POST"), (":scheme", "http"), (":authority", "localhost"),
           (":path", "/v1.PodResourcesLister/List"), ("te", "trailers"), ("content-type", "application/grpc"),
           ("user-agent", "fastcni"))
EMPTY_MESSAGE = bytes(5)            # a gRPC message: not compressed, length 0
VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5        # wire types of protocol buffers


def devices_of(namespace: str, name: str, path: str) -> dict[str, set[str]]:
    """Return {resource name: device ids} for the devices of a pod's containers. Raises Away, also if the package h2 is
    missing."""
    try:
        return read_devices(call(path), namespace.encode(), name.encode())
    except OSError as e:
        raise Away(f"the kubelet at {path}: {e.strerror or e}") from None
    except (ValueError, IndexError) as e:
        raise Away(f"the kubelet at {path} sends no PodResources: {e}") from None


def call(path: str) -> bytes:
    """Call the method List of the kubelet's API, and return the bytes of its answer. path: the kubelet's socket. Raises
    Away, OSError."""
    make_importable()
    try:
        import h2.connection as http2
        import h2.exceptions
    except ImportError:
        raise Away("the package h2 is missing: install fastcni[devices], or Debian's python3-h2, for the interpreter "
                   "of the server or the plugins") from None
    stream = streams.Stream(path, waiting.limit(TIMEOUT_S), waiting.STORE)
    try:
        body, status = exchange(stream, http2.H2Connection(), path)
    except h2.exceptions.ProtocolError as e:
        raise Away(f"{path} does not speak gRPC: {e}") from None
    finally:
        stream.close()
    if status != "0":
        raise Away(f"the kubelet at {path} answers with gRPC status {status}")
    if body[:1] != b"\0" or int.from_bytes(body[1:5], "big") != len(body) - 5:
        raise Away(f"the kubelet at {path} sends no complete message")
    return body[5:]


def exchange(stream: streams.Stream, connection: Any, path: str) -> tuple[bytes, str]:
    """Send the call of List. Return (the bytes of the answer, its gRPC status). connection: h2's connection. Raises
    Away, OSError."""
    connection.initiate_connection()
    connection.send_headers(1, HEADERS)
    connection.send_data(1, EMPTY_MESSAGE, end_stream=True)
    body, status = bytearray(), ""
    while not status:
        stream.send_all(connection.data_to_send())
        if not (data := stream.receive()):
            raise Away(f"the kubelet at {path} has closed the connection")
        for event in connection.receive_data(data):
            if hasattr(event, "flow_controlled_length"):
                body += event.data
                connection.acknowledge_received_data(event.flow_controlled_length, 1)
            elif hasattr(event, "error_code"):
                raise Away(f"the kubelet at {path} has ended the call: {event.error_code}")
            status = status or status_of(getattr(event, "headers", None) or ())
        if len(body) > MAX_ANSWER_BYTES:
            raise Away(f"the kubelet at {path} sends more than {MAX_ANSWER_BYTES} bytes")
    return bytes(body), status


def status_of(headers: Any) -> str:
    """Return the gRPC status in trailers, "HTTP 404" for an HTTP error; "" for other headers."""
    found = {as_text(name): as_text(value) for name, value in headers}
    if (code := found.get(":status", "200")) != "200":
        return f"HTTP {code}"
    return found.get("grpc-status", "")


def as_text(value: bytes | str) -> str:
    return value if isinstance(value, str) else value.decode("ascii", "replace")


def read_devices(message: bytes, namespace: bytes, name: bytes) -> dict[str, set[str]]:
    """Return {resource name: device ids} of one pod in a ListPodResourcesResponse. Raises ValueError, IndexError."""
    found: dict[str, set[str]] = {}
    for pod in (dict_of(it) for it in dict_of(message).get(1, ())):
        if (pod.get(1), pod.get(2)) != ([name], [namespace]):
            continue
        for container in pod.get(3, ()):
            for devices in map(dict_of, dict_of(container).get(2, ())):
                resource = b"".join(devices.get(1, ())).decode()
                found.setdefault(resource, set()).update(it.decode() for it in devices.get(2, ()))
    return found


def dict_of(message: bytes) -> dict[int, list[bytes]]:
    """Return {field number: values} of a message's fields that hold bytes. Raises ValueError, IndexError."""
    found: dict[int, list[bytes]] = {}
    for number, value in fields(message):
        found.setdefault(number, []).append(value)
    return found


def fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield (number, value) of each field that holds bytes; other fields are skipped. Raises ValueError, IndexError."""
    at = 0
    while at < len(message):
        tag, at = varint(message, at)
        kind = tag & 7
        if kind == VARINT:
            _, at = varint(message, at)
        elif kind in (FIXED64, FIXED32):
            at += 8 if kind == FIXED64 else 4
        elif kind == BYTES:
            size, at = varint(message, at)
            if at + size > len(message):
                raise ValueError("a field is cut off")
            yield tag >> 3, message[at:at + size]
            at += size
        else:
            raise ValueError(f"wire type {kind}")


def varint(message: bytes, at: int) -> tuple[int, int]:
    """Return (the varint at an offset, the offset after the varint). Raises IndexError, ValueError."""
    found = shift = 0
    while True:
        byte, at = message[at], at + 1
        found |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return found, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
