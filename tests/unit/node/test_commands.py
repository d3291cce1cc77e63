
"""`fastcni list`, `inspect` and `adopt`: text of 80 columns, and JSON."""

import re

import namespace_files
import pytest
from rich.console import Console
from unit.node.conftest import LIST

from fastcni.cli.text.inventory import age, broken, put, put_row, short_ids, size
from fastcni.kit.ipam.store import Store
from fastcni.node.attachments.adopt import gc_command
from fastcni.node.attachments.attachment import Cached, Inventory, NodeAttachment
from fastcni.node.attachments.inventory import Places
from fastcni.testing.namespaces import run

LONG_ID = "8f" * 32


@pytest.fixture
def three(directories):
    """Write a cached result of a running pod, a cached result of a pod whose namespace no longer exists, and an address
    file."""
    directories.configure()
    directories.cached("web1", netns="/proc/self/ns/net", result={"cniVersion": "1.0.0", "ips": [
        {"address": "10.88.0.2/24"}, {"address": "fd00:88:1111:2222:3333:4444:5555:6666/64"}]})
    directories.data.mkdir()  # the directory must be older than the ADD, as a proof that the namespace no longer exists
    directories.cached(LONG_ID, netns=str(directories.data / "gone"), network="a-network-with-a-rather-long-name")
    namespace_files.end(directories.data / "gone")
    directories.hold("10.88.0.9", "lost\r\neth0")
    return directories


def test_list_fits_80_columns_and_counts(three, fastcni):
    answer = fastcni("list")
    # lists break no path, so lines with a path may be longer
    lines = [line for line in answer.out.splitlines() if "/pytest-" not in line]
    assert answer.status == 0 and max(map(len, lines)) <= 80
    rows = {line.split()[0]: line for line in answer.out.splitlines() if line.strip()}
    assert "running" in rows["web1"]
    assert "gone" in rows[LONG_ID[:12]]
    assert "lost" in rows
    assert answer.out.splitlines()[0].split() == ["CONTAINER", "IFNAME", "NETWORK", "STATE", "AGE"]
    assert answer.out.splitlines()[1] == "    ADDRESSES"
    assert "3 attachments: 1 running, 1 gone" in answer.out
    assert re.search(r"^    fd00:88:1111:2222:3333:[0-9a-f:/]+$", answer.out, re.MULTILINE), "an address is not broken"


KUBERNETES = [["IgnoreUnknown", "1"], ["K8S_POD_NAMESPACE", "shop"], ["K8S_POD_NAME", "web"]]


def test_pods_are_shown_and_found_by_the_names_of_kubernetes(three, fastcni):
    """Once, only `why` and `flows` knew these names."""
    three.cached("c0ffee", netns="/proc/self/ns/net", cniArgs=KUBERNETES, result={"cniVersion": "1.0.0", "ips": [
        {"address": "10.88.0.3/24"}]})
    rows = {line.split()[0]: line.split() for line in fastcni("list", "--network", "net1").out.splitlines() if line}
    assert rows["CONTAINER"][:3] == ["CONTAINER", "POD", "IFNAME"]
    assert rows["c0ffee"][:3] == ["c0ffee", "shop/web", "eth0"] and rows["web1"][:3] == ["web1", "-", "eth0"]
    inspected = fastcni("inspect", "shop/web")
    assert inspected.status == 0 and "pod         shop/web" in inspected.out.splitlines()
    assert fastcni("inspect", "shop/web", "--json").document["pod"] == "shop/web"
    assert "eth0 of pod shop/web (container c0ffee)" in fastcni("explain", "shop/web").out
    for command in ("inspect", "explain"):
        assert 'did you mean "shop/web"?' in fastcni(command, "shop/wbe").err


def test_the_long_name_of_a_pod_has_a_line_of_its_own(three, fastcni):
    name = f"kube-system/{'coredns-' * 5}5d78c9869d"
    three.cached("c0ffee", netns="/proc/self/ns/net", cniArgs=[["K8S_POD_NAMESPACE", "kube-system"], [
        "K8S_POD_NAME", name.partition("/")[2]]])
    lines = fastcni("list").out.splitlines()
    table = lines[:next(at for at, line in enumerate(lines) if "4 attachments: " in line)]
    assert "POD" not in table[0] and f"    {name}" in table and max(map(len, table)) <= 80


def test_list_is_filtered_and_is_json(three, fastcni):
    chosen = fastcni("list", "--network", "net1", "--state", "running", "--json").document["attachments"]
    assert [it["containerID"] for it in chosen] == ["web1"]
    assert chosen[0]["seen"][0]["kind"] == "cache" and chosen[0]["since"].endswith("Z")
    assert fastcni("list", "--state", "gone").out.count("1 attachment chosen: 1 gone") == 1


def test_list_of_an_empty_node(directories, fastcni):
    assert "no attachments" in fastcni("list").out


def test_inspect_shows_result_and_files(three, fastcni):
    answer = fastcni("inspect", "web")
    assert answer.status == 0
    for text in ("container   web1", "interface   eth0 in /proc/self/ns/net", "network     net1 (bridge, host-local",
                 "state       running", "address     10.88.0.2", str(three.cache / "results"), '"cniVersion"'):
        assert text in answer.out
    assert fastcni("inspect", "web1/eth0", "--json").document["result"]["ips"]


@pytest.mark.parametrize("name, text", [("nothing", "no attachment of a container that begins with nothing"),
                                        ("", "3 attachments match"), ("web1/eth9", "no attachment")])
