"""The constants in kernel/ equal those in the machine's kernel headers. A C compiler reads the headers."""

import re
import shutil
import subprocess

import pytest

from fastcni.kernel import conntrack, ipset, kinds, nft, nft_elements, nft_rules, tc, uapi, xtables

INCLUDES = """sys/socket.h sys/ioctl.h linux/types.h linux/netlink.h linux/rtnetlink.h linux/if.h linux/if_addr.h
    linux/if_bridge.h linux/if_ether.h linux/if_link.h linux/if_tun.h linux/ip.h linux/fib_rules.h linux/filter.h
    linux/net_namespace.h linux/netconf.h linux/pkt_cls.h linux/pkt_sched.h linux/tc_act/tc_mirred.h linux/veth.h
    linux/netfilter.h linux/netfilter_bridge.h linux/netfilter_ipv4.h linux/netfilter/nfnetlink.h
    linux/netfilter/nf_tables.h linux/netfilter/nf_tables_compat.h linux/netfilter/nfnetlink_conntrack.h
    linux/netfilter/nf_conntrack_common.h linux/netfilter/nf_conntrack_tuple_common.h
    linux/netfilter/ipset/ip_set.h linux/netfilter/xt_set.h
    linux/netfilter_ipv4/ip_tables.h linux/netfilter_ipv6/ip6_tables.h linux/ethtool.h
    linux/genetlink.h linux/icmpv6.h linux/if_packet.h linux/if_tunnel.h linux/inet_diag.h linux/sock_diag.h""".split()
# Names that user-space headers do not have: names of nft, of libnftnl and of the kernel's internal headers, and
# fastcni's own names.
ELSEWHERE = {
    "nft": {"COMMENT_MAX"},
    "nft_elements": {"TYPE_IPADDR", "TYPE_IP6ADDR", "TYPE_ETHERADDR", "TYPE_INET_PROTOCOL", "TYPE_INET_SERVICE",
                     "TYPE_IFNAME", "TYPE_ETHERTYPE", "BITS_OF_A_TYPE"},
    "nft_rules": {"NF_CT_STATE_ESTABLISHED", "NF_CT_STATE_RELATED", "NDISC_ROUTER_SOLICITATION",
                  "NDISC_ROUTER_ADVERTISEMENT", "NDISC_NEIGHBOUR_SOLICITATION", "NDISC_NEIGHBOUR_ADVERTISEMENT",
                  "NDISC_REDIRECT"},
    "conntrack": {"IPCTNL_MSG_CT_NEW", "IPCTNL_MSG_CT_GET", "IPCTNL_MSG_CT_DELETE", "BY_SOURCE", "BY_PROTOCOL",
                  "BY_DESTINATION_PORT"},
    "ipset": {"NFNL_MSG_COMPAT_GET"},
    "tc": {"INGRESS", "MAX_U32", "QUANTUM"},
    "xtables": {"INFO_BYTES", "ENTRIES_BYTES", "HOOK_ENTRY", "UNDERFLOW", "SIZE", "DROP", "MAX_TRIES",
                "ERROR_NAME_BYTES"},
}


def with_subsystem(name, module):
    """Return the C expression for a constant. For a message of nfnetlink, this is the subsystem and the message's
    number."""
    for prefix, subsystem, modules in (("NFT_MSG_", "NFNL_SUBSYS_NFTABLES", (nft, nft_elements, nft_rules)),
                                       ("IPSET_CMD_", "NFNL_SUBSYS_IPSET", (ipset,))):
        if name.startswith(prefix) and module in modules:
            return f"({subsystem} << 8 | {name})"
    return name


