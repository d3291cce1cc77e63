"""host-local: which addresses ADD gives and DEL releases, their order, files, a full range, and a directory shared with
the reference plugin."""

import json
import os
import posix
import random
import subprocess

import pytest
from unit.kit.ipam.node import SMALL, Node

from fastcni import _ipam_bitmap
from fastcni.spec.errors import CniError

GO_PLUGIN = "/usr/lib/cni/host-local"


@pytest.fixture
def node(tmp_path):
    return Node(tmp_path)


# -- ADD and DEL ------------------------------------------------------------------------------------------

def test_add_allocates_the_first_address_after_the_gateway_and_del_releases_it(node):
    numbers = {"mtu": 1400, "priority": 0, "table": 0}
    result = node.call("ADD", SMALL | {"routes": [{"dst": "0.0.0.0/0"},
                                                  {"dst": "10.9.0.0/16", "gw": "10.1.0.5"} | numbers]})
    assert result == {"ips": [{"address": "10.1.0.2/29", "gateway": "10.1.0.1"}],
                      "routes": [{"dst": "0.0.0.0/0"},
                                 {"dst": "10.9.0.0/16", "gw": "10.1.0.5", "mtu": 1400, "table": 0}]}
    assert node.files() == {"10.1.0.2": b"pod\r\neth0"}
    assert (node.path / "last_reserved_ip.0").read_bytes() == b"10.1.0.2"
    node.call("CHECK", SMALL)
    node.call("DEL", SMALL)
    assert node.files() == {}
    node.call("DEL", SMALL)
    assert node.refused("CHECK", SMALL).msg == "host-local: Failed to find address added by container pod"


def test_del_and_check_of_a_network_that_never_was_create_nothing(node):
    node.call("DEL", SMALL)
    node.call("STATUS", SMALL)
    assert "Failed to find address" in node.refused("CHECK", SMALL).msg
    assert list(node.root.iterdir()) == []


def test_del_releases_only_the_interface_it_names(node):
    node.add(SMALL)
    node.add(SMALL, ifname="eth1")
    node.add(SMALL, "pod2")
    node.call("DEL", SMALL)
    assert node.files() == {"10.1.0.3": b"pod\r\neth1", "10.1.0.4": b"pod2\r\neth0"}


def test_del_releases_addresses_of_ranges_that_are_configured_no_more(node):
    node.add({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]})
    node.call("DEL", {"subnet": "10.7.0.0/24"})
    assert node.files() == {}


def test_files_of_old_plugins_with_the_id_alone_are_checked_and_deleted(node):
    node.path.mkdir()
    (node.path / "10.1.0.4").write_bytes(b"pod")
    (node.path / "10.1.0.5").write_bytes(b"pod2")
    node.call("CHECK", SMALL)
    node.call("DEL", SMALL)
    assert node.files() == {"10.1.0.5": b"pod2"}


def test_a_flipped_byte_in_the_index_changes_no_answer(node):
    """Once, host-local used a damaged index. DEL succeeded without removing the pod's file."""
    node.add(SMALL, "other")
    node.add(SMALL)
    for at in range(0, (node.path / ".fastcni.index").stat().st_size, 31):
        for command, held in (("CHECK", 2), ("DEL", 1), ("ADD", 2)):
            _ipam_bitmap.forget()
            index = bytearray((node.path / ".fastcni.index").read_bytes())
            index[at] ^= 0x10
            (node.path / ".fastcni.index").write_bytes(index)
            node.call(command, SMALL)
            assert len(node.files()) == held, (at, command)
    assert sorted(node.files().values()) == [b"other\r\neth0", b"pod\r\neth0"]


def test_a_container_gets_no_second_address_of_a_set(node):
    node.add(SMALL)
    assert node.refused("ADD", SMALL).msg == ("failed to allocate for range 0: 10.1.0.2 has been allocated to "
                                              "pod, duplicate allocation is not allowed")
    asked = node.refused("ADD", SMALL, runtimeConfig={"ips": ["10.1.0.6"]})
    assert "duplicate allocation is not allowed" in asked.msg
    assert list(node.files()) == ["10.1.0.2"]


