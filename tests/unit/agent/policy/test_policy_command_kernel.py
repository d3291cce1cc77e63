"""`fastcni policy test` answers by this node's kernel. The tests compare its answers with real connections."""

import json
import subprocess
import sys

import pytest
from unit.agent.policy.pods import ADDRESSES, TCP
from unit.agent.policy.test_service import DB, WEB_ONLY, Running, allowed, node, running  # noqa: F401 - fixtures

from fastcni.agent.policy.ruleset import TABLE
from fastcni.cli.entry_point import run as run_command
from fastcni.kernel import sysctl
from fastcni.testing.namespaces import run
from fastcni.testing.witnesses import eventually

ALLOWED, DENIED, UNKNOWN, DIFFERS = 0, 1, 2, 3
DENY = {"kind": "NetworkPolicy", "metadata": {"name": "deny"}, "spec": {**DB, "ingress": []}}


def command(words):
    """Run `fastcni` with these arguments, and return its exit status."""
    try:
        return run_command(words)
    except SystemExit as e:
        return e.code


@pytest.fixture
def asked(running, capfd):                                      # noqa: F811
    """Return a function asked(FROM, TO) that runs `fastcni policy test`. It returns (exit status, document or error
    text)."""
    def ask(source, destination="b", *more):
        capfd.readouterr()
        status = command(["policy", "test", source, destination, "80", "--folder", str(running.directory),
                          "--agent-folder", str(running.directory.parent), *more, "--json"])
        out, err = capfd.readouterr()
        return status, json.loads(out) if out else err

    return ask


def differs(done, direction="ingress"):
    """Assert that kernel and policies give different verdicts in an answer. Return the kernel's verdict."""
    status, document = done
    assert status == DIFFERS, document
    one = document["connections"][0]
    assert one["answer"] == "differs" and one["allowed"] is None
    return one[direction]["kernel"]


def test_the_answer_is_the_kernels_while_it_agrees_with_the_policies(running, node, asked):     # noqa: F811
    running.write(WEB_ONLY)
    for name, app in (("a", "web"), ("b", "db"), ("c", "other")):
        running.add(name, app=app)
    assert allowed(node, "a")
    status, document = asked("a")
    assert status == ALLOWED
    assert {one["by"] for one in document["connections"]} == {"kernel"}
    assert [one["ingress"]["kernel"]["text"] for one in document["connections"]] == [
        "allowed by default/web-only ingress[0]"] * 2
    assert [asked(name)[0] for name in ("c", ADDRESSES["d"][0], ADDRESSES["d"][1])] == [DENIED] * 3


def test_a_policy_that_is_not_loaded_is_named(running, node, asked):        # noqa: F811
    """The file is written while no agent runs. Once, the command said "denied"."""
    running.write()
    running.add("b", app="db")
    running.stop()
    running.write(DENY)
    assert allowed(node, "a", "c", "d")
    kernel = differs(asked(ADDRESSES["a"][0]))
    assert kernel == {"allowed": True, "text": f"map in4 of table inet {TABLE} does not have {ADDRESSES['b'][0]}"}
    running.start()
    assert eventually(lambda: asked(ADDRESSES["a"][0])[0] == DENIED)


def test_a_policy_that_no_longer_exists_is_named(running, node, asked):     # noqa: F811
    """The file is removed while no agent runs, so the kernel still has its rules. Once, the command said "allowed"."""
    running.write(DENY)
    running.add("b", app="db")
    assert eventually(lambda: asked("192.0.2.1")[0] == DENIED)
    running.stop()
    running.write()
    assert allowed(node)
    kernel = differs(asked(ADDRESSES["a"][0]))
    assert kernel["allowed"] is False and "drops the packet" in kernel["text"]
    running.start()
    assert eventually(lambda: asked(ADDRESSES["a"][0])[0] == ALLOWED)


