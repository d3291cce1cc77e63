"""Address files of pods from before a reboot. The first request of the new boot releases these files and no others."""

import json
import os
import time
from types import SimpleNamespace

import pytest

from fastcni import _ipam_bitmap
from fastcni.kit.ipam import before_reboot
from fastcni.kit.ipam import store as store_module
from fastcni.kit.ipam.address_files import owner_of
from fastcni.kit.ipam.store import Store
from fastcni.server import reboot
from fastcni.server.reboot import release_addresses
from fastcni.spec import address
from fastcni.spec.errors import CniError

OLD, OLD2, NEW = owner_of("old", "eth0"), owner_of("old2", "eth0"), owner_of("new", "eth0")
FIRST, SECOND, THIRD = (address.read_ip(f"10.1.0.{i}") for i in (2, 3, 4))


class Node:
    """A data directory, used in one boot at a time."""

    def __init__(self, root, patch):
        self.root, self.path, self.warnings, self.patch = root, root / "net", [], patch
        self.results = root / "results"
        self.results.mkdir()
        patch.setattr(before_reboot, "RESULTS", str(self.results))
        self.boot(1)

    def boot(self, number, began_ns=0):
        """Change to another boot. began_ns: when this boot began; by default now."""
        began_ns = began_ns or time.time_ns() + 1
        self.patch.setattr(store_module, "known_boot_id", f"{number:036}".encode())
        self.patch.setattr(before_reboot, "boot_began_ns", lambda: began_ns)
        _ipam_bitmap.forget()
        self.warnings.clear()

    def reboot(self):
        time.sleep(0.01)            # so that the kernel's clock for files advances
        self.boot(2)

    def open(self, **more):
        return Store(str(self.root), "net", self.warnings.append, create=True, **more)

    def add(self, **pods):
        with self.open() as store:
            for name, owner in pods.items():
                assert store.take(address.read_ip(f"10.1.0.{name[1:]}"), owner)

    def held(self):
        return {name for name in os.listdir(self.path) if name.startswith("10.")}

    def put_result(self, document, name="net-old-eth0"):
        (self.results / name).write_text(document if isinstance(document, str) else json.dumps(document))


@pytest.fixture
def node(tmp_path, monkeypatch):
    made = Node(tmp_path, monkeypatch)
    made.add(_2=OLD, _3=OLD2)
    return made


def test_first_store_after_a_reboot_releases_what_the_former_boot_held(node):
    node.reboot()
    with node.open() as store:
        assert sorted(store.released) == [(FIRST, OLD), (SECOND, OLD2)]
        assert len(store.index) == 0
        assert store.take(FIRST, NEW)
    assert node.held() == {"10.1.0.2"}
    assert node.warnings == [f"{node.path}: released addresses of pods from before the reboot: 10.1.0.2 10.1.0.3"]


def test_next_store_of_the_same_boot_releases_nothing(node):
    node.reboot()
    node.add(_4=NEW)
    with node.open() as store:
        assert (store.released, store.addresses_of(NEW)) == ([], [THIRD])


def test_container_that_is_started_again_gets_its_address_again(node):
    """Once, the container's file of the previous boot made the ADD a duplicate."""
    node.reboot()
    node.add(_2=OLD)
    assert node.held() == {"10.1.0.2"}


def test_without_a_reboot_nothing_is_released(node):
    node.boot(1)
    with node.open() as store:
        assert (store.released, len(store.index)) == ([], 2)


def test_file_that_go_adds_in_the_new_boot_stays(node):
    node.reboot()
    (node.path / "10.1.0.9").write_bytes(b"go\r\neth0")
    with node.open() as store:
        assert len(store.released) == 2
    assert node.held() == {"10.1.0.9"}


def test_address_that_go_gives_again_in_the_new_boot_stays(node):
    """The reference plugins deleted and added the same container. The index has the same owner for the address."""
    node.reboot()
    (node.path / "10.1.0.2").unlink()
    (node.path / "10.1.0.2").write_bytes(OLD)
    with node.open() as store:
        assert store.released == [(SECOND, OLD2)]
    assert node.held() == {"10.1.0.2"}


def test_file_that_go_added_after_the_last_index_stays_for_gc(node):
    (node.path / "10.1.0.9").write_bytes(b"go\r\neth0")
    node.reboot()
    with node.open() as store:
        assert len(store.released) == 2
    assert node.held() == {"10.1.0.9"}


@pytest.mark.parametrize("content", [b"old", b"reserved for the printer", b"router"])
def test_note_and_file_of_an_old_version_stay(node, content):
    (node.path / "10.1.0.9").write_bytes(content)
    with node.open() as store:
        store.read_all()
    node.reboot()
    node.add()
    assert node.held() == {"10.1.0.9"}


