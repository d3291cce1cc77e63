"""plugins.load() in several threads at once, as programs that use fastcni.runtime may call it."""

import sys
import threading

from fastcni import plugins
from fastcni.testing.witnesses import eventually


def test_a_plugin_that_another_thread_imports_is_waited_for(tmp_path, monkeypatch):
    """sys.modules has a module while it is imported, with the part that has run."""
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
