"""Define the cases of the benchmark (plugins with configurations) and the plan (how often the run calls these
plugins)."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

SIDES = ("Go", "one-shot", "warm", "before", "floor")        # "before": see Options.before
PARTS = ("latency", "idle", "rate", "cost", "density", "memory", "beside")


@dataclass(frozen=True, slots=True)
class Case:
    """A plugin and its configuration, which the benchmark measures.

    held: the number of addresses that other containers hold in host-local. slow: whether a call of an implementation
    takes half a second, so that the run makes fewer calls. grows: whether the part density also measures the case.
    single: whether the case is measured only one call at a time, and without the floor. A chain is also measured with
    many concurrent calls if --only names the chain.

    of_pod(link, number): returns further configuration keys for one pod. link: the name of the network's link on the
    host. number: the pod's number. host, each: lines for ip(8) that make links on the host, once for the network (host)
    or for each pod (each). The lines may have the placeholders "@link", "@pod" and "@gateway".
    kind: the kind of the pod's link if the kernel may not support the kind, otherwise "".

    behind: whether the plugin is a chained plugin, which gets the result of a previous plugin. chain: the keys of
    plugins that are called in order instead of the plugin `type`, as in a conflist. ours: {type: keys} that only
    fastcni's plugins get. All implementations share the node, where the Go plugins add iptables rules; without these
    keys fastcni would therefore use iptables, too. fused: whether an implementation that has the plugin `chain` calls
    only `chain`, as after `fastcni fuse`."""

    name: str
    type: str
    keys: dict[str, Any] = field(default_factory=dict)
    held: int = 0
    calls: tuple[str, ...] = ("ADD", "DEL")
    slow: bool = False
    grows: bool = False
    of_pod: Callable[[str, int], dict[str, Any]] = lambda link, number: {}
    host: tuple[str, ...] = ()
    each: tuple[str, ...] = ()
    kind: str = ""
    behind: bool = False
    chain: tuple[dict[str, Any], ...] = ()
    ours: dict[str, dict[str, Any]] = field(default_factory=dict)
    single: bool = False
    fused: bool = False


GATEWAY = {"isGateway": True}
GIGABIT = {"ingressRate": 10**9, "ingressBurst": 10**8, "egressRate": 10**9, "egressBurst": 10**8}      # bits
KUBERNETES: tuple[dict[str, Any], ...] = ({"type": "bridge"}, {"type": "portmap"}, {"type": "bandwidth", **GIGABIT})
BY_NFTABLES = {"firewall": {"backend": "nftables"}}
SUBNET = ("link add @link type bridge", "addr add @gateway dev @link", "link set @link up")
UPLINK = ("link add @link type veth peer name @link-far", "link set @link up", "link set @link-far up")


def on_uplink(link: str, number: int) -> dict[str, Any]:
    """Return {"master": link}: a function for Case.of_pod."""
    return {"master": link}


def mapped(count: int) -> Callable[[str, int], dict[str, Any]]:
    """Return a function for Case.of_pod that maps `count` host ports to each pod."""
    return lambda link, number: {"runtimeConfig": {"portMappings": [
        {"hostPort": 20000 + number * count + n, "containerPort": 8000 + n, "protocol": "tcp"} for n in range(count)]}}


CASES = (
    Case("version", "bridge", calls=("VERSION",)),
    Case("loopback", "loopback"),
    Case("host-local-0", "host-local"),
    Case("host-local-1000", "host-local", held=1000),
    Case("host-local-5000", "host-local", held=5000),
    Case("host-local-60000", "host-local", held=60000, slow=True),
    Case("bridge", "bridge", GATEWAY, grows=True),
    Case("bridge-ipmasq", "bridge", {**GATEWAY, "ipMasq": True}),
    Case("ptp", "ptp", grows=True),
    Case("macvlan", "macvlan", of_pod=on_uplink, host=UPLINK, kind="macvlan", single=True),
    Case("ipvlan", "ipvlan", of_pod=on_uplink, host=UPLINK, kind="ipvlan", single=True),
    Case("vlan", "vlan", of_pod=lambda link, number: {"master": link, "vlanId": number + 1}, host=UPLINK, kind="vlan",
         single=True),
    Case("host-device", "host-device", of_pod=lambda link, number: {"device": f"{link}-{number}"}, single=True,
         each=("link add @link-@pod type veth peer name @link-@podp",)),
    Case("dummy", "dummy", kind="dummy", single=True),
    Case("tap", "tap", {"bridge": ""}, single=True),        # for tap, the key `bridge` names a bridge in the pod
    Case("portmap", "portmap", of_pod=mapped(1), host=SUBNET, behind=True, single=True),
    Case("portmap-32", "portmap", of_pod=mapped(32), host=SUBNET, behind=True, single=True),
    Case("kubernetes", "bridge", {**GATEWAY, "ipMasq": True}, of_pod=mapped(1), single=True,
         chain=KUBERNETES),
    Case("kubernetes-fused", "bridge", {**GATEWAY, "ipMasq": True}, of_pod=mapped(1), single=True, chain=KUBERNETES,
         fused=True),
    Case("firewall", "firewall", behind=True, ours=BY_NFTABLES, single=True),
    Case("firewall-iptables", "firewall", {"backend": "iptables"}, behind=True, single=True),
    Case("podman", "bridge", {**GATEWAY, "ipMasq": True, "hairpinMode": True}, of_pod=mapped(1), ours=BY_NFTABLES,
         single=True, chain=({"type": "bridge"}, {"type": "portmap"}, {"type": "firewall"}, {"type": "tuning"})),
    Case("tuning", "tuning", {"sysctl": {"net.ipv4.ip_forward": "1"}}, behind=True, single=True),
)
# Cases with keys that only fastcni has. The part density measures these cases together with the case bridge.
WITHOUT_IPV6 = Case("bridge-no-ipv6", "bridge", {**GATEWAY, "disableIPv6": True}, grows=True)
UNFLOODED = Case("bridge-unflooded", "bridge", {**GATEWAY, "disableFlooding": True}, grows=True)
OWN_KEYS = (WITHOUT_IPV6, UNFLOODED)
ALONE = Case("harness-alone", "loopback", calls=("VERSION",))
TITLES = {
    "version": "VERSION", "host-local-0": "host-local, none held", "host-local-1000": "host-local, 1,000 held",
    "host-local-5000": "host-local, 5,000 held", "host-local-60000": "host-local, 60,000 held",
    "kubernetes": "bridge, portmap, bandwidth", "kubernetes-fused": "bridge, portmap, bandwidth fused",
    "podman": "bridge, portmap, firewall, tuning",
    "firewall-iptables": "firewall by iptables", "portmap": "portmap, one port", "portmap-32": "portmap, 32 ports",
    "bridge-ipmasq": "bridge ipMasq", "bridge-no-ipv6": "bridge disableIPv6",
    "bridge-unflooded": "bridge disableFlooding", "harness-alone": "the harness alone",
}


def title(name: str) -> str:
    """Return the name that tables and plots have for a case."""
    return TITLES.get(name, name)


@dataclass(frozen=True, slots=True)
class Plan:
    """The numbers of measurements and pauses of a run.

    rounds, slow_rounds: rounds of the part latency, for quick and for slow cases. burst: in a round, each
    implementation adds this number of pods one after the other, then deletes the pods. rest: seconds of pause after an
    implementation's calls, so that its deferred work (20 ms of RCU after a DEL) is not measured with the next
    implementation. settle: seconds of pause after concurrent calls.

    at_once, slow_at_once: numbers of concurrent calls in the part rate, for quick and for slow cases. pods, repeats:
    each of `repeats` rounds adds `pods` pods, then deletes these pods. levels: numbers of existing pods in the part
    density, with `density_rounds` rounds at each number.

    idle_rounds: rounds of each situation of the part idle, with a pause of `pause` seconds before a call.

    foreign_rules: the number of another program's iptables rules in the part beside.

    memory_pods, pairs: in the part memory, the number of pods that are added and then deleted, and the number of pairs
    of ADD and DEL that follow. seed: the seed of the implementations' random order.
    """

    rounds: int = 25
    slow_rounds: int = 4
    burst: int = 5
    rest: float = 0.05
    settle: float = 0.5
    at_once: tuple[int, ...] = (8, 32, 64)
    slow_at_once: tuple[int, ...] = (8, 32, 64)
    pods: int = 64
    repeats: int = 7
    levels: tuple[int, ...] = (0, 100, 250, 500, 750, 1000)
    density_rounds: int = 5
    idle_rounds: int = 10
    pause: float = 1.0
    foreign_rules: int = 1500
    memory_pods: int = 1000
    pairs: int = 20000
    seed: int = 1


QUICK = Plan(rounds=4, slow_rounds=1, settle=0.2, at_once=(8, 32), slow_at_once=(), pods=64, repeats=1,
             levels=(0, 100, 250), density_rounds=1, idle_rounds=3, memory_pods=200, pairs=1000)


@dataclass(frozen=True, slots=True)
class Options:
    """The options of `fastcni bench`. peer: the directory of the Go plugins, "" to search the usual directories.
    before: None, or the path of a Python that has another version of fastcni; the warm server of that version then is
    one more implementation, "before". data_dir: the directory of address files, None for a directory in memory. report:
    the directory of the report, None for no report. only, parts, sides: the names of the cases, parts and
    implementations to measure; an empty `only` or `parts` stands for all. command: the command line as typed. html: the
    path of the HTML page, None for no page. force: whether to measure on a busy node, too."""

    plan: Plan = Plan()
    peer: str = ""
    before: str | None = None
    data_dir: str | None = None
    report: str | None = None
    only: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    sides: tuple[str, ...] = SIDES
    command: str = "fastcni bench"
    html: str | None = None
    force: bool = False

    @property
    def cases(self) -> list[Case]:
        """Return the cases that --only names; all cases without --only."""
        return [case for case in CASES if not self.only or case.name in self.only]

    @property
    def parallel_cases(self) -> list[Case]:
        """Return the cases to measure with many concurrent calls. Chains take minutes, so a chain is included only if
        --only names the chain."""
        return [case for case in self.cases
                if "ADD" in case.calls and (not case.single or (case.chain and case.name in self.only))]

    def wants(self, part: str) -> bool:
        """Return whether the run measures the part `part`. The part memory belongs to no case, so --only excludes this
        part unless --part names it."""
        if part == "memory" and "warm" not in self.sides:
            return False
        if self.parts:
            return part in self.parts
        return part != "memory" or not self.only