def test_index_of_another_machine_that_runs_releases_nothing(node):
    """This machine's boot began before the last change of the index, so both machines ran at the same time."""
    node.boot(2, began_ns=time.time_ns() - 60 * 10**9)
    node.add()
    assert node.held() == {"10.1.0.2", "10.1.0.3"}


def test_copied_directory_releases_nothing(node):
    os.rename(node.path, node.root / "before")
    node.path.mkdir()
    for name in os.listdir(node.root / "before"):
        os.link(node.root / "before" / name, node.path / name)
    node.reboot()
    node.add()
    assert node.held() == {"10.1.0.2", "10.1.0.3"}


def test_damaged_index_releases_nothing(node):
    path = node.path / ".fastcni.index"
    data = bytearray(path.read_bytes())
    data[300] ^= 1
    path.write_bytes(data)
    node.reboot()
    with node.open() as store:
        assert (store.released, len(store.index)) == ([], 2)
    assert node.held() == {"10.1.0.2", "10.1.0.3"}


@pytest.mark.parametrize("document", ['{"netns": "/proc/self/ns/net"}', "no JSON", "{}", "[]",
                                      '{"result": {"interfaces": [{"name": "h"}, {"sandbox": "/proc/self/ns/net"}]}}'])
def test_attachment_that_may_exist_keeps_its_address(node, document):
    node.put_result(document)
    node.reboot()
    node.add()
    assert node.held() == {"10.1.0.2"}


@pytest.mark.parametrize("document", ['{"netns": "/run/netns/gone"}',
                                      '{"result": {"interfaces": [{"sandbox": "/run/netns/gone"}]}}'])
def test_result_whose_namespace_is_gone_keeps_nothing(node, document):
    node.put_result(document)
    node.reboot()
    node.add()
    assert node.held() == set()


def test_request_that_must_change_nothing_leaves_them_to_the_next(node):
    """For example, the requests CHECK and STATUS must change nothing."""
    node.reboot()
    with node.open(release_former=False) as store:
        assert (store.released, len(store.index)) == ([], 2)
    assert node.held() == {"10.1.0.2", "10.1.0.3"}
    node.add()
    assert node.held() == set()


def test_killed_release_continues_with_the_next_request(node, monkeypatch):
    node.reboot()
    with monkeypatch.context() as patch:
        patch.setattr(Store, "release", lambda *_: exec("raise KeyboardInterrupt"))
        with pytest.raises(KeyboardInterrupt):
            node.add()
    node.add()
    assert node.held() == set()


def test_address_that_cannot_be_released_is_a_warning(node, monkeypatch):
    node.reboot()

    def refuse(self, name):
        raise self.error("remove", name, OSError(5, "Input/output error"))

    with monkeypatch.context() as patch:
        patch.setattr("fastcni.kit.ipam.address_files.AddressFiles.remove", refuse)
        node.add(_4=NEW)
    assert node.held() == {"10.1.0.2", "10.1.0.3", "10.1.0.4"}
    assert any("Input/output error" in text for text in node.warnings)


def test_server_releases_at_its_start(node):
    node.reboot()
    lines = []
    log = SimpleNamespace(info=lambda event, **fields: lines.append((event, fields)), debug=lambda *_, **__: None)
    release_addresses(log, str(node.root))
    assert node.held() == set()
    assert lines == [("addresses_released", {"network": "net", "number": 2, "addresses": "10.1.0.2, 10.1.0.3",
                                             "owners": "old eth0, old2 eth0"})]
    release_addresses(log, str(node.root / "missing"))


def test_a_network_that_cannot_be_read_keeps_no_other_from_its_release(node, monkeypatch):
    def refuse(data_dir, network, *_):
        if network == "bad":
            raise CniError(11, "lock bad: in use")
        return Store(data_dir, network, *_)

    (node.root / "bad").mkdir()
    (node.root / "bad" / ".fastcni.index").touch()
    node.reboot()
    lines = []
    log = SimpleNamespace(info=lambda event, **fields: lines.append((event, fields["network"])),
                          warning=lambda event, **fields: lines.append((event, fields)), debug=lambda *_, **__: None)
    monkeypatch.setattr(reboot, "Store", refuse)
    release_addresses(log, str(node.root))
    assert lines == [("addresses_unread", {"network": "bad", "error": "lock bad: in use"}),
                     ("addresses_released", "net")]
    lines.clear()
    release_addresses(log, str(node.root))
    assert [event for event, _ in lines] == ["addresses_unread"]