@pytest.mark.parametrize("lines, text", [
    ([f"delete table inet {TABLE}"], f"there is no table inet {TABLE}"),
    (["flush ruleset"], "there is no table"),
    ([f"flush chain inet {TABLE} ingress"], f"no rule of chain forward of table inet {TABLE} drops the packet"),
    ([f"flush chain inet {TABLE} forward"], f"no rule of chain forward of table inet {TABLE} drops the packet"),
    ([f"flush chain inet {TABLE} forward", f"delete chain inet {TABLE} forward"], "has no chain forward with a hook"),
    ([f"flush map inet {TABLE} in4", f"flush map inet {TABLE} in6"], "does not have"),
    ([f"insert rule inet {TABLE} egress accept"], "no rule of chain egress"),
    ([f"insert rule inet {TABLE} ingress accept"], "no rule of chain ingress")], ids=lambda each: "; ".join(each)
    if isinstance(each, list) else "")
def test_after_a_flush_the_command_says_that_the_kernel_lets_all_through(running, node, asked, lines, text):   # noqa: F811
    """No agent runs that could write the table again. Once, the command said "denied"."""
    running.write(DENY)
    running.add("b", app="db")
    assert allowed(node)
    running.stop()
    for line in lines:
        run("nft", *line.split())
    assert allowed(node, "a", "c", "d")
    for source in ADDRESSES["a"]:
        kernel = differs(asked(source))
        assert kernel["allowed"] is True
        assert text in kernel["text"] or "insert" in lines[0]
    running.start()


def test_the_rules_of_an_agent_before_the_chain_forward_are_read(running, node, asked):         # noqa: F811
    """The running agent is older than the package. The agent's rules have a base chain for each direction."""
    running.write(DENY)
    running.add("b", app="db")
    running.stop()
    run("nft", "-f", "-", stdin=f"""
        delete table inet {TABLE}
        table inet {TABLE} {{
            chain egress {{ type filter hook forward priority filter; }}
            chain ingress {{ type filter hook forward priority filter + 1; ip daddr {ADDRESSES['b'][0]} drop; }}
        }}
        """)
    assert allowed(node)
    assert asked(ADDRESSES["a"][0])[0] == DENIED
    assert differs(asked(ADDRESSES["a"][1]))["allowed"] is True
    running.start()


@pytest.mark.parametrize("number, name", [(0, "iptables"), (1, "ip6tables")])
def test_packets_that_a_bridge_forwards_past_the_policies_are_named(running, node, asked, number, name):     # noqa: F811
    """No agent runs that could set the sysctl again. Once, the command said "denied"."""
    running.write(DENY)
    for pod, app in (("a", "web"), ("b", "db"), ("d", "other")):
        running.add(pod, app=app)
    assert allowed(node)
    running.stop()
    sources = [ADDRESSES[pod][number] for pod in "ad"]
    tried = {(pod, ADDRESSES["b"][number], TCP, 80) for pod in "ad"}
    assert [asked(source)[0] for source in sources] == [DENIED, DENIED]
    name = f"net.bridge.bridge-nf-call-{name}"
    sysctl.write(name, "0")
    reached = {each for each in tried if each[0] == "a"}
    assert node.reached(tried, reached) == reached
    kernel = differs(asked(sources[0]))
    assert kernel["allowed"] is True
    assert kernel["text"] == (f"packets from port to port of a bridge bypass the policies: {name} is 0; to mend it: "
                              f"modprobe br_netfilter && sysctl -w {name}=1")
    assert asked(sources[1])[0] == DENIED                       # the node routes the packets of pod d
    assert asked(ADDRESSES["a"][1 - number])[0] == DENIED       # the sysctl of the other family is still 1
    run("ip", "link", "set", "br0", "type", "bridge", f"nf_call_{name.rpartition('-')[2]}", "1")
    node.forget_flows()
    assert not node.reached(tried, set())
    assert asked(sources[0])[0] == DENIED  # the bridge's own nf_call_iptables or nf_call_ip6tables is 1
    running.start()


def test_a_rule_that_the_command_does_not_know_is_no_answer(running, asked):    # noqa: F811
    running.write()
    running.add("b", app="db")
    running.stop()
    run("nft", "insert", "rule", "inet", TABLE, "ingress", "meta", "cpu", "9999", "drop")
    status, document = asked("192.0.2.1")
    assert status == UNKNOWN
    assert document["connections"][0]["answer"] == "unknown" and document["connections"][0]["allowed"] is None
    assert "a part that this command does not know: meta key" in document["connections"][0]["ingress"]["kernel"]["text"]
    running.start()


