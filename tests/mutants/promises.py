"""Run the tests that docs/reliability-promises.md names, each against a mutant of its promise.

The test that a promise names must fail when fastcni breaks the promise. PROMISES has one small edit that breaks each
promise. tests/project/test_promises.py runs no mutant. It checks that the page still names the test and that the module
still has the text to replace.
"""

import time
from dataclasses import dataclass

from mutants import tree

SECONDS = 240                   # limit for one test; the slowest takes some 30 s on an idle machine


@dataclass(frozen=True)
class Promise:
    """A promise and the edit that breaks it. test: the test's name on the page, below tests/. module: a path below
    fastcni/. text: a text that occurs once in the module. broken: the text that replaces `text`."""

    test: str
    module: str
    text: str
    broken: str

    @property
    def path(self):
        return f"fastcni/{self.module}"

    def mutant(self):
        """Return the module's source with `broken` in place of `text`. Raises ValueError if `text` does not occur
        exactly once."""
        source = (tree.ROOT / self.path).read_text()
        if source.count(self.text) != 1 or self.text == self.broken:
            raise ValueError(f"{self.path} contains {self.text!r} {source.count(self.text)} times")
        return source.replace(self.text, self.broken)


PROMISES = [
    Promise("unit/runtime/test_pod_damaged.py::test_the_network_of_a_damaged_file_is_detached_by_the_configuration_of_its_name",
            "runtime/pod_networks.py", " + self.cni.cache.damaged(container_id)", ""),
    Promise("unit/runtime/test_pod_damaged.py::test_a_damaged_file_whose_network_is_unknown_fails_each_teardown_until_it_is_removed",
            "runtime/pod_networks.py", "            failed += lost\n", ""),
    Promise("unit/plugins/test_multus_files.py::test_a_damaged_list_and_damaged_results_leave_nothing_without_the_annotation",
            "kit/networks/state.py", "        if owner:\n", "        if False:\n"),
    Promise("unit/plugins/test_multus_files.py::test_a_damaged_result_whose_network_is_unknown_fails_the_del_and_the_check",
            "kit/networks/lost.py", "doubts.append((reject, it, NO_DEFINITION))", "pass"),
    Promise("unit/plugins/test_multus_files.py::test_a_damaged_list_and_a_missing_result_fail_the_check_and_the_del",
            "kit/networks/lost.py", "    elif links:\n", "    elif False:\n"),
    Promise("unit/plugins/test_plugins.py::test_an_add_with_any_refused_request_leaves_nothing", "kit/call/undo.py",
            "in reversed(self.steps):", "in ():"),
    Promise("unit/server/test_waits.py::test_an_add_whose_answer_cannot_be_delivered_is_rolled_back",
            "server/requests/workers.py",
            "            self.unsent = True\n            raise\n",
            "            self.unsent = True\n            return\n"),
    Promise("project/test_launcher.py::test_an_add_whose_result_cannot_be_written_is_rolled_back",
            "launcher/one_shot.py", 'raise OSError(error.errno, error.strerror, "stdout") from None', "del error"),
    Promise("unit/plugins/test_lost_answers.py::test_an_add_whose_answer_cannot_be_read_leaves_nothing",
            "kit/call/undo.py", " and not isinstance(error, AnswerLost)", ""),
    Promise("unit/plugins/test_plugins.py::test_the_next_del_completes_a_del_with_a_refused_request",
            "plugins/bridge.py", "every(*steps_of(reversed(options)",
            "every(*[] if not found else steps_of(reversed(options)"),
    Promise("unit/plugins/test_lenient_del.py::test_del_fails_for_no_bad_value", "kit/call/conf.py",
            'ENDINGS = ("DEL", "GC")', "ENDINGS = ()"),
    Promise("unit/server/test_request_queue.py::test_a_network_with_a_quarter_of_the_workers_stuck_gets_no_more",
            "server/requests/slots.py", "return stuck if stuck >=", "return 0 if stuck >="),
    Promise("unit/plugins/test_multus_files.py::test_gc_keeps_pods_that_the_runtime_or_another_multus_added_to_the_network",
            "plugins/multus.py", "objects(valid | others.keys())", "objects(valid)"),
    Promise("unit/node/test_multus_caches.py::test_a_gc_keeps_the_pods_that_the_other_network_added_to_the_same_network",
            "kit/networks/other_caches.py", "if verdict != GONE", "if False"),
    Promise("unit/server/test_waits.py::test_hanging_programs_delay_no_other_network", "server/requests/slots.py",
            "left += min(len(hanging), MAX_HANGING * self.workers)", "left += 0"),
    Promise("unit/server/test_waits.py::test_a_held_lock_of_one_network_delays_no_other", "server/requests/slots.py",
            "left += min(len(hanging), MAX_HANGING * self.workers)", "left += 0"),
    Promise("unit/server/test_request_queue.py::test_one_light_request_runs_beside_those_that_the_workers_run",
            "server/requests/slots.py", "left > -RESERVED", "left > 0"),
    Promise("unit/server/test_waits.py::test_a_del_is_answered_while_adds_keep_coming",
            "server/requests/request_queue.py", "OVERTAKEN_S = 1.0", "OVERTAKEN_S = 1e9"),
    Promise("unit/server/test_waits.py::test_a_caller_that_leaves_ends_its_program_and_frees_its_attachment",
            "kernel/waiting.py", "return -1 if here.rolling_back else here.request.caller", "return -1"),
    Promise("unit/server/test_namespaces.py::test_a_declined_request_leaves_no_descriptor_of_the_pods_namespace",
            "server/requests/workers.py", "            message.close()\n", ""),
    Promise("unit/server/test_namespaces.py::test_a_namespace_can_be_unmounted_as_soon_as_its_add_is_answered",
            "handle.py", "            req.leave_mount()\n", ""),
    Promise("unit/server/test_workers.py::test_fewer_threads_than_wanted_are_a_warning_and_started_later",
            "server/requests/workers.py",
            "self._start_one():\n            continue\n\n    def stop", "False:\n            continue\n\n    def stop"),
    Promise("unit/server/test_log.py::test_a_caller_cannot_flood_the_log", "daemon/log.py",
            "if now < due:", "if False:"),
    Promise("unit/server/test_stopped.py::test_a_continued_server_abandons_the_request_it_was_working_on",
            "server/requests/workers.py", "begin_request(conn.fd, REQUEST_S - queued)", "begin_request(-1, 1e9)"),
    Promise("unit/server/test_replaying.py::test_a_replay_in_another_namespace_installs_nothing_there",
            "runtime/restore.py", "if is_linked(pod, mode) and has_host_link(attachment, mode) else ELSEWHERE, why",
            ", why"),
    Promise("unit/server/test_restoring.py::test_a_one_shot_del_at_any_moment_after_a_flush_leaves_nothing",
            "server/restoring/namespace_watch.py",
            "            for generation, mark in deletions.read(self.deletions):\n"
            "                self.mirror.note_deletion(mark, generation)\n",
            "            deletions.read(self.deletions)\n"),
    Promise("unit/server/test_restoring.py::test_a_one_shot_del_at_any_moment_after_a_flush_leaves_nothing",
            "server/restoring/table_mirror.py",
            "added, self.added_by_us = self.added_by_us, []", "added, self.added_by_us = [], []"),
    Promise("unit/server/test_restoring.py::test_a_pod_deleted_between_flush_and_restore_is_not_restored",
            "server/restoring/table_mirror.py",
            "store.restore_lost(sock, present, gone, self.deletions)", "store.restore_lost(sock, present, gone, {})"),
    Promise("unit/runtime/test_cli.py::test_gc_deletes_the_dead_and_keeps_the_living", "kernel/presence.py",
            'return ALIVE, f"{path} exists"', 'return GONE, f"{path} exists"'),
    Promise("unit/agent/policy/test_service.py::test_a_pod_is_protected_when_its_add_answers", "agent/policy/engine.py",
            "        self.compiler.expect(attachment)\n", ""),
    Promise("unit/agent/policy/test_cut.py::test_a_restricted_pod_is_closed_until_its_rules_are_written",
            "agent/policy/engine.py", "            self.rules.drop(elements)\n", "            pass\n"),
    Promise("unit/agent/policy/test_cut.py::test_a_tightened_policy_cuts_what_it_no_longer_allows_and_nothing_else",
            "agent/policy/engine.py", "        cut.delete(self.rules.sock, found)\n", ""),
    Promise("unit/agent/policy/test_cut.py::test_a_tightened_policy_cuts_what_it_no_longer_allows_and_nothing_else",
            "agent/policy/cut.py", "    found = [flow for flow in flows if not decide.allows(flow)]\n",
            "    return list(flows)\n"),
    Promise("unit/agent/policy/test_kernel.py::test_random_policies", "agent/policy/compile.py",
            "                for key in members:\n", "                for key in ():\n"),
    Promise("unit/agent/policy/test_in_kernel.py::test_the_kernels_table_decides_as_the_policies_do",
            "agent/policy/in_kernel/decisions.py",
            "return Decision(outcome.code == nft.NF_ACCEPT", "return Decision(outcome.code != nft.NF_ACCEPT"),
    Promise("unit/agent/policy/test_service.py::test_policies_stay_while_their_directory_is_away",
            "agent/policy/sources/files.py", "            return set()\n        self._missing",
            "            there = set()\n        self._missing"),
    Promise("unit/agent/policy/test_document_file.py::test_a_file_that_was_broken_while_the_agent_was_down_opens_no_pod",
            "agent/policy/sources/document_file.py", "if said not in (expected,", "if True or said in (expected,"),
    Promise("unit/agent/policy/test_document_file.py::test_what_nobody_can_read_any_longer_stays_in_the_kernel",
            "agent/policy/sources/files.py", "if self.content.unsure:", "if not self.content.unsure and 0:"),
    Promise("unit/agent/policy/test_from_files.py::test_a_file_that_was_cut_off_takes_no_policy_away",
            "agent/policy/sources/parse.py", "if not number and not SEPARATOR.search(data):", "if not data and 0:"),
    Promise("unit/agent/policy/test_owned_tables.py::test_an_older_kernel_lets_others_change_the_table_and_that_is_undone",
            "agent/policy/service.py", "self.stale or nft.read_table_name(payload) in", "self.stale or '' in"),
    Promise("unit/agent/policy/test_attached.py::test_the_labels_of_the_latest_add_of_a_name_count",
            "agent/policy/attached.py", "there[-1].labels", "there[0].labels"),
    Promise("unit/agent/test_masquerade.py::test_a_rule_that_another_program_replaces_is_written_again",
            "agent/nft_table.py", "and nft.read_table_name(payload) == self._place:", "and '' == self._place:"),
    *(Promise("unit/agent/test_keeper.py::test_what_another_program_removes_is_back", "agent/keeper.py", text, broken)
      for text, broken in (
          ("self.changed = rtnl.is_of_link(payload) and (", "self.changed = False and ("),
          ("self.changed = self._is_other_neighbour(kind, payload)", "self.changed = False"),
          ("self.changed = self._is_other_route(kind, payload)", "self.changed = False"),
          ("self.changed = rtnl.Address(payload).index in self.indexes.values()", "self.changed = False"),
          ("kind == uapi.RTM_DELROUTE or wanted", "wanted"),
          ("kept = kind == uapi.RTM_NEWNEIGH and ", "kept = "))),
    Promise("unit/kit/ipam/cluster/test_away.py::"
            "test_no_address_is_given_while_the_configuration_names_another_store_that_is_away",
            "kit/ipam/cluster/claims.py", "if other or not known:", "if not known:"),
    Promise("unit/kit/ipam/cluster/test_away.py::"
            "test_the_blocks_of_a_former_store_are_claimed_in_the_next_one_before_they_are_given",
            "kit/ipam/cluster/allocate.py", "    if other_store(space):\n", "    if False:\n"),
]


def campaign(only):
    """Run each promise's test, first with unchanged fastcni, then with the promise broken. Return the exit status."""
    checkout, wrong = tree.Tree(), 0
    for promise in PROMISES:
        if only and not any(part in promise.test for part in only):
            continue
        began, name = time.monotonic(), f"tests/{promise.test}"
        source = (tree.ROOT / promise.path).read_text()
        whole = checkout.run(promise.path, source, [name], SECONDS)
        broken = checkout.run(promise.path, promise.mutant(), [name], SECONDS) if whole == 0 else None
        verdict = ("fails with the promise broken" if whole == 0 and broken in (1, 2) else
                   "HOLDS NOTHING: it passes with the promise broken" if whole == 0 and broken == 0 else
                   f"did not run: status {whole}, broken {broken}")
        wrong += not verdict.startswith("fails")
        print(f"{promise.test} ({promise.module}): {verdict}, {time.monotonic() - began:.0f} s", flush=True)
    print(f"{wrong} tests do not hold their promise")
    return int(wrong > 0)
