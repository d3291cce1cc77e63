"""fastcni reads legacy iptables tables from the kernel. The result equals the output of iptables-legacy-save."""

import shutil

import pytest
from lab.node import run

from fastcni.kernel import xtables
from fastcni.kit.call.mode import Mode
from fastcni.kit.call.request import Request
from fastcni.kit.firewall import iptables
from fastcni.kit.firewall.forward import iptables_chain
from fastcni.kit.firewall.iptables import program_of_kind

pytestmark = pytest.mark.skipif(not shutil.which("iptables-legacy-restore"), reason="needs iptables-legacy")
FAMILIES = pytest.mark.parametrize("length, address", [(4, "10.22.0.5"), (16, "fd00:22::5")])
RULES = """*filter
:INPUT ACCEPT
:FORWARD DROP
:OUTPUT ACCEPT
:CNI -
:CNI-FORWARD -
:CNI-ADMIN -
-A INPUT -j CNI-ADMIN
-A FORWARD -m comment --comment "see CNI-ADMIN" -j CNI-FORWARD
-A FORWARD -g CNI
-A CNI-FORWARD -s {0} -p tcp -m tcp --dport 80 -j DROP
-A CNI-FORWARD ! -d {0} -j RETURN
-A CNI-FORWARD -j LOG
COMMIT
"""


@pytest.fixture(autouse=True)
def namespace(host_netns):
    """Run each test in a new network namespace, which has its own tables."""


@FAMILIES
def test_chains_jumps_policies_and_addresses_are_read(length, address):
    run(f"{iptables.PROGRAMS[length]}-legacy-restore", stdin=RULES.format(address))
    table = xtables.read_table(length, "filter")
    assert [table.has_chain(chain) for chain in ("FORWARD", "CNI", "CNI-FORWARD", "CNI-FOR", "FORWARD80", "LOG")] == [
        True, True, True, False, False, False]
    assert [table.drops(chain) for chain in ("INPUT", "FORWARD", "OUTPUT")] == [False, True, False]
    assert [(chain, target) for chain in ("INPUT", "FORWARD", "CNI", "CNI-FORWARD", "CNI-ADMIN", "none")
            for target in ("CNI", "CNI-FORWARD", "CNI-ADMIN", "none") if table.leads(chain, target)] == [
        ("INPUT", "CNI-ADMIN"), ("FORWARD", "CNI"), ("FORWARD", "CNI-FORWARD")]
    assert [[*table.targets(chain)] for chain in ("INPUT", "FORWARD", "OUTPUT", "CNI-FORWARD", "none")] == [
        ["CNI-ADMIN"], ["CNI-FORWARD", "CNI"], [], [], []]
    packed = bytes((10, 22, 0, 5)) if length == 4 else bytes.fromhex("fd000022" + "0" * 23 + "5")
    rules = [*table.rules("CNI-FORWARD")]
    # the target of the last rule is RETURN
    assert [table.mentions(rule, packed) for rule in rules] == [True, True, False, False]
    assert [table.mentions(rule, bytes(length)) for rule in rules] == [False] * 4
    assert [len([*table.rules(chain)]) for chain in ("INPUT", "FORWARD", "OUTPUT", "none")] == [1, 2, 0, 0]


@FAMILIES
def test_a_table_that_does_not_exist_is_none_and_is_not_made(length, address):
    req = Request(Mode(), env={})
    assert iptables.read_legacy(req, length, "filter", shared=True) is None
    assert not iptables.legacy(req, "filter", length)
    run(f"{iptables.PROGRAMS[length]}-legacy", "-P", "FORWARD", "DROP")
    assert iptables.read_legacy(req, length, "filter", shared=True).drops("FORWARD")


def test_the_program_of_a_kind_is_the_plain_one_unless_that_is_of_the_other_kind(tmp_path):
    """In Debian, iptables is a symbolic link to another symbolic link. A wrapper script may run nft or legacy."""
    directory = tmp_path / "bin"
    directory.mkdir()
    req = Request(Mode(), env={"PATH": str(directory)})

    def program(name, to=None):
        path = directory / name
        path.unlink(missing_ok=True)
        if to:
            path.symlink_to(to)
        else:
            path.write_text("#!/bin/sh\n")
            path.chmod(0o755)

    def kinds():
        return [program_of_kind(req, 4, kind) for kind in ("nft", "legacy")]

    assert kinds() == ["iptables", "iptables"]                  # no iptables program is installed
    for name in ("xtables-nft-multi", "xtables-legacy-multi"):
        program(name)
    program("iptables-nft-restore", "xtables-nft-multi")
    program("iptables-restore", tmp_path / "alternative")
    (tmp_path / "alternative").symlink_to(directory / "iptables-nft-restore")
    assert kinds() == ["iptables", ""]
    program("iptables-legacy-restore", "xtables-legacy-multi")
    assert kinds() == ["iptables", "iptables-legacy"]
    program("iptables-restore", "iptables-legacy-restore")
    assert kinds() == ["iptables-nft", "iptables"]
    program("iptables-restore")
    assert kinds() == ["iptables", "iptables"]


def test_a_server_reads_a_table_once_a_second_at_most_if_recent_is_enough(warm, monkeypatch):
    """kube-proxy changes its rules often. Once, each DEL waited until the server had copied the table again."""
    def has(chain):
        return iptables.has_chain(Request(warm, env={}), chain, shared=True, recent=True)

    run("iptables-legacy", "-t", "nat", "-N", "CNI-a")
    assert has("CNI-a")
    run("iptables-legacy", "-t", "nat", "-N", "CNI-b")
    monkeypatch.setattr(iptables, "RECENT_S", 60.0)
    assert not has("CNI-b")
    monkeypatch.setattr(iptables, "RECENT_S", 0.0)
    assert has("CNI-b")


def test_a_recent_table_is_not_enough_if_pods_have_rules_of_their_own(warm):
    """Without ipset, each pod has rules. The server's copy lacks the rules of a pod that was added a moment ago."""
    def may_have_rules():
        return any(it.may_have_rules_of(b"\x0a\x00\x00\x05") for it in
                   iptables_chain.look(Request(warm, env={}), 4, recent=True))

    run("iptables-legacy", "-N", "CNI-FORWARD")
    assert not may_have_rules()
    run("iptables-legacy", "-A", "CNI-FORWARD", "-s", "10.0.0.5", "-j", "ACCEPT")
    assert may_have_rules()


def test_a_server_reads_a_table_again_for_what_pods_do_not_share(warm, monkeypatch):
    """The kernel's figures stay the same if another pod's chain replaces a pod's chain."""
    def has(chain, shared):
        return iptables.has_chain(Request(warm, env={}), chain, shared=shared)

    run("iptables-legacy", "-t", "nat", "-N", "CNI-a")
    assert has("CNI-a", shared=True)
    read = []
    monkeypatch.setattr(xtables, "read_table", lambda *args, of=xtables.read_table: read.append(args) or of(*args))
    assert has("CNI-a", shared=True) and read == []
    run("iptables-legacy", "-t", "nat", "-E", "CNI-a", "CNI-b")
    assert has("CNI-b", shared=False) and not has("CNI-a", shared=False)
    read.clear()
    run("iptables-legacy", "-t", "nat", "-N", "CNI-c")
    assert has("CNI-c", shared=True) and read == [(4, "nat")]
