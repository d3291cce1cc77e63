"""bandwidth: rate limits as iperf3 measures them and the kernel counts them, configuration keys, subnets, and the ifb
in the result."""

import json
import shutil
import subprocess

import pytest
from lab.node import Inside, cid_of, links, run, source_seen
from unit.plugins.shaped import DUAL, EGRESS, INGRESS, bandwidth, behind_bridge, host_end, ifb_of, ifbs, root

from fastcni.kernel import tc
from fastcni.kit.call import names
from fastcni.kit.shaping import qdiscs
from fastcni.kit.shaping.limits import Limit

pytestmark = pytest.mark.needs("ifb")
MBIT = 1_000_000


@pytest.fixture
def conf(node, pod):
    """Return a configuration for a pod that a bridge has connected."""
    return behind_bridge(node, pod)


# -- rates measured by iperf3 -----------------------------------------------------------------------------

needs_iperf3 = pytest.mark.skipif(not shutil.which("iperf3"), reason="needs iperf3 (Debian: iperf3)")
RATE, BURST, SECONDS, TRIES = 20 * MBIT, 400_000, 2, 3
BOTH = {"ingressRate": RATE, "ingressBurst": BURST, "egressRate": RATE, "egressBurst": BURST}


def measured(pod, way, address, *, seconds=SECONDS):
    """Return the TCP throughput between the host's `address` and the pod, in bit/s."""
    with Inside(pod):
        server = subprocess.Popen(["iperf3", "-s", "-1", "--forceflush"], stdout=subprocess.PIPE, text=True)
    try:
        while "listening" not in server.stdout.readline():
            assert server.poll() is None
        there = "fd00:22::2" if ":" in address else "10.22.0.2"
        out = json.loads(run("iperf3", "-c", there, "-B", address, "-t", seconds, "-J",
                             *(["-R"] if way == "egress" else [])))
        return out["end"]["sum_received"]["bits_per_second"]
    finally:
        server.kill()
        server.communicate()


def within_a_tenth(pod, way, address):
    """Return whether the measured rate is within a tenth of RATE. Other load may disturb a measurement, so the function
    measures up to TRIES times."""
    found = []
    for _ in range(TRIES):
        found.append(measured(pod, way, address) / RATE)
        if 0.9 <= found[-1] <= 1.1:
            return True
    print(f"{way} {address}: {found} of the limit")
    return False


@needs_iperf3
@pytest.mark.parametrize("way", ["ingress", "egress"])
def test_the_achieved_rate_is_within_a_tenth_of_the_limit(node, pod, conf, way):
    free = measured(pod, way, "10.22.0.1", seconds=1)
    node.add({**conf, f"{way}Rate": RATE, f"{way}Burst": BURST}, pod)
    assert within_a_tenth(pod, way, "10.22.0.1")
    other = "egress" if way == "ingress" else "ingress"
    assert free > 3 * RATE < measured(pod, other, "10.22.0.1", seconds=1)      # the other direction is not limited


@needs_iperf3
@pytest.mark.parametrize("address, way", [("10.22.0.1", "egress"), ("fd00:22::1", "ingress")])
@pytest.mark.parametrize("key", ["shapedSubnets", "unshapedSubnets"])
def test_only_the_traffic_with_the_listed_subnets_is_limited(node, pod, conf, key, address, way):
    run("ip", "addr", "add", "10.99.0.1/32", "dev", "br0")
    run("ip", "addr", "add", "fd00:99::1/128", "dev", "br0", "nodad")
    node.add({**conf, **BOTH, key: ["10.99.0.0/16", "fd00:99::/32"]}, pod)
    other = {"10.22.0.1": "10.99.0.1", "fd00:22::1": "fd00:99::1"}[address]
    held, free = (other, address) if key == "shapedSubnets" else (address, other)
    assert within_a_tenth(pod, way, held)
    assert measured(pod, way, free, seconds=1) > 3 * RATE


HOST, SEVERAL = ["10.22.0.1", "fd00:22::1"], 9


