"""The files that the agent writes."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from ipaddress import ip_address, ip_network

import pytest
from unit.agent.nodes import conf

from fastcni.agent import files, peer_list
from fastcni.agent.backends.vxlan_mac import kept_mac
from fastcni.agent.backends.wireguard_key import kept
from fastcni.agent.bgp import blocks_of
from fastcni.agent.contract import Node
from fastcni.agent.registries.record_file import RecordFile
from fastcni.daemon import log
from fastcni.kit import flannel_files
from fastcni.kit.ipam.cluster.node_state import BLOCKS

SUBNETS = {4: ip_network("10.244.3.0/24"), 6: ip_network("fd00:10:244:3::/64")}
NODE = Node("", SUBNETS, {4: ip_address("192.0.2.3")}, "vxlan")


def test_the_flannel_plugin_reads_what_is_written(tmp_path):
    path = str(tmp_path / "run" / "subnet.env")
    files.write_subnet(path, conf(families=(4, 6)), NODE, 1430, True)
    found = flannel_files.read_subnet(path)
    assert (found.networks, found.subnets) == (["10.244.0.0/16", "fd00:10:244::/48"],
                                               ["10.244.3.0/24", "fd00:10:244:3::/64"])
    assert (found.mtu, found.masquerades) == (1430, True)
    assert files.read_former(path) == SUBNETS
    with open(path, encoding="utf-8") as file:
        assert "FLANNEL_SUBNET=10.244.3.1/24\n" in file.read()


def test_without_a_file_there_is_no_former_subnet(tmp_path):
    assert files.read_former(str(tmp_path / "none")) == {}
    (tmp_path / "torn").write_text("FLANNEL_NETW")
    assert files.read_former(str(tmp_path / "torn")) == {}


READERS = {
    "nodes": lambda path: RecordFile(str(path), "/net/subnets/", log.make("debug", "logfmt")).read(),
    "conflist": lambda path: files.write_conflist(str(path), False), "ours": lambda path: files.is_ours(str(path)),
    "subnet.env": lambda path: files.read_former(str(path)), "a.mac": lambda path: kept_mac(str(path.parent), "a"),
    "peers.json": lambda path: peer_list.read(str(path.parent)), "wgkey": lambda path: kept(str(path.parent)),
    BLOCKS: lambda path: blocks_of([str(path.parents[1])]), ".x.new": lambda path: files.write(path.parent / "x", "")}


@pytest.mark.parametrize("name", READERS)
def test_a_fifo_in_place_of_a_file_of_the_agent_is_not_waited_for(tmp_path, name):
    """Once, the agent waited for ever at its start, without a message."""
    (tmp_path / name).parent.mkdir(exist_ok=True)
    os.mkfifo(tmp_path / name)
    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(READERS[name], tmp_path / name)
        try:
            done.exception(5)
        finally:
            os.close(os.open(tmp_path / name, os.O_RDWR))       # ends an open(2) that waits for the FIFO's other end


@pytest.mark.parametrize("policies", [False, True])
def test_a_conflist_is_written_once_and_an_operators_is_kept(tmp_path, policies):
    path = tmp_path / "net.d" / "10-flannel.conflist"
    assert files.write_conflist(str(path), policies)
    expected = ["flannel", "portmap"] + ["policy"] * policies
    assert [each["type"] for each in json.loads(path.read_text())["plugins"]] == expected
    assert files.write_conflist(str(path), policies)
    assert files.is_ours(str(path))
    path.write_text("{}")
    assert not files.write_conflist(str(path), policies)
    assert path.read_text() == "{}"
    assert not files.is_ours(str(path))


def test_a_conflist_follows_the_option_for_policies(tmp_path):
    path = tmp_path / "10-flannel.conflist"
    for policies in (False, True, False):
        assert files.write_conflist(str(path), policies)
        assert ('"policy"' in path.read_text()) == policies
