"""The files that the agent writes."""

import json
from ipaddress import ip_address, ip_network

from agent.nodes import conf

from fastcni.agent import files
from fastcni.agent.contract import Node
from fastcni.kit import flannel_files

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


def test_a_conflist_is_written_once_and_an_operators_is_kept(tmp_path):
    path = tmp_path / "net.d" / "10-flannel.conflist"
    assert files.write_conflist(str(path))
    assert [each["type"] for each in json.loads(path.read_text())["plugins"]] == ["flannel", "portmap"]
    assert files.write_conflist(str(path))
    path.write_text("{}")
    assert not files.write_conflist(str(path))
    assert path.read_text() == "{}"
    assert not files.is_ours(str(path))