@pytest.mark.parametrize("subnets, held", [
    (["0.0.0.0/0"], ["10.22.0.1"]), (["::/0"], ["fd00:22::1"]), (["10.22.0.1/32", "fd00:22::1/128"], HOST),
    (["10.22.0.0/31", "fd00:22::/127"], HOST), (["10.22.0.2/31", "fd00:22::2/127", "fd00:22:1::/48"], []),
    (["10.22.0.2/32", "fd00:22::2/128"], [])], ids=str)
def test_the_remote_address_decides_whether_traffic_is_limited(node, pod, conf, subnets, held):
    """The counters of the traffic class show whether a packet is limited. The test sends SEVERAL packets, because the
    class also counts multicast."""
    node.add({**conf, **BOTH, "shapedSubnets": subnets}, pod)
    for address, inside in (("10.22.0.1", "10.22.0.2"), ("fd00:22::1", "fd00:22::2")):
        for link, way in ((ifb_of(pod), (pod, None, address)), (host_end(node, pod), (None, pod, inside))):
            before = packets(link)
            assert all(source_seen(*way) for _ in range(SEVERAL))
            assert (packets(link) - before >= SEVERAL) is (address in held), (link, way)


def packets(link):
    """Return the number of packets in the limited traffic class of a link."""
    fields = run("tc", "-s", "class", "show", "dev", link).split()
    return int(fields[fields.index("pkt") - 1])


# -- the kernel's numbers ---------------------------------------------------------------------------------

