"""HTTP requests to stores: endpoints, deadlines, kept connections, streams."""

import os
import socket
import subprocess
import sys
import threading
import time

import pytest
from unit.clients.http_service import Service

import fastcni
from fastcni.clients.errors import Away
from fastcni.clients.http import Http
from fastcni.kernel import waiting
from fastcni.kernel.sockets import name_lookup
from fastcni.launcher import modules

pytest.importorskip("urllib3")
AWAY = "http://127.0.0.1:1"     # tcpmux: the kernel refuses the connection


@pytest.fixture
def free():
    """Yield an Event. Hanging requests are answered when the test sets the Event, or when the test ends."""
    event = threading.Event()
    yield event
    event.set()


@pytest.fixture
def service(free):
    def lines():
        yield b'{"n": 1}\n{"n"'
        yield b': 2}\n'
        free.wait()
        yield b""

    answers = {"/a": lambda body: (200, {"body": body.decode()}), "/base/a": lambda body: (200, {"base": True}),
               "/empty": lambda body: (200, b""), "/text": lambda body: (200, b"<html>"),
               "/away": lambda body: (503, {"message": "no leader"}), "/no": lambda body: (409, {"message": "taken"}),
               "/hang": lambda body: free.wait() and (200, {}), "/lines": lambda body: lines(),
               "/whole": lambda body: (200, b'{"n": 1}\n{"n": 2}\n')}
    with Service(answers) as service:
        yield service


def test_json_goes_both_ways_with_headers_of_the_moment(service):
    tokens = iter("xy")
    http = Http([service.url + "/"], headers=lambda: {"Authorization": f"Bearer {next(tokens)}"})
    assert http.request("POST", "/a", {"k": "é"}).document == {"body": '{"k":"é"}'}
    answer = http.request("GET", "/no", headers={"X-One": "1"})
    assert (answer.status, answer.text) == (409, '{"message": "taken"}')
    assert [headers["Authorization"] for _, headers, _ in service.asked] == ["Bearer x", "Bearer y"]
    assert service.asked[0][1]["Content-Type"] == "application/json" and service.asked[1][1]["X-One"] == "1"
    assert http.sent == 2


def test_a_request_is_sent_by_one_write(service, monkeypatch):
    """If headers and body were two writes, the service would read the headers and wait for the body."""
    sent, sendall = [], socket.socket.sendall
    monkeypatch.setattr(socket.socket, "sendall", lambda sock, data: (sent.append(data), sendall(sock, data)))
    assert Http([service.url]).request("POST", "/a", {"key": "value"}).status == 200
    ours = [data for data in sent if data.startswith(b"POST")]
    assert [data.endswith(b'{"key":"value"}') for data in ours] == [True]


# -- names of hosts ----------------------------------------------------------------------------------------------------

def endpoint_by_name(service):
    return service.url.replace("127.0.0.1", "store.example")


def answer_with(monkeypatch, *addresses):
    monkeypatch.setattr(name_lookup, "getaddrinfo", lambda host, port, *_: [
        (2, 1, 6, "", (address, port)) for address in addresses])


def test_the_host_of_an_endpoint_may_have_a_name_with_several_addresses(service, monkeypatch):
    answer_with(monkeypatch, "127.0.0.2", "127.0.0.1")      # the service listens at the second address
    http = Http([endpoint_by_name(service)])
    assert http.request("POST", "/a").status == 200
    assert service.asked[0][1]["Host"].startswith("store.example:")


def test_a_name_is_looked_up_within_the_time_of_the_request(service, monkeypatch, free):
    """getaddrinfo() may wait half a minute for name servers. Once, each ADD waited as long."""
    asked = []
    monkeypatch.setattr(name_lookup, "getaddrinfo", lambda *key: asked.append(key) or (free.wait() and []))
    http = Http([endpoint_by_name(service), service.url], endpoint_timeout=0.2)
    assert http.request("POST", "/a").endpoint == service.url
    http.good = 0
    assert http.request("POST", "/a").endpoint == service.url
    assert len(asked) == 1  # the second request waited for the result of the first lookup
    lost = Http([endpoint_by_name(service)], timeout=0.2)
    with pytest.raises(Away, match=r"no name server has answered about store.example within 0.2 s"):
        lost.request("POST", "/a")


