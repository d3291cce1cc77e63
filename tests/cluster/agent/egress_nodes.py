"""Nodes, pods, a directory of policies and an outside host that shows each connection's source: for egress
addresses."""

import contextlib
import json
import socket
import subprocess
import threading

import yaml

from fastcni.agent import files
from fastcni.testing.namespaces import Inside, ip
from fastcni.testing.witnesses import eventually

OUTSIDE = {4: "198.51.100.1", 6: "2001:db8:1::1"}
EGRESS = {4: "192.0.2.50", 6: "2001:db8::50"}
PORT = 8000
PROBE_S = 0.4
FAMILIES = {4: socket.AF_INET, 6: socket.AF_INET6}


class Outside:
    """A host behind the wire's router. It sends to each connection the source address that it sees."""

    def __init__(self):
        ip("addr", "add", f"{OUTSIDE[4]}/32", "dev", "lo")
        ip("addr", "add", f"{OUTSIDE[6]}/128", "dev", "lo", "nodad")
        ip("addr", "add", "2001:db8::254/64", "dev", "wire", "nodad")
        self.sock = socket.create_server(("::", PORT), family=socket.AF_INET6, dualstack_ipv6=True, backlog=64)
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def _serve(self):
        with contextlib.suppress(OSError):      # close()
            while True:
                one, (host, *_) = self.sock.accept()
                with one, contextlib.suppress(OSError):
                    one.sendall(host.removeprefix("::ffff:").encode())

    def close(self):
        self.sock.shutdown(socket.SHUT_RDWR)
        self.thread.join()
        self.sock.close()


class Pod:
    """A pod: a namespace that has the fifth address of each subnet of its node."""

    def __init__(self, node, netns):
        self.node, self.netns = node, netns
        ip("link", "add", "pod", "type", "veth", "peer", "eth0", "netns", netns, netns=node.netns)
        ip("link", "set", "pod", "up", netns=node.netns)
        ip("link", "set", "eth0", "up", netns=netns)
        ip("link", "set", "lo", "up", netns=netns)
        self.addresses = {}
        for family, subnet in files.read_former(f"{node.directory}/subnet.env").items():
            address, gateway, length = str(subnet[5]), str(subnet[1]), subnet.max_prefixlen
            nodad = ["nodad"] if family == 6 else []
            self.addresses[family] = address
            ip("addr", "add", f"{gateway}/{length}", "dev", "pod", *nodad, netns=node.netns)
            ip("addr", "add", f"{address}/{length}", "dev", "eth0", *nodad, netns=netns)
            ip("route", "add", f"{address}/{length}", "dev", "pod", netns=node.netns)
            ip("route", "add", f"{gateway}/{length}", "dev", "eth0", netns=netns)
            ip("route", "add", "default", "via", gateway, "dev", "eth0", netns=netns)

    def document(self, name, **labels):
        return {"kind": "Pod", "metadata": {"name": name, "namespace": "shop", "labels": labels},
                "status": {"podIPs": [{"ip": address} for address in self.addresses.values()]}}

    def source(self, family=4, to="", port=PORT):
        """Return the source address that the outside host sees, or "" if the outside host does not answer."""
        with Inside(self.netns), socket.socket(FAMILIES[family]) as sock:
            sock.settimeout(PROBE_S)
            try:
                sock.connect((to or OUTSIDE[family], port))
                return sock.recv(64).decode()
            except OSError:
                return ""


def egress_address(name="shop", addresses=None, **subject):
    return {"apiVersion": "policy.fastcni.dev/v1alpha1", "kind": "EgressAddress", "metadata": {"name": name},
            "spec": {"subject": subject or {"namespaces": {}}, "addresses": addresses or list(EGRESS.values())}}


def put(directory, name, *documents):
    """Write the documents to a temporary file and rename it to `name`. Without documents, remove the file `name`."""
    if not documents:
        (directory / name).unlink()
        return
    (directory / "new").write_text(yaml.safe_dump_all(documents))
    (directory / "new").rename(directory / name)


def addresses_of(netns):
    """Return {address: seconds that it stays valid, or None without a limit} of the links in a namespace."""
    found = json.loads(ip("-j", "addr", netns=netns))
    return {each["local"]: None if each["valid_life_time"] == 0xFFFFFFFF else each["valid_life_time"]
            for link in found for each in link.get("addr_info", ()) if "local" in each}


def holders(nodes, address):
    return [node for node in nodes if address in addresses_of(node.netns)]


def holder(nodes, address=EGRESS[4]):
    """Wait until one of the nodes holds the egress address. Return that node."""
    def found():
        held = holders(nodes, address)
        return held[0] if len(held) == 1 else None

    one = eventually(found)
    assert one, [node.log() for node in nodes]
    return one


def table(node):
    return subprocess.run(["ip", "netns", "exec", node.netns, "nft", "list", "table", "inet", "fastcni-egress"],
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False).stdout