def test_a_failed_add_releases_only_what_it_took(node):
    """The reference plugin releases all addresses of the owner, also those of an earlier ADD."""
    node.add({"subnet": "10.5.0.0/24"})
    node.add({"subnet": "fd00::/126", "rangeEnd": "fd00::2"}, "other")
    e = node.refused("ADD", {"ranges": [[{"subnet": "10.1.0.0/24"}],
                                        [{"subnet": "fd00::/126", "rangeEnd": "fd00::2"}]]})
    assert e.msg == "failed to allocate for range 1: no IP addresses available in range set: fd00::1-fd00::2"
    assert sorted(node.files()) == ["10.5.0.2", "fd00::2"]


# -- order ------------------------------------------------------------------------------------------------

def test_addresses_are_given_in_turn_and_wrap(node):
    assert [node.add(SMALL, f"p{n}")[0] for n in range(4)] == [f"10.1.0.{n}" for n in range(2, 6)]
    node.call("DEL", SMALL, "p0")
    assert node.add(SMALL, "p4") == ["10.1.0.6"]            # the address that p0 released comes last
    assert node.add(SMALL, "p5") == ["10.1.0.2"]
    node.call("DEL", SMALL, "p5")
    assert node.add(SMALL, "p6") == ["10.1.0.2"]            # the address at the cursor is the last choice


def test_a_cursor_outside_of_the_set_or_torn_starts_at_the_front(node):
    for cursor in (b"192.168.0.1", b"", b"10.1.0", b"fd00::1", b"10.1.0.1\0"):
        node.add(SMALL)
        (node.path / "last_reserved_ip.0").write_bytes(cursor)
        node.call("DEL", SMALL)
        assert node.add(SMALL) == ["10.1.0.2"]
        node.call("DEL", SMALL)


def test_ranges_of_a_set_are_used_one_after_another(node):
    ipam = {"ranges": [[{"subnet": "10.1.0.0/24", "rangeStart": "10.1.0.10", "rangeEnd": "10.1.0.11"},
                        {"subnet": "10.2.0.0/24", "rangeStart": "10.2.0.1", "rangeEnd": "10.2.0.3"}]]}
    given = [node.add(ipam, f"p{n}")[0] for n in range(4)]
    assert given == ["10.1.0.10", "10.1.0.11", "10.2.0.2", "10.2.0.3"]
    node.call("DEL", ipam, "p2")
    result = node.call("ADD", ipam, "p4")
    assert result["ips"] == [{"address": "10.2.0.2/24", "gateway": "10.2.0.1"}]
    e = node.refused("ADD", ipam, "p5")
    assert e.code == 11
    assert e.msg == ("failed to allocate for range 0: no IP addresses available in range set: "
                     "10.1.0.10-10.1.0.11,10.2.0.1-10.2.0.3")
    assert e.details == '10.1.0.0/24,10.2.0.0/24 of network "net", 4 of 4 addresses in use'


def test_the_order_of_the_sets_is_capability_single_list(node):
    ipam = {"subnet": "10.2.0.0/24", "ranges": [[{"subnet": "10.3.0.0/24"}], [{"subnet": "fd00::/64"}]]}
    capitalised = {"Subnet": "10.1.0.0/24", "RangeStart": "", "Gateway": ""}        # containerd capitalises the keys
    given = node.add(ipam, runtimeConfig={"ipRanges": [[capitalised]]})
    assert given == ["10.1.0.2", "10.2.0.2", "10.3.0.2", "fd00::2"]
    cursors = {path.name: path.read_bytes() for path in node.path.glob("last*")}
    assert cursors == {"last_reserved_ip.0": b"10.1.0.2", "last_reserved_ip.1": b"10.2.0.2",
                       "last_reserved_ip.2": b"10.3.0.2", "last_reserved_ip.3": b"fd00::2"}


def test_the_gateway_may_be_anywhere_and_is_never_given(node):
    assert node.add({"subnet": "10.1.0.0/29", "gateway": "10.1.0.2"}, "p0") == ["10.1.0.1"]
    assert node.add({"subnet": "10.1.0.0/29", "gateway": "10.1.0.2"}, "p1") == ["10.1.0.3"]
    result = node.call("ADD", {"subnet": "10.2.0.0/29", "gateway": "192.0.2.1"}, "p2")
    assert result["ips"] == [{"address": "10.2.0.1/29", "gateway": "192.0.2.1"}]


