"""Threads of a program that uses fastcni.runtime call plugins.load() at the same time."""

import sys
import threading

from fastcni import plugins
from fastcni.testing.witnesses import eventually


def test_a_plugin_that_another_thread_imports_is_waited_for(tmp_path, monkeypatch):
    """While one thread imports a plugin, sys.modules already has the incomplete module. Another thread must wait for
    the complete one."""
    (tmp_path / "slow_plugin.py").write_text("import threading\nbegun, go_on = threading.Event(), threading.Event()\n"
                                             "begun.set()\nassert go_on.wait(30)\ndef add(): ...\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(plugins.TABLE, "slow", "slow_plugin")
    monkeypatch.setitem(plugins.BUILT_IN, "slow", "slow_plugin")
    found = []
    threads = [threading.Thread(target=lambda: found.append(hasattr(plugins.load("slow"), "add"))) for _ in range(2)]
    threads[0].start()
    eventually(lambda: hasattr(sys.modules.get("slow_plugin"), "go_on"))
    module = sys.modules["slow_plugin"]
    threads[1].start()
    threads[1].join(0.2)
    waited = threads[1].is_alive()
    module.go_on.set()
    for thread in threads:
        thread.join(30)
    del sys.modules["slow_plugin"]
    assert waited
    assert found == [True, True]
