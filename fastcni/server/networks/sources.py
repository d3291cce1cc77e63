"""Keep one source of pods and network definitions for each kubeconfig and cniDir that configurations name."""

from __future__ import annotations

import os
from threading import Lock

from fastcni.kit.networks import chosen
from fastcni.kit.networks.keys import read_keys
from fastcni.kit.networks.network import RUNS_NETWORKS
from fastcni.server.networks.hot_plug import HotPlug
from fastcni.server.networks.watched import WatchedObjects
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable
    from typing import Any

    from fastcni.daemon.log import Logger
    from fastcni.kit.networks.api_objects import ApiObjects
    from fastcni.server.records.ended import Ended
    from fastcni.server.requests.acceptor import Acceptor


class NetworkSources:
    """The sources, opened when a configuration needs them. home: a descriptor of the server's network namespace.
    configured(): returns the decoded plugin configurations of this node. The sources of these configurations start
    their watches with the server, so that the first pod does not wait for a list."""

    def __init__(self, home: int, log: Logger, configured: Callable[[], Iterable[Any]] = tuple, node: str = "") -> None:
        self.home, self.log, self.configured, self.lock = home, log, configured, Lock()
        self.node = node or os.environ.get("NODE_NAME") or os.uname().nodename.lower()
        self.sources: dict[Hashable, WatchedObjects] = {}
        self.hot_plugs: dict[Hashable, HotPlug] = {}
        self.acceptor: Acceptor | None = None
        self.stopping = False

    def attach(self, acceptor: Acceptor) -> None:
        """Send the server's own requests to this acceptor, and receive its records of ended requests."""
        self.acceptor = acceptor

    def note(self, ended: Ended) -> None:
        """Compare the pods if an ADD has ended. note() receives the records of ended requests."""
        if ended.call.command == "ADD" and ended.call.message.plugin in RUNS_NETWORKS:
            for hot_plug in list(self.hot_plugs.values()):
                hot_plug.compare_all()

    def objects(self, key: Hashable, open_objects: Callable[[], ApiObjects]) -> Any:
        """Return the source of a configuration. open_objects() opens the source once, for all requests."""
        with self.lock:
            if key not in self.sources:
                self.sources[key] = WatchedObjects(open_objects(), self.node, self.log, self.home)
                if not self.stopping:
                    self.sources[key].start()
            return self.sources[key]

    def learn(self) -> None:
        """Start the watches and the hot plug that the node's current configurations need. End the hot plug that these
        configurations no longer need."""
        wanted: set[Hashable] = set()           # the keys of sources with hot plug
        try:
            for values in self.configured():
                if isinstance(values, dict) and values.get("type") in RUNS_NETWORKS:
                    self._learn(Section(values), wanted)
        except Exception:
            self.log.exception("server_fault")
            return
        with self.lock:
            ended = [self.hot_plugs.pop(key) for key in self.hot_plugs.keys() - wanted]
        for hot_plug in ended:
            hot_plug.stop()

    def _learn(self, conf: Section, wanted: set[Hashable]) -> None:
        try:
            keys = read_keys(conf)
            if keys.kubeconfig:
                key, open_objects = chosen.source_of(keys)
                source = self.objects(key, open_objects)
                if keys.hot_plug or not conf.section("capabilities").has(chosen.ANNOTATIONS):
                    source.watch_pods()
                if keys.hot_plug and self.acceptor:
                    self._hot_plug(key, source, conf.values, self.acceptor)
                    wanted.add(key)
        except CniError:                # requests report the error
            return

    def _hot_plug(self, key: Hashable, source: WatchedObjects, conf: dict[str, Any], acceptor: Acceptor) -> None:
        with self.lock:
            if key in self.hot_plugs:
                self.hot_plugs[key].conf = conf
            elif not self.stopping:
                if self.note not in acceptor.records.receivers:
                    acceptor.records.receivers.append(self.note)
                self.hot_plugs[key] = HotPlug(source, conf, acceptor, self.log, self.home)
                self.hot_plugs[key].start()

    def keep(self) -> None:
        """Read the configurations again, start threads that Python could not start, and write pod statuses that the
        server could not write."""
        if self.sources:
            self.learn()
        for source in list(self.sources.values()):
            if not self.stopping:
                source.start()
                source.keep()
        for hot_plug in list(self.hot_plugs.values()):
            hot_plug.start()
            hot_plug.compare_all()              # a one-shot ADD leaves no record in this server

    def stop(self) -> None:
        self.stopping = True
        for hot_plug in list(self.hot_plugs.values()):
            hot_plug.stop()
        for source in list(self.sources.values()):
            source.close()

    def describe(self) -> list[dict[str, Any]]:
        """Return a part of the status document: one entry for each source."""
        return [source.describe() for source in list(self.sources.values())]