def test_an_ipv6_range_ends_with_its_last_address_an_ipv4_range_before_the_broadcast(node):
    for n, ipam in enumerate(({"subnet": "fd00::/126"}, {"subnet": "10.1.0.0/30"})):
        with pytest.raises(CniError):
            for i in range(10):
                node.add(ipam, f"p{n}{i}")
    assert sorted(node.files()) == ["10.1.0.2", "fd00::2", "fd00::3"]


def test_an_ipv6_64_works_from_end_to_end(node):
    ipam = {"subnet": "fd00:9::/64", "rangeStart": "fd00:9::ffff:ffff:ffff:fffe"}
    assert node.add(ipam, "a") == ["fd00:9::ffff:ffff:ffff:fffe"]
    assert node.add(ipam, "b") == ["fd00:9::ffff:ffff:ffff:ffff"]
    assert node.refused("ADD", ipam, "c").details == 'fd00:9::/64 of network "net", 2 of 2 addresses in use'
    assert node.add({"subnet": "fd00:9::/64"}, "c") == ["fd00:9::2"]


# -- full, STATUS, GC -------------------------------------------------------------------------------------

def test_full_range_names_the_network_and_status_warns_of_it(node):
    """Once, STATUS failed. The runtime marked the node not ready, and Kubernetes evicted its pods."""
    for n in range(5):
        node.call("STATUS", SMALL)
        node.add(SMALL, f"p{n}")
    e = node.refused("ADD", SMALL, "more")
    assert (e.code, e.msg) == (11, "failed to allocate for range 0: "
                                   "no IP addresses available in range set: 10.1.0.1-10.1.0.6")
    assert e.details == '10.1.0.0/29 of network "net", 5 of 5 addresses in use'
    assert node.warnings == []
    node.call("STATUS", SMALL)
    assert node.warnings == ['host-local: range set 0 is full: 10.1.0.0/29 of network "net", 5 of 5 addresses in use']
    node.call("DEL", SMALL, "p3")
    node.call("STATUS", SMALL)
    assert len(node.warnings) == 1
    assert node.add(SMALL, "more") == ["10.1.0.5"]


def test_status_does_not_ask_for_ranges_that_come_with_add(node):
    node.call("STATUS", {})
    node.call("GC", {}, **{"cni.dev/valid-attachments": []})
    assert node.refused("STATUS", {"subnet": "10.1.0.0/31"}).code == 7
    (node.root / "net").touch()
    assert node.refused("STATUS", SMALL).code == 50


