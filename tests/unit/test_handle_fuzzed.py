"""handle() gives one answer to any input, and no input causes a fault of the plugin."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from unit.stub_plugin import call, error

from fastcni.handle import handle

pytestmark = pytest.mark.usefixtures("fake_sockets")

# These values pass the first checks, so handle() reads more of the input before it rejects it.
PLAUSIBLE = st.sampled_from(["", "net", "10.22.0.0/16", "10.22.0.9", "10.22.0.9/24", "fd00::/64", "0.0.0.0/0", "1.0.0",
                          "host-local", "static", "0a:58:0a:16:00:05", "\0", -1, 0, 1, 4095, 1 << 31, 1 << 63])
NAMES = st.sampled_from(["subnet", "dst", "gw", "address", "gateway", "mac", "ips", "ipRanges", "cni", "type", "name",
                         "interfaces", "routes", "minID", "maxID", "id", "nameservers", "mtu", "containerID"])
JSON = st.recursive(PLAUSIBLE | st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
                    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(NAMES | st.text(), inner, max_size=4),
                    max_leaves=10)
KEYS = ("cniVersion", "name", "bridge", "isGateway", "isDefaultGateway", "forceAddress", "mtu", "hairpinMode",
        "promiscMode", "vlan", "vlanTrunk", "macspoofchk", "ipMasq", "ipMasqBackend", "dns", "ipam", "args",
        "runtimeConfig", "prevResult", "cni.dev/valid-attachments", "enabledad", "disableContainerInterface")
IPAM_KEYS = ("type", "subnet", "rangeStart", "rangeEnd", "gateway", "ranges", "routes", "addresses", "dns")
COMMANDS = st.sampled_from(["ADD", "DEL", "CHECK", "GC", "STATUS", "VERSION"])
SETTINGS = settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def check_answer(reply):
    """Assert that a reply has at most one JSON document, and that its status fits the document."""
    if reply.status:
        code, msg, details = error(reply)
        assert msg
        assert "this is a fault of" not in (details or ""), (code, msg, details)
    elif reply.stdout:
        json.loads(reply.stdout)


@SETTINGS
@given(COMMANDS, st.binary(max_size=60) | JSON.map(lambda value: json.dumps(value).encode()))
def test_any_stdin_gets_one_answer(plugin, command, stdin):
    check_answer(call(command, stdin))


@pytest.mark.parametrize("kind", ["bridge", "ptp", "loopback", "host-local", "static"])
def test_any_value_of_any_key_gets_one_answer(calls, kind):
    """A fake node answers the netlink messages of the requests that the plugin accepts."""
    @SETTINGS
    @given(COMMANDS, st.dictionaries(st.sampled_from(KEYS), JSON, max_size=3),
           st.dictionaries(st.sampled_from(IPAM_KEYS), JSON, max_size=2))
    def fuzz(command, keys, ipam):
        calls.fresh()
        conf = calls.conf(kind, **keys)
        if isinstance(conf["ipam"], dict):      # the addresses must always be in the test's own directory
            conf["ipam"] = {**conf["ipam"], **ipam, "dataDir": str(calls.data)}
        env = {"CNI_COMMAND": command, "CNI_CONTAINERID": "c1", "CNI_NETNS": next(iter(calls.pods)),
               "CNI_IFNAME": "eth0", "CNI_PATH": "/nowhere"}
        check_answer(handle(kind, env, json.dumps(conf).encode(), calls.mode()))

    fuzz()