def test_without_the_directory_of_policies_the_kernel_answers(running, node, asked):       # noqa: F811
    """The agent still enforces its policies. Once, the command found no policies, or ended with an error."""
    running.write(WEB_ONLY)
    running.add("a", app="web")
    running.add("b", app="db")
    running.directory.rename(running.directory.with_name("elsewhere"))
    assert allowed(node, "a")
    for source, expected in (("a", ALLOWED), (ADDRESSES["c"][0], DENIED)):
        status, document = asked(source)
        assert status == expected and "No such file" in document["unread"]
        assert document["connections"][0]["by"] == "kernel"
    assert asked("nobody")[0] == UNKNOWN


def test_a_broken_file_leaves_the_answer_to_the_kernel(running, node, asked):   # noqa: F811
    running.write(WEB_ONLY)
    running.add("b", app="db")
    assert allowed(node)
    (running.directory / "broken.json").write_text("{")
    status, document = asked(ADDRESSES["a"][0])
    assert status == DENIED and "broken.json" in document["unread"]


def test_the_table_answers_while_no_agent_runs(running, node, asked):       # noqa: F811
    running.write(WEB_ONLY)
    running.add("a", app="web")
    running.add("b", app="db")
    running.stop()
    assert allowed(node, "a")
    assert [asked("a")[0], asked(ADDRESSES["c"][0])[0]] == [ALLOWED, DENIED]
    running.start()


def test_a_pod_that_is_closed_until_its_rules_are_written_is_denied(running, asked):    # noqa: F811
    running.write(WEB_ONLY)
    running.add("a", app="web")
    running.add("b", app="db")
    running.stop()
    run("nft", "delete element", "inet", TABLE, "in4", f"{{ {ADDRESSES['b'][0]} }}")
    run("nft", "add element", "inet", TABLE, "in4", f"{{ {ADDRESSES['b'][0]} : drop }}")
    kernel = differs(asked("a"))
    assert kernel == {"allowed": False, "text": "chain ingress, to which chain forward leads, drops the packet"}
    running.start()


def test_an_ordinary_user_gets_no_answer_on_a_node_and_learns_why(running, tmp_path):    # noqa: F811
    running.write(WEB_ONLY)
    running.add("b", app="db")
    tmp_path.chmod(0o755)
    running.directory.chmod(0o755)
    done = as_nobody(running, "--agent-folder", str(tmp_path))
    assert done.returncode == UNKNOWN
    assert "run the command as root, or ask only the policies" in done.stdout


def test_where_no_agent_has_run_the_answer_is_that_of_the_policies_and_says_so(running, tmp_path):   # noqa: F811
    running.write(WEB_ONLY, {"kind": "Pod", "metadata": {"name": "b", "labels": {"app": "db"}},
                             "status": {"podIP": ADDRESSES["b"][0]}})
    tmp_path.chmod(0o755)
    running.directory.chmod(0o755)
    done = as_nobody(running, "--agent-folder", str(tmp_path / "none"))
    (one,) = json.loads(done.stdout)["connections"]
    assert (done.returncode, one["by"], one["answer"]) == (DENIED, "policies", "denied")


def as_nobody(running, *more):                                  # noqa: F811
    """Run the command as an ordinary user. The user may read the directory of policies."""
    code = ("import os, sys; from fastcni.cli.entry_point import run; import fastcni.cli.policy, "
            "fastcni.agent.policy.verdicts, fastcni.agent.policy.own_addresses, fastcni.agent.policy.sources.files; "
            "import json, yaml; "
            "os.setgid(65534); os.setuid(65534); sys.exit(run(sys.argv[1:]))")
    for path in (running.directory, *running.directory.iterdir()):
        path.chmod(0o755)
    for path in running.directory.parents[:-2]:
        path.chmod(path.stat().st_mode | 0o055)
    return subprocess.run([sys.executable, "-c", code, "policy", "test", ADDRESSES["a"][0], ADDRESSES["b"][0], "80",
                           "--json", "--folder", str(running.directory), *more],
                          capture_output=True, text=True, check=False)


def test_wrong_arguments_have_the_status_of_no_answer(asked):
    assert asked("a", "b", "--nonsense")[0] == UNKNOWN
    assert asked("nobody", "b")[0] == UNKNOWN
    assert command(["policy", "test"]) == UNKNOWN
    assert command(["policy", "test", "--help"]) == 0