def test_a_name_that_does_not_exist_is_named(service, monkeypatch):
    def refuse(*_):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
    monkeypatch.setattr(name_lookup, "getaddrinfo", refuse)
    with pytest.raises(Away, match=r"at http://store.example:\d+: Name or service not known"):
        Http([endpoint_by_name(service)]).request("POST", "/a")


@pytest.mark.parametrize("host, name", [("etcd-1", True), ("10.0.0.1", False), ("[fd00::1]", False),
                                        ("[fe80::1%eth0]", False), ("fd00::1", False), ("1.2.3.4.example", True)])
def test_addresses_are_not_looked_up(host, name):
    assert name_lookup.is_name(host) is name


def test_an_endpoint_may_have_a_path_and_an_answer_no_body(service):
    assert Http([service.url + "/base"]).request("POST", "/a").document == {"base": True}
    assert Http([service.url]).request("GET", "/empty").document == {}


def test_the_endpoint_that_answers_is_asked_first_from_then_on(service):
    http = Http([AWAY, service.url])
    for _ in range(2):
        assert http.request("POST", "/a").status == 200
    assert (http.good, http.sent) == (1, 3)


def test_an_endpoint_without_its_service_is_left_for_the_next(service):
    with Service({"/away": lambda body: (200, {"from": "the other"})}) as other:
        http = Http([service.url, other.url])
        assert http.request("POST", "/away").document == {"from": "the other"}
        other.answers["/away"] = service.answers["/away"]
        with pytest.raises(Away, match=rf"store at {other.url}: status 503: .*no leader.*; store at {service.url}:"
                                            r" status 503"):
            http.request("POST", "/away")


def test_an_endpoint_that_hangs_costs_its_own_deadline(service):
    with Service({"/hang": lambda body: (200, {})}) as other:
        http = Http([service.url, other.url], endpoint_timeout=0.1)
        assert http.request("POST", "/hang").status == 200 and http.good == 1
    with pytest.raises(Away, match=rf"{service.url}: no answer in time"):
        Http([service.url], timeout=0.1).request("POST", "/hang")


def test_a_request_ends_when_its_caller_leaves(service, monkeypatch):
    caller, end = os.pipe()

    class Request(waiting.Request):
        waits = []

        def pause(self, kind):
            self.waits.append(kind)

    request = Request()
    request.caller = caller
    monkeypatch.setattr(waiting.here, "request", request)
    leave = threading.Timer(0.1, os.close, (end,))
    leave.start()
    with pytest.raises(waiting.CallerGone):
        Http([service.url]).request("POST", "/hang")
    leave.join()
    assert request.waits == [waiting.STORE]
    os.close(caller)


def test_connections_are_kept_and_shared_by_threads(service):
    http = Http([service.url])

    def ask():
        for _ in range(5):
            http.request("POST", "/a")

    threads = [threading.Thread(target=ask) for _ in range(3)]
    ask()
    assert service.connections == 1
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(service.asked) == 20 and service.connections <= 3
    http.close()
    ask()
    assert len(service.asked) == 25


def test_a_kept_connection_that_was_closed_is_replaced(service):
    hang_ups = iter(["hang up"])
    service.answers["/a"] = lambda body: next(hang_ups, (200, {}))
    http = Http([service.url])
    assert http.request("POST", "/a").status == 200 and http.sent == 2
    service.answers["/a"] = lambda body: "hang up"
    with pytest.raises(Away, match="Remote end closed connection without response"):
        http.request("POST", "/a")