@pytest.mark.parametrize("rate, burst, shape", [
    (8000, 80000, (1000, 10025, 156250000)),            # the example in the reference plugin's tests
    (20 * MBIT, 400_000, (2_500_000, 112_500, 312_500)),
    (1_000_001, 99_999, (125_000, 15_624, 1_562_375)),
    (1 << 40, 1 << 30, (1 << 37, (1 << 37) // 40 + (1 << 27), 15_250)),
    (1 << 45, 1 << 30, (1 << 42, 0xFFFFFFFF, 468)),  # for this limit, the reference plugin sends only the lower 32 bits
    (100_000, (1 << 32) - 1, (12_500, 536_871_223, 0xFFFFFFFF)),        # for this buffer, too
])
def test_the_numbers_equal_those_of_the_reference(rate, burst, shape):
    found = qdiscs.shape(Limit(rate // 8, burst // 8, tc.SOURCE))
    assert (found.rate, found.limit, found.buffer) == shape


@pytest.mark.parametrize("rate", [8, 8000, 20 * MBIT, 1 << 36, (1 << 64) - 1])
@pytest.mark.parametrize("subnets", [{}, {"shapedSubnets": ["10.99.0.0/16"]}], ids=["tbf", "htb"])
def test_the_kernel_takes_every_rate_and_check_finds_it(node, pod, conf, rate, subnets):
    burst = max(rate // 10, 8) if rate < 1 << 36 else (1 << 35) - 9
    if rate == (1 << 64) - 1:
        error = node.refused("ADD", {**conf, "egressRate": rate, "egressBurst": burst}, pod)
        assert (error["code"], error["msg"][:28]) == (7, "burst is too small for its r")
        return
    conf.update(ingressRate=rate, ingressBurst=burst, egressRate=rate, egressBurst=burst, **subnets)
    result = node.add(conf, pod)
    node.check(conf, pod, result)


def test_tc_shows_rate_burst_and_latency(node, pod, conf):
    node.add({**conf, **INGRESS}, pod)
    found = root(host_end(node, pod))
    assert (found["kind"], found["handle"]) == ("tbf", "1:")
    assert found["options"] == {**found["options"], "rate": 1000, "burst": 10000, "lat": 25000}


@pytest.mark.parametrize("megabit", [1, 100])
def test_the_longest_burst_of_runtimes_is_no_error(node, pod, conf, megabit):
    """containerd passes the rates in a pod's annotations with a burst of 2^32-1 bits."""
    rates = {"ingressRate": megabit * MBIT, "ingressBurst": 0xFFFFFFFF, "egressRate": megabit * MBIT,
             "egressBurst": 0xFFFFFFFF}
    conf["runtimeConfig"] = {"bandwidth": rates}
    result = node.add(conf, pod)
    node.check(conf, pod, result)
    assert source_seen(pod, None, "10.22.0.1") == "10.22.0.2"


def test_a_burst_shorter_than_a_packet_gives_a_warning(node, pod, conf):
    reply = node.call("ADD", {**conf, "egressRate": 8000, "egressBurst": 12_000}, pod)
    assert reply.status == 0
    assert f"egressBurst is 12000 bit: of {host_end(node, pod)}'s packets" in reply.stderr.decode()
    assert source_seen(pod, None, "10.22.0.1") == "10.22.0.2"       # a short packet fits into the burst


# -- keys -------------------------------------------------------------------------------------------------

def test_ingress_alone_has_no_ifb_and_the_result_stays(node, pod, conf):
    assert node.add({**conf, **INGRESS}, pod) == node.results[pod]
    assert root(host_end(node, pod))["kind"] == "tbf"
    assert not ifbs()


def test_the_ifb_of_egress_is_in_the_result(node, pod, conf):
    result = node.add({**conf, **EGRESS}, pod)
    (name, ifb), = ifbs().items()
    assert name == ifb_of(pod)
    assert result["interfaces"][-1] == {"name": name, "mac": ifb["address"]}
    assert result["interfaces"][:-1] == node.results[pod]["interfaces"]
    assert result["ips"] == node.results[pod]["ips"]
    assert ifb["mtu"] == links()[host_end(node, pod)]["mtu"]
    assert "txqlen" not in ifb
    assert "UP" in ifb["flags"]
    assert root(name)["kind"] == "tbf"
    assert root(host_end(node, pod))["kind"] == "noqueue"
    assert ifb["ifalias"].startswith(f"fastcni {names.hashes('net-a', cid_of(pod), 'eth0')}, net: net-a, if: eth0")


def test_the_ifb_has_the_mtu_of_the_veth(node, pod):
    node.behind(node.conf(*DUAL, mtu=1280), pod)
    node.add(bandwidth(**EGRESS), pod)
    assert ifbs()[ifb_of(pod)]["mtu"] == 1280


@pytest.mark.parametrize("keys", [{}, {"ingressRate": 0, "ingressBurst": 0, "egressRate": 0, "egressBurst": 0},
                                  {"ingressRate": None}, {"runtimeConfig": {"bandwidth": {"egressRate": 0}}},
                                  {"unshapedSubnets": ["10.0.0.0/8"]}], ids=str)
def test_zero_and_an_absent_rate_set_no_limit(node, pod, conf, keys):
    before = node.left(pod)
    result = node.add({**conf, **keys}, pod)
    assert result == node.results[pod]
    assert node.left(pod) == before
    node.check({**conf, **keys}, pod, result)


@pytest.mark.parametrize("top", [{}, {"ingressRate": 0}, {"egressRate": 8000, "egressBurst": 80000}], ids=str)
def test_one_key_in_the_configuration_overrides_the_capability(node, pod, conf, top):
    node.add({**conf, **top, "runtimeConfig": {"bandwidth": {**INGRESS, **EGRESS}}}, pod)
    held = [link for link in (host_end(node, pod), ifb_of(pod)) if link in links() and root(link)["kind"] == "tbf"]
    assert held == ([ifb_of(pod)] if "egressRate" in top else [] if top else [host_end(node, pod), ifb_of(pod)])


@pytest.mark.parametrize("key", ["shapedSubnets", "unshapedSubnets"])
def test_subnets_of_the_configuration_apply_to_rates_of_the_capability(node, pod, conf, key):
    conf["runtimeConfig"] = {"bandwidth": INGRESS}
    node.add({**conf, key: ["10.99.0.0/16"]}, pod)
    found = root(host_end(node, pod))
    assert found["kind"] == "htb"
    assert found["options"]["default"] == ("0" if key == "shapedSubnets" else "0x30")


def test_subnets_of_the_capability_override_those_of_the_configuration(node, pod, conf):
    asked = {**INGRESS, "unshapedSubnets": ["10.99.0.0/16"]}
    node.add({**conf, "shapedSubnets": ["10.98.0.0/16"], "runtimeConfig": {"bandwidth": asked}}, pod)
    assert root(host_end(node, pod))["options"]["default"] == "0x30"
    assert "0a630000/ffff0000 at 12" in run("tc", "filter", "show", "dev", host_end(node, pod))


RATES = "ingressRate is {}, ingressBurst is {}"
BAD = [
    ({"ingressRate": 1000}, "if rate is set, burst must also be set", None),
    ({"ingressBurst": 1000}, "if burst is set, rate must also be set", None),
    ({"ingressRate": 1000, "ingressBurst": 8 * 0xFFFFFFFF}, "burst cannot be more than 4GB", None),
    ({"ingressRate": 7, "ingressBurst": 80}, "8 bits at least", RATES.format(7, 80)),
    ({"ingressRate": 80, "ingressBurst": 7}, "8 bits at least", RATES.format(80, 7)),
    ({"ingressRate": 1 << 40, "ingressBurst": 8000}, "too small for its rate", RATES.format(1 << 40, 8000)),
    ({"ingressRate": 1 << 64, "ingressBurst": 8}, "ingressRate: expected an integer from 0 up to "
     "18446744073709551615, got number 18446744073709551616", ""),
    ({"ingressRate": -1, "ingressBurst": 8}, "ingressRate: expected an integer from 0", ""),
    ({"ingressRate": "1M", "ingressBurst": 8}, 'ingressRate: expected an integer from 0 up to', ""),
    ({"ingressRate": 1.5e6, "ingressBurst": 8}, "got number 1500000", ""),
    ({"runtimeConfig": {"bandwidth": {"egressRate": 9}}}, "if rate is set, burst must also be set", None),
    ({"runtimeConfig": {"bandwidth": []}}, "runtimeConfig.bandwidth: expected an object", ""),
    ({**INGRESS, "shapedSubnets": ["10.0.0.0/8"], "unshapedSubnets": ["::/0"]}, "exclude each other", ""),
    ({**INGRESS, "shapedSubnets": ["10.0.0.0/8", "hello"]}, "shapedSubnets[1]: invalid CIDR address: hello", ""),
    ({**INGRESS, "unshapedSubnets": ["10.0.0.0/33"]}, "unshapedSubnets[0]: invalid CIDR address: 10.0.0.0/33", ""),
    ({**INGRESS, "unshapedSubnets": "10.0.0.0/8"}, "unshapedSubnets: expected a list", ""),
    ({**INGRESS, "unshapedSubnets": 101 * ["10.0.0.0/8"]}, "unshapedSubnets: 101 subnets; there can be 100", ""),
]


@pytest.mark.parametrize("keys, msg, details", BAD, ids=[str(keys)[:60] for keys, *_ in BAD])
def test_add_refuses_bad_values_and_del_succeeds_with_them(node, pod, conf, keys, msg, details):
    before = node.left(pod)
    for command in ("ADD", "CHECK"):
        error = node.refused(command, {**conf, **keys}, pod)
        assert error["code"] == 7
        assert msg in error["msg"]
        if details is None:                     # exactly the reference plugin's text, because programs compare it
            assert error == {"code": 7, "msg": msg}
        else:
            assert details in error.get("details", "")
    assert node.left(pod) == before
    node.delete({**conf, **keys}, pod)


def test_the_largest_number_of_subnets_is_accepted(node, pod, conf):
    conf.update(INGRESS, **EGRESS, unshapedSubnets=[f"2001:db8:{i}::1/128" for i in range(100)])
    result = node.add(conf, pod)
    node.check(conf, pod, result)