@pytest.fixture(scope="module")
def headers(tmp_path_factory):
    """Return a function. It takes {name: C expression} and returns {name: number}, without names that are not in the
    headers."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if not compiler:
        pytest.skip("no C compiler")
    directory = tmp_path_factory.mktemp("headers")
    includes = []
    for name in INCLUDES:
        found = subprocess.run([compiler, "-E", "-"], input=f"#include <{name}>\n", capture_output=True, text=True)
        includes += [f"#include <{name}>\n"] * (not found.returncode)
    if "#include <linux/netlink.h>\n" not in includes:
        pytest.skip("no kernel headers (linux-libc-dev)")

    def numbers(wanted):
        for _ in range(3):              # if a compiler stops after some errors, it has not named all unknown constants
            rows = "".join(f'printf("%s %lld\\n", "{name}", (long long)({c}));\n' for name, c in wanted.items())
            source = "".join(["#include <stdio.h>\n", *includes, "int main(void) {\n", rows, "return 0; }\n"])
            (directory / "numbers.c").write_text(source)
            done = subprocess.run([compiler, "-w", "-fmax-errors=0", "-o", directory / "numbers",
                                   directory / "numbers.c"],
                                  capture_output=True, text=True, env={"LC_ALL": "C", "PATH": "/usr/bin:/bin"})
            if not done.returncode:
                lines = subprocess.run([directory / "numbers"], capture_output=True, text=True, check=True).stdout
                return {name: int(number) for name, number in map(str.split, lines.splitlines())}
            unknown = set(re.findall(r"'(\w+)' undeclared", done.stderr))
            assert unknown, done.stderr[-2000:]
            wanted = {name: c for name, c in wanted.items() if not unknown & set(re.findall(r"\w+", c))}
        raise AssertionError(done.stderr[-2000:])

    return numbers


MODULES = [uapi, nft, nft_elements, nft_rules, ipset, conntrack, tc, xtables]


@pytest.mark.parametrize("module", MODULES, ids=lambda it: it.__name__.rpartition(".")[2])
def test_every_number_is_that_of_the_headers(headers, module):
    constants = {name: value for name, value in vars(module).items()
            if re.fullmatch("[A-Z][A-Z0-9_]+", name) and isinstance(value, int) and not isinstance(value, bool)}
    elsewhere = ELSEWHERE.get(module.__name__.split(".")[-1], set())
    assert elsewhere <= set(constants)
    known = headers({name: with_subsystem(name, module) for name in constants if name not in elsewhere})
    missing = set(constants) - elsewhere - set(known)
    if missing:
        print("not in these headers:", *sorted(missing))
    assert len(missing) <= 3, sorted(missing)           # constants that are newer than these headers
    assert {name: constants[name] & 0xFFFFFFFF for name in known} == {name: known[name] & 0xFFFFFFFF for name in known}


def test_names_of_operational_states_are_in_the_order_of_the_headers(headers):
    names = {f"IF_OPER_{name.upper().replace('-', '')}": at for at, name in enumerate(uapi.OPERSTATES)}
    names["IF_OPER_LOWERLAYERDOWN"] = names.pop("IF_OPER_LOWERLAYERDOWN", uapi.OPERSTATES.index("lower-layer-down"))
    assert headers({name: name for name in names}) == names


@pytest.mark.parametrize("modes, prefix", [
    (kinds.MACVLAN_MODES, "MACVLAN_MODE_"), (kinds.IPVLAN_MODES, "IPVLAN_MODE_"),
])
def test_every_mode_has_its_number(headers, modes, prefix):
    assert headers({mode: f"{prefix}{mode.upper()}" for mode in modes}) == modes


def test_the_layout_of_legacy_tables_is_that_of_the_headers(headers):
    expected = {"sizeof(struct ipt_getinfo)": xtables.INFO_BYTES,
                "sizeof(struct ipt_get_entries)": xtables.ENTRIES_BYTES,
                "__builtin_offsetof(struct ipt_getinfo, hook_entry)": xtables.HOOK_ENTRY,
                "__builtin_offsetof(struct ipt_getinfo, underflow)": xtables.UNDERFLOW,
                "__builtin_offsetof(struct ipt_getinfo, size)": xtables.SIZE,
                "-NF_DROP - 1": xtables.DROP}
    for length, entry in ((4, "ipt_entry"), (16, "ip6t_entry")):
        expected |= {f"sizeof(struct {entry})": xtables.ENTRY_BYTES[length],
                     f"__builtin_offsetof(struct {entry}, target_offset)": xtables.TARGET_OFFSET[length],
                     f"__builtin_offsetof(struct {entry}, next_offset)": xtables.TARGET_OFFSET[length] + 2}
    found = headers({f"number{at}": c for at, c in enumerate(expected)})
    assert [*found.values()] == [*expected.values()]
