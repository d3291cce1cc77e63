"""One-shot requests of plugin files with the store in the Kubernetes API, for each way in which Python starts."""

import asyncio
import contextlib
import json
import ssl

import pytest
from cluster.etcd import make_certificates
from cluster.kubernetes.api_server import kubeconfig, yaml
from project.plugin_file import ADD, INTERPRETER, run, write_executable

from fastcni.launcher import interpreters, pack

CORE = interpreters.core_of(INTERPRETER)
STARTS = {"python_core": (), "interpreter": (), "zipapp": (INTERPRETER, "-I", "-S")}


@pytest.fixture(params=STARTS)
def plugin(request, tmp_path):
    """Return the command that starts the plugin `cluster`."""
    core = CORE if request.param == "python_core" else ""
    if request.param == "python_core" and not core:
        pytest.skip("python_core.elf is not there, or of another build")
    return *STARTS[request.param], write_executable(tmp_path / "cluster", pack.pack(INTERPRETER, core=core))


@pytest.fixture
def by_tls(mock, tmp_path):
    """Return the https URL of the API server, whose certificate authority is in ca.pem."""
    make_certificates(tmp_path)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server-key.pem")

    async def copy(reader, writer):
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def forward(reader, writer):
        behind = await asyncio.open_connection("127.0.0.1", int(mock.url.rpartition(":")[2]))
        await asyncio.gather(copy(reader, behind[1]), copy(behind[0], writer))

    server = mock._run(asyncio.start_server(forward, "127.0.0.1", 0, ssl=context))
    yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    mock.loop.call_soon_threadsafe(server.close)


@pytest.mark.parametrize("kind", ["json", "yaml"])
@pytest.mark.parametrize("scheme", ["http", "https"])
def test_a_pod_comes_and_goes(plugin, mock, tmp_path, request, scheme, kind):
    """Under python_core.elf each request failed: "module 'sys' has no attribute 'prefix'". The request imported the
    module site, which needs the main phase of Python's initialization."""
    url = request.getfixturevalue("by_tls") if scheme == "https" else mock.url
    text = kubeconfig(url, cluster={"certificate-authority": "ca.pem"} if scheme == "https" else {})
    path = tmp_path / "kubeconfig"
    path.write_text(text if kind == "json" else yaml.safe_dump(json.loads(text)))
    conf = {"cniVersion": "1.1.0", "name": "net", "type": "bridge", "ipam": {
        "type": "cluster", "range": "10.9.0.0/16", "dataDir": str(tmp_path / "data"), "node": "a",
        "store": {"type": "kubernetes", "kubeconfig": str(path)}}}

    def ask(command, **more):
        return run(*plugin, stdin=json.dumps(conf | more).encode(), env=ADD | {"CNI_COMMAND": command})

    status, result, stderr = ask("ADD")
    assert (status, stderr) == (0, ""), result
    assert result["ips"][0]["address"].startswith("10.9.")
    for command in ("CHECK", "STATUS", "DEL"):
        assert ask(command, prevResult=result) == (0, None, ""), command
    assert ask("GC", **{"cni.dev/valid-attachments": []}) == (0, None, "")