@pytest.mark.parametrize("path", ["/lines", "/whole"])
def test_a_stream_gives_documents_as_they_come(service, free, path):
    stopped = []
    with Http([service.url]).stream("POST", path, {}, stop=lambda: bool(stopped)) as stream:
        documents = iter(stream)
        assert stream.status == 200 and [next(documents), next(documents)] == [{"n": 1}, {"n": 2}]
        if path == "/lines":
            stopped.append(True)
        assert next(documents, None) is None


def test_a_stream_ends_when_requests_use_another_endpoint(service):
    """The stream's endpoint may hang, while requests use the next endpoint."""
    http = Http([service.url, "http://127.0.0.1:1"])
    with http.stream("POST", "/lines", {}, stop=lambda: False) as stream:
        documents = iter(stream)
        assert next(documents) == {"n": 1}
        http.good = 1
        assert stream.over() and next(documents, None) is None


def test_a_stream_that_is_refused_has_an_answer_and_one_that_is_cut_fails(service):
    http = Http([service.url])
    with http.stream("POST", "/no", stop=lambda: False) as stream:
        assert stream.status == 409 and stream.answer().document == {"message": "taken"}
    service.answers["/cut"] = lambda body: iter([b'{"n": 1}\n'])       # without the last chunk, the answer never ends
    with http.stream("POST", "/cut", stop=lambda: False, idle=0.1) as stream:
        documents = iter(stream)
        assert next(documents) == {"n": 1}
        with pytest.raises(Away, match="no answer in time"):
            next(documents)


def test_a_stream_that_is_stopped_while_it_opens_is_empty(service):
    began = time.monotonic()
    with Http([service.url]).stream("POST", "/hang", {}, stop=lambda: time.monotonic() > began + 0.1) as stream:
        assert list(stream) == []


def test_an_answer_that_is_no_json_says_whose_it_is(service):
    with pytest.raises(Away, match=rf"{service.url}: not a JSON document: .*<html>"):
        assert Http([service.url]).request("POST", "/text").document


def test_an_endpoint_that_is_no_url_is_named():
    with pytest.raises(Away, match="the endpoint 'http://::1:2379' is no URL such as"):
        Http(["http://::1:2379"]).request("GET", "/")


def test_without_urllib3_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "urllib3", None)
    with pytest.raises(Away, match=r"install fastcni\[cluster\], or Debian's python3-urllib3"):
        Http([AWAY]).request("GET", "/")


IMPORT = """
import sys
sys.path.append({root!r})
import fastcni.kit.ipam.cluster.stores.etcd
from fastcni.clients.site_packages import make_importable
assert not {{"urllib3", "site", "os", "ssl", "json"}} & set(sys.modules), sys.modules
before = set(sys.path)
make_importable()
make_importable()
print(len(set(sys.path) - before) > 0, len(sys.path) == len(set(sys.path)))
"""


def test_a_store_is_imported_without_urllib3_which_is_found_when_it_is_needed():
    root = os.path.dirname(os.path.dirname(fastcni.__file__))
    done = subprocess.run([sys.executable, "-I", "-S", "-c", IMPORT.format(root=root)], capture_output=True, text=True,
                          timeout=60)
    assert (done.stdout, done.stderr) == ("True True\n", "")


def test_a_plugin_file_notes_where_the_packages_are(monkeypatch):
    """Plugin files run the interpreter on which a virtual environment is based. That interpreter does not have the
    environment's packages."""
    import urllib3

    monkeypatch.setattr(modules, "ROWS", ())
    monkeypatch.setattr(modules, "SINGLE", ("clients/site_packages.py",))
    name = "fastcni.clients.site_packages"
    namespace = {"__name__": name}
    exec(modules.own({})[name].code, namespace)
    assert os.path.dirname(os.path.dirname(urllib3.__file__)) in namespace["DIRECTORIES"]
