"""A mode for requests in the test's thread, and a trace of their netlink messages."""

import logging
import os
from threading import Thread

from fastcni.kernel import netns, waiting
from fastcni.kit.call.mode import Mode
from fastcni.server.cluster.pods import blind
from fastcni.server.cluster.upkeep import ClusterUpkeep
from fastcni.server.networks.sources import NetworkSources
from fastcni.server.requests.facts import Facts
from fastcni.server.requests.grouped_deletes import GroupedDeletes
from fastcni.server.requests.mode import WarmMode


class WarmInProcess(WarmMode):
    """The server's mode, for the calling thread's namespace. It needs neither a server nor a launcher. release() closes
    it."""

    decode, open_netns, deliver = Mode.decode, Mode.open_netns, Mode.deliver

    def __init__(self):
        home = netns.open_own()
        cluster = ClusterUpkeep(home, logging.getLogger("test"), blind())
        networks = NetworkSources(home, cluster.log)
        self.deletes = GroupedDeletes(in_thread)
        super().__init__(home, Facts(), self.deletes, in_thread, cluster, networks)

    def find_plugin(self, name, directories, own):
        return "" if own else super().find_plugin(name, directories, own)

    def release(self):
        self.close()
        self.facts.close()
        self.deletes.close()
        os.close(self.home)


def in_thread(fn, *args):
    Thread(target=fn, args=args, daemon=True).start()


def show_wire(monkeypatch, show):
    """Make this thread call show(">" or "<", bytes) for each netlink datagram that it sends or receives."""
    request = waiting.Request()
    request.show = show
    monkeypatch.setattr(waiting.here, "request", request)
