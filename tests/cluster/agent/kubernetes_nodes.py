"""Make Node objects in the API mock, and registries of the agent that read them."""

import json
import threading
from ipaddress import ip_address

import pytest
from cluster.kubernetes.api_server import Running, kubeconfig
from lab.loggers import logger_to

from fastcni.agent.contract import Node
from fastcni.agent.registries import open_registry

P = "flannel.alpha.coreos.com"
ME = Node("", {}, {4: ip_address("192.0.2.1"), 6: ip_address("2001:db8::1")}, "vxlan",
          {4: {"VNI": 1, "VtepMAC": "02:00:00:00:00:01"}})
BOTH = {"Network": "10.244.0.0/16", "EnableIPv6": True, "IPv6Network": "fd00:10::/48"}


def node_object(number, **notes):
    return {"metadata": {"name": f"n{number}", "annotations": {f"{P}/{key}": value for key, value in notes.items()}},
            "spec": {"podCIDR": f"10.244.{number}.0/24",
                     "podCIDRs": [f"10.244.{number}.0/24", f"fd00:10:0:{number}::/64"]},
            "status": {"conditions": [{"type": "Ready", "status": "True"},
                                      {"type": "NetworkUnavailable", "status": "True"}]}}


@pytest.fixture
def mock():
    with Running() as running:
        for number in (1, 2):
            running.do(lambda api, number=number: api.put("nodes", node_object(number)))
        yield running


@pytest.fixture
def registry(mock, tmp_path):
    (tmp_path / "kubeconfig").write_text(kubeconfig(mock.url))
    (tmp_path / "net-conf.json").write_text(json.dumps(BOTH))
    stopped, opened, log = threading.Event(), [], []

    def note(event):
        log.append(event)

    def make(name="n1", **more):
        settings = {"kubeconfig": str(tmp_path / "kubeconfig"), "node": name,
                    "net_conf": str(tmp_path / "net-conf.json"), **more}
        opened.append(open_registry("kubernetes", settings, logger_to(note),
                                    stopped.wait))
        opened[-1].events = log
        return opened[-1]

    yield make
    stopped.set()
    for each in opened:
        each.close()


def stored(mock, name="n1"):
    return mock.do(lambda api: next(it for key, it in api.stored.items() if key[2] == name))