def test_inspect_needs_one_attachment(three, fastcni, name, text):
    answer = fastcni("inspect", name)
    assert answer.status == 1 and text in answer.err and "without root" not in answer.err


def test_inspect_of_an_unknown_pod_says_what_could_not_be_seen(three, fastcni):
    answer = fastcni("inspect", "nothing")
    assert answer.status == 1 and "not seen: network namespaces: " in answer.err


def test_adopt_says_what_it_cannot_own(three, fastcni):
    three.configure({**LIST, "name": "leased", "plugins": [{"type": "macvlan", "ipam": {"type": "acme"}}]},
                    "2.conflist")
    three.cached("leaser", network="leased", netns="/proc/self/ns/net")
    answer = fastcni("adopt", "--dry-run")
    # lists break no command, so lines with a command may be longer
    short = [line for line in answer.out.splitlines() if "`" not in line]
    assert answer.status == 0 and max(map(len, short)) <= 80 + len(str(three.data))
    assert "3 of 4 attachments" in answer.out and "fastcni has no plugin acme" in " ".join(answer.out.split())
    assert not (three.data / "net1/.fastcni.index").exists()


def test_adopt_builds_indexes(three, fastcni):
    document = fastcni("adopt", "--json").document
    assert document["indexes"] == [
        {"folder": str(three.data / "net1"), "addresses": 1, "state": "built", "error": None}]
    assert (three.data / "net1/.fastcni.index").exists()
    with Store(str(three.data), "net1", print) as store:
        assert len(store.index) == 1


def test_adopt_names_a_directory_that_cannot_be_indexed(three, fastcni):
    (three.data / "net1/lock").mkdir()
    answer = fastcni("adopt", "--json")
    assert answer.status == 1 and answer.document["indexes"][0]["state"] == "failed"


def test_inspect_shows_the_host_link_and_its_counters(host, pod_netns, fastcni):
    pod = pod_netns()
    host.add("c1", pod, ports=[(8080, 80)])
    run("ping", "-c1", "-W2", "10.88.0.1", netns=pod)
    answer = fastcni("inspect", "c1")
    assert "port of br0" in answer.out and "host port   8080/tcp -> 10.88.0.2:80" in answer.out
    (link,) = fastcni("inspect", "c1", "--json").document["links"]
    assert link["up"]
    assert link["counters"]["rx_packets"] > 0
    assert link["master"] == "br0"
    host.delete("c1", pod)


def test_short_ids_stay_different():
    assert short_ids(["a" * 64, "b"]) == {"a" * 64: "a" * 12, "b": "b"}
    assert set(short_ids(["a" * 20 + "1", "a" * 20 + "2"]).values()) == {"a" * 20 + "1", "a" * 20 + "2"}


@pytest.mark.parametrize("seconds, text", [(0, "0s"), (59, "59s"), (61, "1m"), (7300, "2h"), (200000, "2d")])
def test_ages(seconds, text):
    assert age(1000, 1000 + seconds) == text and age(0, 5) == ""


def test_sizes():
    assert [size(count) for count in (999, 1500, 2_000_000, 3 * 10**12)] == ["999 B", "1.5 kB", "2.0 MB", "3.0 TB"]


def test_the_command_of_gc_keeps_pods_that_gc_would_not_know():
    def pod(name, state, cache="", ifname="eth0"):
        return NodeAttachment("net1", name, ifname, state, "", cached=Cached(f"{cache}/results/x") if cache else None)

    places = Places(cache_dirs=("/elsewhere", "/other"))
    gone, there = pod("c1", "gone", "/var/lib/cni"), pod("c2", "running", "/var/lib/cni")
    other, old = pod("c3", "running", "/other"), pod("c4", "unknown", ifname="")
    assert gc_command(Inventory((gone, there)), "net1") == "fastcni gc net1"
    assert gc_command(Inventory((gone, other, old)), "net1", places) == (
        "fastcni gc --valid c3/eth0 --valid c4/IFNAME --cache-dir /elsewhere net1")
    assert gc_command(Inventory((gone, there, other)), "net1", Places(cache_dirs=("/var/lib/cni", "/other"))) == (
        "fastcni gc --valid c3/eth0 net1")
    assert gc_command(Inventory((pod("c5", "orphaned"),)), "net1") == "fastcni gc --all net1"


def test_a_long_value_goes_on_behind_its_title(capsys):
    """Once, rows of doctor and inspect were longer than the terminal, which broke the rows within words."""
    put_row(Console(width=40), "server", "/run/fastcni/fastcni.sock: 0.1.0, pid 4711, 0 running, 0 of 1024 waiting")
    put(Console(width=40), "pods with IPv4 reach nothing outside of this node", title="  why: ")
    assert capsys.readouterr().out.splitlines() == [
        "server      /run/fastcni/fastcni.sock:", "            0.1.0, pid 4711, 0 running,",
        "            0 of 1024 waiting", "  why: pods with IPv4 reach nothing", "       outside of this node"]


def test_commands_and_paths_are_not_broken():
    """Once, Rich broke a path that is longer than a line, and a command at its spaces."""
    path, command = "/var/lib/" + "x" * 90, "`fastcni ipam forget-node node-with-a-long-name --yes`"
    lines = broken(f"some words before {path}: some words before the command {command}; then more words", 80)
    assert lines == ["some words before", f"{path}:", "some words before the command", f"{command}; then more words"]
    assert broken("  a\nb `", 80) == ["  a", "b `"]
