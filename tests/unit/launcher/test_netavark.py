"""netavark's plugin protocol in the launcher. Arguments become CNI variables, and errors have netavark's form."""

import json

import pytest
from unit.launcher.stub_server import INSTEAD_OF_PYTHON, PATH, reply, run, serving, write_executable

from fastcni.launcher import pack

UNREAD, ANSWER, QUICK = 1.0, 2.0, 2.0           # seconds
COMMANDS = {"setup": "ADD", "teardown": "DEL", "create": "CREATE", "info": "VERSION"}


@pytest.fixture(scope="module")
def driver(directory):
    """Return an installed file "mydriver". podman takes a driver's name from the file's name, which need not be
    fastcni."""
    own = directory / "netavark"
    own.mkdir(exist_ok=True)            # pytest-xdist may run this fixture twice in one process
    script = write_executable(own / "python", INSTEAD_OF_PYTHON.encode())
    return write_executable(own / "mydriver", pack.pack(str(script), (UNREAD, ANSWER, QUICK)))


def environment(server="", **more):
    return {"PATH": PATH, "FASTCNI_SOCKET": getattr(server, "path", server), **more}


@pytest.mark.parametrize("word", COMMANDS)
def test_the_request_is_one_of_cni_whatever_variables_podman_has(driver, directory, word):
    odd = {"CNI_COMMAND": "CHECK", "CNI_NETNS": "/odd", "CNI_ARGS": "odd", "CNI_IFNAME": "odd", "TRACEPARENT": "00-1"}
    path = () if word in ("create", "info") else ("/nowhere/netns",)
    with serving(directory, reply(0, b"warm")) as server:
        assert run(driver, word, *path, env=environment(server, **odd), stdin=b'{"a":1}') == (0, b"warm", b"")
    (request,) = server.requests
    assert request.strings == ["netavark", f"CNI_COMMAND={COMMANDS[word]}", f"CNI_NETNS={''.join(path)}",
                               "TRACEPARENT=00-1"]
    assert request.stdin == (b"" if word == "info" else b'{"a":1}')


def test_without_a_server_python_gets_the_request(driver):
    status, stdout, _ = run(driver, "setup", "/nowhere", env=environment(CNI_COMMAND="DEL"), stdin=b"{}")
    assert status == 3 and stdout.startswith(b"one-shot netavark, ADD, ") and stdout.endswith(b" stdin:\n{}")


def test_a_lost_setup_is_repeated_because_netavark_calls_no_teardown(driver, directory):
    with serving(directory, lambda conn, _: conn.close()) as server:
        status, stdout, _ = run(driver, "setup", "/nowhere", env=environment(server))
    assert (status, stdout.split(b",")[0]) == (3, b"one-shot netavark")


def test_a_late_setup_is_not_repeated_because_the_server_may_still_work_on_it(driver, directory):
    with serving(directory, lambda conn, _: conn.recv(1)) as server:
        status, stdout, _ = run(driver, "setup", "/nowhere", env=environment(server))
    document = json.loads(stdout)
    assert status == 1 and set(document) == {"error"}
    assert document["error"].startswith("the fastcni server has not answered this ADD in time; ")


def test_another_first_argument_changes_nothing(driver, directory):
    with serving(directory, reply(0, b"warm")) as server:
        env = environment(server, CNI_COMMAND="DEL")
        assert run(driver, "setups", env=env) == run(driver, "set", "up", env=env) == (0, b"warm", b"")
    assert [request.strings for request in server.requests] == [["mydriver", "CNI_COMMAND=DEL"]] * 2


def test_a_missing_python_is_an_error_in_netavarks_form(driver, directory):
    gone = write_executable(directory / "gone", pack.pack(str(directory / "no-python"), (UNREAD, ANSWER, QUICK)))
    status, stdout, _ = run(gone, "teardown", "/nowhere", env=environment())
    assert status == 1 and "no-python: No such file or directory (errno 2); " in json.loads(stdout)["error"]
    status, stdout, _ = run(gone, "setup", "/" * 5000, env=environment())
    assert status == 1 and "path of the network namespace is too long" in json.loads(stdout)["error"]
