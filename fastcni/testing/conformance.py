"""Define Conformance: tests that every CNI plugin on fastcni must pass, without root, on a fake node.

    from fastcni.testing import Conformance

    class TestHello(Conformance):
        plugin = "hello"                    # the CNI type
        conf = {"to": ["10.0.0.0/8"]}       # keys of its network configuration; IPAM is host-local
        bad_confs = [{"to": "10.0.0.0/8"}]  # keys that ADD must reject with code 7
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from fastcni import plugins
from fastcni.spec import result as results
from fastcni.spec import version as versions
from fastcni.testing.fake_messages import HOST, POD
from fastcni.testing.fake_node import Node
from fastcni.testing.fake_runtime import POD_PATH, FakeRuntime

MAX_REFUSALS = 500              # the most requests that one ADD may send


class Conformance:
    """The tests that every plugin must pass. Derive a class Test... from it, and set:

    plugin     the CNI type. The plugin's distribution must be installed, or `module` set
    module     "package.module" of a plugin whose distribution is not installed
    conf       keys of a network configuration, which override the keys of FakeRuntime.conf()
    bad_confs  configurations that ADD must reject with code 7, each with a different fault
    asks_kernel  False for a plugin that sends no netlink request; most IPAM plugins send none
    prepare()  makes the objects that the plugin expects on the node
    after      for a chained plugin (KIND = "chained"): keys of the previous plugin's configuration. By default the
               previous plugin is ptp, which gives the pod eth0 with 10.22.0.2/16. Its result is prevResult
    """

    plugin = ""
    module = ""
    conf: Mapping[str, Any] = {}
    bad_confs: Sequence[Mapping[str, Any]] = ()
    asks_kernel = True
    after: Mapping[str, Any] = {"type": "ptp", "ipam": {
        "type": "static", "addresses": [{"address": "10.22.0.2/16", "gateway": "10.22.0.1"}],
        "routes": [{"dst": "0.0.0.0/0"}]}}

    def prepare(self, node: Node) -> None:
        """Make the objects that the plugin expects on a fresh node, for example a master link."""

    def earlier(self) -> dict[str, Any] | None:
        """Run ADD of the previous plugin if the plugin under test is chained. Return the result; otherwise None."""
        if plugins.kind_of(self.plugin) != "chained":
            return None
        status, result = self.runtime("ADD", self.runtime.conf("", **self.after))
        assert status == 0, result
        return result

    @pytest.fixture(autouse=True)
    def _table(self, fake_runtime: FakeRuntime, monkeypatch: pytest.MonkeyPatch) -> None:
        """Add the plugin to the table of plugins, and prepare the node."""
        self.runtime = fake_runtime
        monkeypatch.setattr(plugins, "TABLE", dict(plugins.TABLE))
        if self.module:
            plugins.TABLE[self.plugin] = self.module
        assert self.plugin in plugins.TABLE, f"no installed distribution declares the plugin {self.plugin!r}"
        self.fresh()

    def fresh(self, refuse: int = -1) -> Node:
        """Replace the node by a fresh node, prepare it, and run the previous plugin. Return the node.

        refuse: the number of the plugin's request that the node answers with EIO; -1: none."""
        self.runtime.fresh()
        self.prepare(self.runtime.node)
        self.at_first = self.runtime.node.facts()
        del self.at_first["sysctls"]            # DEL need not restore the pod's sysctls, which end with its namespace
        self.previous = self.earlier()
        self.runtime.node.refuse, self.runtime.node.asked = refuse, 0
        return self.runtime.node

    def network(self, **keys: Any) -> dict[str, Any]:
        """Return the network configuration, with `keys` overriding its keys."""
        conf = self.runtime.conf(self.plugin, **{**self.conf, **keys})
        if self.previous and "prevResult" not in conf:
            spoken = conf["cniVersion"] if conf["cniVersion"] in versions.ALL else versions.CURRENT
            conf["prevResult"] = results.to_version(copy.deepcopy(self.previous), spoken)
        return conf

    def supported(self) -> Sequence[str]:
        """Return the CNI versions that the plugin supports."""
        return getattr(plugins.load(self.plugin), "VERSIONS", versions.ALL)

    def add(self, **keys: Any) -> dict[str, Any]:
        """Run an ADD that must succeed, and return its result."""
        status, result = self.runtime("ADD", self.network(**keys))
        assert status == 0, result
        return result

    def delete_earlier(self) -> None:
        """Run DEL of the previous plugin, which comes after DEL of the plugin under test."""
        if self.previous:
            assert self.runtime("DEL", self.runtime.conf("", **self.after, prevResult=self.previous)) == (0, None)

    def delete(self, previous: Mapping[str, Any] | None = None, **env: str) -> None:
        """Run a DEL that must succeed and print nothing. previous: its prevResult. env: CNI variables to override."""
        assert self.runtime("DEL", self.network(prevResult=previous), **env) == (0, None)

    def assert_nothing_is_left(self, before: dict[str, Any], when: str) -> None:
        """Assert that host-local holds no address, and that the node has the state `before`. A bridge may stay for the
        next pod. when: the end of an error message."""
        bridges = {index for index, link in self.runtime.node.links[HOST].items() if link.kind == "bridge"}
        found = self.runtime.node.facts()
        found["links"] = {link for link in found["links"] if link[2] != "bridge"}
        for name in ("addresses", "routes"):
            found[name] = [item for item in found[name] if item[0] != HOST or item[1] not in bridges]
        assert self.runtime.held() == [], f"addresses are held {when}"
        for name, facts in before.items():
            assert found[name] == facts, f"{name} are left, changed or gone {when}"

    # -- versions and errors -----------------------------------------------------------------------------

    def test_version_lists_the_versions(self) -> None:
        status, document = self.runtime("VERSION", self.network())
        assert status == 0
        assert document["supportedVersions"] == list(self.supported())

    @pytest.mark.parametrize("version", versions.ALL)
    def test_a_result_has_the_shape_of_the_configurations_version(self, version: str) -> None:
        status, document = self.runtime("ADD", self.network(cniVersion=version))
        if version not in self.supported():
            assert (status, document["code"]) == (1, 1), "a version that VERSION does not list has to be refused"
        elif status and results.FAMILY[version] == 0:
            # version 0.2.0 cannot express a result without an address
            assert "no valid IP addresses" in document["msg"], document
        else:
            assert status == 0, document
            assert document["cniVersion"] == version
            results.create(version, document)

    def test_an_unknown_version_is_refused(self) -> None:
        status, document = self.runtime("ADD", self.network(cniVersion="9.9.9"))
        assert (status, document["code"]) == (1, 1)

    def test_a_bad_configuration_is_refused_before_anything_is_changed(self) -> None:
        for keys in self.bad_confs:
            before = self.fresh().facts()
            status, document = self.runtime("ADD", self.network(**keys))
            assert (status, document["code"]) == (1, 7), f"{keys}: {document}"
            assert self.runtime.node.facts() == before, f"{keys} changed something"
            assert self.runtime.held() == []

    def test_an_add_without_its_namespace_fails_and_leaves_nothing(self) -> None:
        before = self.runtime.node.facts()
        self.runtime.pods.clear()
        status, document = self.runtime("ADD", self.network())
        if status or plugins.kind_of(self.plugin) == "interface":            # other plugins may not need the namespace
            assert (status, document["code"]) == (1, 8)
            self.assert_nothing_is_left(before, "after an ADD without a namespace")

    @pytest.mark.parametrize("command", ["ADD", "CHECK", "DEL", "GC", "STATUS"])
    def test_nothing_but_one_document_is_printed(self, command: str, capfd: pytest.CaptureFixture[str]) -> None:
        """fastcni prints the document, so the plugin itself must not write to stdout."""
        keys = {} if command == "ADD" else {"prevResult": self.add()}
        status, document = self.runtime(command, self.network(**keys, **{"cni.dev/valid-attachments": []}))
        assert capfd.readouterr().out == ""
        if command == "ADD" or status:
            assert isinstance(document, dict)
        else:
            assert document is None
        if status:
            assert document["code"] and document["msg"], document
            assert "this is a fault of" not in document.get("details", ""), document

    # -- the rollback ------------------------------------------------------------------------------------

    def test_an_add_is_rolled_back_at_each_refused_request(self) -> None:
        """For each netlink request of the ADD, run an ADD in which the kernel answers this request with EIO. If the ADD
        fails, the node is as before and DEL succeeds. If the ADD succeeds without the request, DEL removes
        everything."""
        for position in range(MAX_REFUSALS):
            before = self.fresh(refuse=position).facts()
            status, document = self.runtime("ADD", self.network())
            when = f"after the kernel has refused request {position}"
            if self.runtime.node.asked <= position:
                assert status == 0, document
                assert position or not self.asks_kernel, "the ADD sent no request: is asks_kernel = False missing?"
                return
            if status:
                assert document["code"] and document["msg"], document
                assert "this is a fault of" not in document.get("details", ""), document
                assert "while undoing" not in document.get("details", ""), document
                self.assert_nothing_is_left(before, when)
            self.delete()
            self.delete_earlier()
            self.assert_nothing_is_left(self.at_first, f"{when}, and after DEL")
        pytest.fail(f"an ADD of more than {MAX_REFUSALS} requests")

    def test_an_add_after_a_refused_one_succeeds(self) -> None:
        self.fresh(refuse=0)
        status, _ = self.runtime("ADD", self.network())
        if status:
            self.add()

    # -- DEL ---------------------------------------------------------------------------------------------

    def test_del_undoes_add(self) -> None:
        self.delete(self.add())
        self.delete_earlier()
        self.assert_nothing_is_left(self.at_first, "after DEL")

    def test_del_twice_succeeds(self) -> None:
        result = self.add()
        self.delete(result)
        self.delete(result)
        self.delete_earlier()
        self.assert_nothing_is_left(self.at_first, "after the second DEL")

    def test_del_without_an_add_succeeds(self) -> None:
        self.delete()

    def test_del_without_prev_result_undoes_add(self) -> None:
        self.add()
        self.delete()
        self.delete_earlier()
        self.assert_nothing_is_left(self.at_first, "after DEL without prevResult")

    @pytest.mark.parametrize("path", [POD_PATH, ""], ids=["netns deleted", "no CNI_NETNS"])
    def test_del_without_the_namespace_succeeds(self, path: str) -> None:
        """Before this DEL, the kernel has deleted the namespace, its links, and the host's ends of veth pairs."""
        result, node = self.add(), self.runtime.node
        for link in list(node.links[POD].values()):
            node.remove(POD, link)
        self.runtime.pods.clear()
        self.delete(result, CNI_NETNS=path)
        assert self.runtime.held() == []
        assert node.firewall.owned() == set(), "elements are left in the firewall"

    # -- CHECK, GC, STATUS -------------------------------------------------------------------------------

    def test_check_succeeds_after_add(self) -> None:
        status, document = self.runtime("CHECK", self.network(prevResult=self.add()))
        assert (status, document) == (0, None)

    def test_check_fails_when_the_link_is_gone(self) -> None:
        result, node = self.add(), self.runtime.node
        link = node.link("eth0", POD)
        if link and not self.previous:          # other plugins make no link CNI_IFNAME
            node.remove(POD, link)
            status, document = self.runtime("CHECK", self.network(prevResult=result))
            assert status == 1, "CHECK does not see that the pod's link is gone"
            assert document["code"] and document["msg"]

    def test_gc_keeps_what_belongs_to_a_valid_attachment(self) -> None:
        self.add()
        facts, held = self.runtime.node.facts(), self.runtime.held()
        valid = {"cni.dev/valid-attachments": [{"containerID": "c1", "ifname": "eth0"}]}
        assert self.runtime("GC", self.network(**valid)) == (0, None)
        assert (self.runtime.node.facts(), self.runtime.held()) == (facts, held)

    def test_gc_frees_the_addresses_of_an_attachment_that_is_gone(self) -> None:
        self.add()
        if self.runtime.held() and hasattr(plugins.load(self.plugin), "gc"):
            self.runtime.pods.clear()
            assert self.runtime("GC", self.network(**{"cni.dev/valid-attachments": []})) == (0, None)
            assert self.runtime.held() == []

    def test_status_succeeds_or_says_why_add_would_fail(self) -> None:
        status, document = self.runtime("STATUS", self.network())
        assert status == 0 or document["code"] in (50, 51), document
