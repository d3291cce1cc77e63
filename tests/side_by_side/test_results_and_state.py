"""With the same configuration, both implementations give the same result and the same state of host and pod, after ADD
and DEL."""

import re
import time

import pytest
from side_by_side.chained_stories import CHAINED_STORIES
from side_by_side.device_stories import DEVICE_STORIES
from side_by_side.sides import at_once
from side_by_side.state import difference, flat, has_tentative, roles_of, state_of
from side_by_side.stories import STORIES

from fastcni.testing.witnesses import eventually

DAD_S = 5.0         # the kernel's duplicate address detection takes up to two seconds
ALL_STORIES = STORIES | DEVICE_STORIES | CHAINED_STORIES
# known differences: (path, titles of stories, reason). "Older" means Go 1.1.1.
DELIBERATE = (
    ("pod./dns", r"(?!.* in 0\.)(?!.*without a version).*",
     "older: prints an empty dns in 1.x; the newest reference omits it"),
    (".*/links/.*/txqlen", "", "older: sets the queue length 0; the newest reference sets none"),
    ("pod./sysctls/net/ipv6/conf/[^/]*/keep_addr_on_down", "",
     "older: does not set it; the newest reference writes 1 for an IPv6 address"),
    ("pod./sysctls/net/ipv6/conf/[^/]*/ndisc_notify", "(macvlan|ipvlan).*",
     "older: does not set it; the newest reference writes 1"),
    ("pod./dns/domain", "dns of IPAM",
     "older: an empty dns overrides IPAM's; in the newest reference only a non-empty dns does"),
    ("pod./(interfaces|ips?[46]?)/.*", r"loopback in 0\.[12]\.0",
     "Go prints the keys of 1.0.0 in older versions; fastcni does not"),
    ("host/links/up0/ifalias", "host-device.*", "older: leaves the alias; the newest reference removes it"),
    ("host/links/ext0/operstate", "host-device.*",
     "the peer's operstate depends on the namespace in which the device went down"),
    (r"host/sysctls/net/ipv6/conf/br0\.\d+/accept_ra", "bridge vlan.*",
     "fastcni also ignores router advertisements on the VLAN link of the bridge"),
    (".*/addr_info/.*/nodad", "",
     "fastcni runs duplicate address detection only with enabledad, so the address works immediately"),
    ("pod./sysctls/net/ipv6/conf/[^/]*/accept_dad", "(?!bridge).*",
     "the reference skips duplicate address detection only in bridge"),
    (r"pod./routes/[46] \d+ unicast (default|192.0.2|2001:db8|::/0).*", "vrf.*",
     "older: does not move routes into the VRF"),
    (r"pod./routes/4 1 unicast 10.22.0.[01].*", "vrf behind ptp", "older: does not move routes into the VRF"),
    ("pod./(links/eth0/addr_info/fd00:22::[23]/64|routes/6 (local|main) .*fd00:22::).*", "vrf.*",
     "older: does not set keep_addr_on_down, so the link loses its IPv6 addresses at DEL"),
    ("pod./routes/6 100 .*", "sbr(?!, IPv6).*",
     "fastcni copies no IPv6 route into the table of an IPv4 address: no rule would use it"),
    ("pod./routes/6 (101|main) .*", "sbr, .*IPv4 a.*|sbr, without.*|sbr behind.*",
     "fastcni keeps IPv6 routes in the main table if the pod has no IPv6 address"),
    (".*/links/.*/num_[rt]x_queues", "", "fastcni makes one queue in each direction, not one for each processor"),
    (".*/queues/.* root/refcnt", "", "a qdisc has one reference from each queue of the link"),
    ("host/queues/.* action 2", "", "the reference adds a second action, which no packet reaches"),
    ("host/links/bwp[^/]*/ifalias", "", "the owner of the ifb, by which GC of fastcni finds it"),
    ("host/links/.*/info_data/no_linklocal_learn", "bridge macspoofchk",
     "prevents that a pod takes another pod's MAC by frames that pass no hook"),
    (r"pod./ips/\[.\]/version", r"loopback in 0\.[34]\..", "Go prints the keys of 1.0.0, so without version"),
)


def unexplained(title, differs):
    """Return the differences without the known ones."""
    return {path: values for path, values in differs.items()
            if not any(re.fullmatch(paths, path) and re.fullmatch(titles or ".*", title)
                       for paths, titles, _ in DELIBERATE)}


class Run:
    """The steps of one story, run by one implementation."""

    def __init__(self, side, story):
        self.side, self.story = side, story
        self.pods = [side.pod(story.quick_dad) for _ in range(story.pods)]
        for command in story.before:
            side.on_host(*command.split())

    def add(self):
        self.results = [self.add_pod(pod, {"cid": f"pod-{i}", **self.story.variables})
                        for i, pod in enumerate(self.pods)]
        roles = roles_of(self.side, *self.pods, borrowed=self.story.borrowed)
        return flat({f"pod{i}": roles.of(listed(result)) for i, result in enumerate(self.results)})

    def add_pod(self, pod, variables):
        conf = self.story.conf
        if self.story.behind:
            conf = {**conf, "prevResult": self.side.add(self.story.behind, pod, **variables)}
        return self.side.add(conf, pod, **variables)

    def check(self):
        for i, (pod, result) in enumerate(zip(self.pods, self.results, strict=True)):
            self.side.check(self.story.conf, pod, result, cid=f"pod-{i}", **self.story.variables)

    def delete(self):
        self.delete_of(self.story.conf)

    def delete_behind(self):
        self.delete_of(self.story.behind)

    def delete_of(self, conf):
        for i, pod in enumerate(self.pods):
            previous = {"prevResult": self.results[i]} if self.story.behind else {}
            self.side.delete({**conf, **previous}, pod, cid=f"pod-{i}", **self.story.variables)

    def state(self):
        held = {f"files/{name}": owner for name, owner in self.side.held(self.story.conf.get("name", "net-a")).items()}
        return {**state_of(self.side, *self.pods, borrowed=self.story.borrowed), **held}


def listed(value):
    """Return the value with lists replaced by {position: item}, so that each difference has a path."""
    if isinstance(value, dict):
        return {key: listed(item) for key, item in value.items()}
    if isinstance(value, list):
        return {f"[{i}]": listed(item) for i, item in enumerate(value)} or "[]"
    return value


def same_state(title, runs, seconds=30.0):
    """Wait until the states of all runs are the same, because carriers and DAD take time. Return the differences that
    remain. Reading a state takes 20 processes, so wait for the end of DAD first."""
    deadline = time.monotonic() + seconds
    eventually(lambda: not any(has_tentative(run.side, *run.pods) for run in runs), DAD_S, pause=0.05)
    while True:
        differs = unexplained(title, difference(*at_once(Run.state, runs)))
        if not differs or time.monotonic() > deadline:
            return differs
        time.sleep(0.1)


@pytest.mark.parametrize("title", [pytest.param(title, marks=pytest.mark.needs(*story.needs))
                                   for title, story in ALL_STORIES.items()])
def test_both_give_the_same_result_and_leave_the_same_state(title, three_sides):
    story = ALL_STORIES[title]
    runs = at_once(lambda side: Run(side, story), three_sides)
    assert not unexplained(title, difference(*at_once(Run.add, runs)))
    assert not same_state(title, runs)
    if story.check:
        at_once(Run.check, runs)
    elif story.why:
        at_once(Run.check, runs[:-1])
    at_once(Run.delete, runs)
    assert not same_state(title, runs)
    if story.behind:
        at_once(Run.delete_behind, runs)
        assert not same_state(title, runs)
