"""Processes of both implementations' host-local use one directory: in turn with the expected results, and many at the
same time without a duplicate address."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
from side_by_side.sides import addresses, at_once
from side_by_side.stories import V4, V6

WRITERS, ADDS = 4, 12                           # processes of each implementation; ADDs of each process


def conf(directory, *subnets, version="1.0.0", **keys):
    return {"cniVersion": version, "name": "net-a", "type": "host-local", **keys, "ipam": {
        "type": "host-local", "dataDir": directory, "ranges": [[{"subnet": subnet}] for subnet in subnets]}}


def test_many_processes_of_both_sides_give_no_address_twice(sides, tmp_path):
    shared = conf(str(tmp_path), V4, V6)

    def write(job):
        side, writer = job
        cids = [f"{side.name}-{writer}-{i}" for i in range(ADDS)]
        return [(side, cid, side.add(shared, "/run/netns/none", cid=cid)) for cid in cids]

    jobs = [(side, writer) for side in sides for writer in range(WRITERS)]
    with ThreadPoolExecutor(len(jobs)) as pool:
        added = [one for found in pool.map(write, jobs) for one in found]
    given = {ip["address"].split("/")[0]: cid for _, cid, result in added for ip in result["ips"]}
    assert len(given) == 2 * len(added) == 2 * len(sides) * WRITERS * ADDS
    assert addresses(sides[0].held("net-a", tmp_path)) == {ip: f"{cid}\r\neth0" for ip, cid in given.items()}

    def release(job):
        side, writer = job
        for owner, cid, _ in added:
            if owner is not side and cid.split("-")[1] == str(writer):
                side.check(shared, "/run/netns/none", None, cid=cid)
                side.delete(shared, "", cid=cid)

    with ThreadPoolExecutor(len(jobs)) as pool:
        list(pool.map(release, jobs))
    assert addresses(sides[0].held("net-a", tmp_path)) == {}


def test_each_side_continues_behind_the_last_address_of_the_other(sides, tmp_path):
    """Both implementations use the same round-robin cursor. Each treats the other's address files as allocated
    addresses."""
    shared = conf(str(tmp_path), "10.22.0.0/29")
    given = [sides[i % 2].add(shared, "/run/netns/none", cid=f"pod-{i}")["ips"][0]["address"] for i in range(5)]
    assert given == [f"10.22.0.{i}/29" for i in range(2, 7)]
    for side in sides:
        answer = side.call("ADD", shared, "/run/netns/none", cid="one-more")
        assert "no IP addresses available" in answer.document["msg"]
        answer = side.call("ADD", shared, "/run/netns/none", cid="pod-3")
        assert "10.22.0.5 has been allocated to pod-3" in answer.document["msg"]
    sides[0].delete(shared, "", cid="pod-1")
    assert sides[1].add(shared, "/run/netns/none", cid="pod-9")["ips"][0]["address"] == "10.22.0.3/29"


STORIES = {
    "three ranges of a set": ({"ranges": [[{"subnet": "10.1.0.0/30"}, {"subnet": "10.2.0.0/30"},
                                           {"subnet": "10.3.0.0/29", "rangeStart": "10.3.0.4"}]]}, {}),
    "start, end and gateway": ({"ranges": [[{"subnet": V4, "rangeStart": "10.22.0.5", "rangeEnd": "10.22.0.8",
                                             "gateway": "10.22.0.6"}]]}, {}),
    "a gateway outside of the subnet": ({"ranges": [[{"subnet": V4, "gateway": "192.0.2.1"}]]}, {}),
    "an IPv6 range to its end": ({"ranges": [[{"subnet": "fd00:22::/126"}]]}, {}),
    "the single range, then a list": ({"subnet": V4, "ranges": [[{"subnet": V6}]]}, {}),
    "ranges of the capability first": ({"ranges": [[{"subnet": V4}]]}, {
        "runtimeConfig": {"ipRanges": [[{"subnet": "10.40.0.0/24"}]]}}),
    "addresses asked for, one of each set": ({"ranges": [[{"subnet": V4}], [{"subnet": V6}]]}, {
        "args": {"cni": {"ips": ["fd00:22::77"]}}, "runtimeConfig": {"ips": ["10.22.0.77/16"]}}),
    "routes": ({"subnet": V4, "routes": [{"dst": "192.0.2.7/24"}, {"dst": "0.0.0.0/0", "gw": "10.22.0.9"},
                                         {"dst": "::/0"}]}, {}),
    "resolvConf": ({"subnet": V4, "resolvConf": "@here/resolv.conf"}, {}),
    "IPv4 mapped into IPv6": ({"subnet": V4, "gateway": "::ffff:10.22.0.9"}, {}),
}
RESOLV_CONF = """# of a node
nameserver 10.0.0.53
nameserver 10.0.0.54 and more
; domain no.example
domain a.example
search a.example  b.example
\toptions ndots:2 edns0
search c.example
sortlist 10.0.0.0
"""


@pytest.mark.parametrize("version", ["0.2.0", "0.4.0", "1.0.0"])
@pytest.mark.parametrize("title", STORIES)
def test_both_give_the_same_addresses_in_the_same_order(title, version, three_sides):
    ipam, keys = STORIES[title]
    network = {"cniVersion": version, "name": "net-a", "type": "host-local", **keys,
               "ipam": {"type": "host-local", "dataDir": "@here", **ipam}}

    def story(side):
        with open(os.path.join(side.directory, "resolv.conf"), "w") as file:
            file.write(RESOLV_CONF)
        added = [side.call("ADD", network, "/run/netns/none", cid=f"pod-{i}") for i in range(5)]
        deleted = side.call("DEL", network, cid="pod-1").status
        return [plain(each) for each in added] + [
            deleted if added[0].status == 0 else "fastcni's DEL is lenient where ADD refuses the configuration",
            *[plain(side.call("ADD", network, "/run/netns/none", cid=f"pod-{i}")) for i in range(5, 9)],
            side.held("net-a")]

    one_shot, warm, go = at_once(story, three_sides)
    assert one_shot == warm == go


def plain(answer):
    """Return an ADD's result without the empty `dns` that Go 1.1.1 prints in versions 1.x, or the text of an error."""
    found = answer.document
    if answer.status:
        return found["msg"]
    return {key: value for key, value in found.items() if value or found["cniVersion"] < "1.0.0"}
