"""bandwidth after a bridge: configurations, the shaped links, and their qdiscs as tc(8) shows them."""

import json

from lab.node import cid_of, links, run

from fastcni.kit.call import names

DUAL = ("10.22.0.0/24", "fd00:22::/64")
INGRESS = {"ingressRate": 8000, "ingressBurst": 80000}
EGRESS = {"egressRate": 16000, "egressBurst": 160000}


def behind_bridge(node, *pods, **more):
    node.behind(node.conf(*DUAL, isDefaultGateway=True), *pods, **more)
    return bandwidth()


def bandwidth(**keys):
    return {"cniVersion": "1.1.0", "name": "net-a", "type": "bandwidth", **keys}


def host_end(node, pod):
    return next(item["name"] for item in node.results[pod]["interfaces"] if item["name"].startswith("veth"))


def ifb_of(pod, network="net-a"):
    """Return the name of a pod's ifb. The reference plugin uses the same name."""
    return names.digest(network + cid_of(pod), 15, "bwp")


def ifbs():
    return {name: link for name, link in links().items() if link.get("linkinfo", {}).get("info_kind") == "ifb"}


def tc_json(*args):
    return json.loads(run("tc", "-j", *args))


def root(link):
    """Return tc's JSON of a link's root qdisc: {"kind", "options", ...}."""
    return next(item for item in tc_json("qdisc", "show", "dev", link) if item.get("root"))