def test_gc_keeps_valid_attachments_and_releases_the_rest(node):
    ipam = {"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]}
    for n in range(4):
        node.add(ipam, f"p{n}")
    node.add(ipam, "p0", ifname="eth1")
    for last, content in ((50, b"p1"), (51, b"gone"), (52, b""), (53, b"\0\0"), (54, b"keep for the printer")):
        (node.path / f"10.1.0.{last}").write_bytes(content)
    node.call("GC", ipam, **{"cni.dev/valid-attachments": [{"containerID": "p0", "ifname": "eth0"},
                                                           {"containerID": "p1", "ifname": "eth0"}]})
    assert sorted(node.files()) == ["10.1.0.2", "10.1.0.3", "10.1.0.50", "10.1.0.54", "fd00::2", "fd00::3"]
    node.call("GC", ipam, **{"cni.dev/valid-attachments": []})
    assert sorted(node.files()) == ["10.1.0.54"]


def test_del_goes_on_after_an_address_that_cannot_be_released(node, monkeypatch):
    node.add({"ranges": [[{"subnet": "10.1.0.0/24"}], [{"subnet": "fd00::/64"}]]})
    unlink = os.unlink

    def refuse(name, **more):
        if name == "10.1.0.2":
            raise OSError(5, os.strerror(5))
        unlink(name, **more)

    monkeypatch.setattr(posix, "unlink", refuse)
    e = node.refused("DEL", SMALL)
    assert e.msg == f"remove {node.path}/10.1.0.2: Input/output error (errno 5)"
    assert list(node.files()) == ["10.1.0.2"]
    monkeypatch.undo()
    node.call("DEL", SMALL)
    assert node.files() == {}


def test_torn_files_are_given_out_again_with_a_warning(node):
    node.path.mkdir()
    for n in range(2, 7):
        (node.path / f"10.1.0.{n}").touch()
    assert [node.add(SMALL, f"p{n}")[0] for n in range(5)] == [f"10.1.0.{n}" for n in range(2, 7)]
    assert sum("reclaimed" in text for text in node.warnings) == 5
    assert node.refused("ADD", SMALL, "more").code == 11


# -- together with the Go plugin --------------------------------------------------------------------------------------

def go(node, command, ipam, cid, ifname="eth0"):
    """Run the reference plugin. Return its result or its error document."""
    env = {"CNI_COMMAND": command, "CNI_CONTAINERID": cid, "CNI_IFNAME": ifname, "CNI_NETNS": "/nowhere",
           "CNI_PATH": "/usr/lib/cni", "PATH": "/usr/bin:/bin"}
    done = subprocess.run([GO_PLUGIN], input=json.dumps(node.conf(ipam)), env=env,
                          check=False, capture_output=True, text=True)
    return json.loads(done.stdout) if done.stdout else {}


@pytest.fixture
def shared(node):
    if not os.access(GO_PLUGIN, os.X_OK):
        pytest.skip(f"no Go plugin to share with at {GO_PLUGIN}")
    return node


def test_both_work_in_turn_on_one_directory(shared):
    """fastcni and the reference plugin each continue after the other's last address, and each deletes the other's
    addresses."""
    ipam = {"ranges": [[{"subnet": "10.1.0.0/28"}], [{"subnet": "fd00::/124"}]]}
    rng, held = random.Random(1), {}
    for n in range(60):
        by_fastcni, cid = rng.random() < 0.5, f"pod{n}"
        if held and (rng.random() < 0.4 or len(held) > 10):
            cid = rng.choice(sorted(held))
            assert not (shared.call("DEL", ipam, cid) if by_fastcni else go(shared, "DEL", ipam, cid))
            del held[cid]
        else:
            given = shared.add(ipam, cid) if by_fastcni else [ip["address"].split("/")[0]
                                                        for ip in go(shared, "ADD", ipam, cid)["ips"]]
            assert not set(given) & {a for both in held.values() for a in both}
            held[cid] = given
        assert sorted(shared.files()) == sorted(a for both in held.values() for a in both)
        for cid in held:
            shared.call("CHECK", ipam, cid)
    assert not [text for text in shared.warnings if "torn" in text]


def test_both_allocate_the_same_addresses_for_the_same_calls(shared, tmp_path_factory):
    ipam = {"ranges": [[{"subnet": "10.1.0.0/29", "gateway": "10.1.0.4"},
                        {"subnet": "10.2.0.0/29", "rangeStart": "10.2.0.3"}], [{"subnet": "fd00::/125"}]]}
    of_go = Node(tmp_path_factory.mktemp("go"))
    rng, held = random.Random(2), []
    for n in range(80):
        if held and (rng.random() < 0.45 or len(held) == 6):
            cid = held.pop(rng.randrange(len(held)))
            shared.call("DEL", ipam, cid)
            go(of_go, "DEL", ipam, cid)
        else:
            held.append(f"p{n}")
            mine = shared.call("ADD", ipam, f"p{n}")
            other = go(of_go, "ADD", ipam, f"p{n}")
            assert mine["ips"] == [{k: v for k, v in ip.items() if k != "interface"} for ip in other["ips"]]
        assert shared.files() == of_go.files()


def test_both_at_once_from_many_processes_give_no_address_twice(shared):
    ipam = {"subnet": "10.1.0.0/24"}
    children = []
    for worker in range(4):
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                for n in range(15):
                    cid = f"w{worker}-{n}"
                    if worker % 2:
                        assert "ips" in go(shared, "ADD", ipam, cid)
                    else:
                        shared.add(ipam, cid)
                    if n % 3 == 0:
                        shared.call("DEL", ipam, cid) if worker < 2 else go(shared, "DEL", ipam, cid)
                status = 0
            finally:
                os._exit(status)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0] * 4
    owners = list(shared.files().values())
    assert len(owners) == len(set(owners)) == 4 * 10
