"""Attach and detach networks of running pods whose annotation has changed, if the configuration has `hotPlug`.

A thread compares each pod's annotation with the files of its containers: when the watch of pods reports a change, when
an ADD has ended, and after a restart of the server. For a difference, the server sends itself a request UPDATE. The
queue never runs an UPDATE at the same time as another request of the same attachment.
"""

from __future__ import annotations

import select
from threading import Event, Lock, Thread
from time import monotonic

from fastcni.daemon.background import enter_home, start_thread
from fastcni.handle import UPDATE
from fastcni.kit.networks.changes import make_plan
from fastcni.kit.networks.chosen import ANNOTATIONS
from fastcni.kit.networks.keys import BIN_DIR, read_keys
from fastcni.kit.networks.selection import NETWORKS, read_networks
from fastcni.kit.networks.state import State
from fastcni.server.networks.containers import Containers
from fastcni.server.requests import protocol
from fastcni.spec import json
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from socket import socket
    from typing import Any

    from fastcni.clients.kubernetes_watch import Key
    from fastcni.daemon.log import Logger
    from fastcni.kit.networks.api_objects import Pod
    from fastcni.server.networks.containers import CachedAttachment
    from fastcni.server.networks.watched import WatchedObjects
    from fastcni.server.requests.acceptor import Acceptor

SETTLE_S = 0.1                  # seconds from a change to the comparison: an annotation is often changed twice
FIRST_RETRY_S, MAX_RETRY_S = 1.0, 60.0
POLL_MS = 200                   # milliseconds between two checks whether a DEL waits for the end of an UPDATE
LIMIT_S = 100.0                 # limit of one UPDATE in seconds, longer than the deadline of a request
STOP_S = 1.0


class HotPlug:
    """Hot plug for the pods of one source. conf: a configuration of multus with this kubeconfig and cniDir. The owner
    may replace `conf`."""

    def __init__(self, source: WatchedObjects, conf: dict[str, Any], acceptor: Acceptor, log: Logger,
                 home: int) -> None:
        self.source, self.conf, self.acceptor, self.log, self.home = source, conf, acceptor, log, home
        self.containers = Containers(read_keys(Section(conf)).cni_dir)
        self.lock, self.wake, self.stopping = Lock(), Event(), Event()
        self.due: dict[Key, float] = {}                 # {pod: when to compare the pod, by monotonic()}
        self.handled: dict[Key, tuple[str, str]] = {}   # (uid, annotation) of pods that have the annotation's networks
        self.delays: dict[Key, float] = {}              # {pod: seconds before the last retry of a failed UPDATE}
        self.thread: Thread | None = None
        source.pods.changed = self.note

    # Any thread

    def note(self, key: Key, pod: Pod | None) -> None:
        """Record the state of a pod that the watch reports; None: the pod no longer exists."""
        if pod is None:
            with self.lock:
                self.due.pop(key, None)
            self.handled.pop(key, None)
            self.delays.pop(key, None)
        elif self.handled.get(key) != state_of(pod):
            self._compare_later(key, SETTLE_S)

    def compare_all(self) -> None:
        """Compare the pods whose annotation is not handled yet, for example because the pod had no container before
        its ADD."""
        for key, pod in list(self.source.pods.found.items()):
            if key not in self.due and self.handled.get(key) != state_of(pod):
                self._compare_later(key, SETTLE_S)

    def _compare_later(self, key: Key, seconds: float) -> None:
        with self.lock:
            self.due[key] = monotonic() + seconds
        self.wake.set()

    def start(self) -> None:
        """Start the thread unless it runs. Call start() periodically, because Python cannot always start a thread."""
        if not self.stopping.is_set() and not (self.thread and self.thread.is_alive()):
            thread = Thread(target=self._run, name="hot-plug", daemon=True)
            self.thread = thread if start_thread(thread, self.log) else None

    def stop(self) -> None:
        self.source.pods.changed = lambda key, pod: None
        self.stopping.set()
        self.wake.set()
        if self.thread:
            self.thread.join(STOP_S)

    # The thread

    def _run(self) -> None:
        if not enter_home(self.home, "hot-plug", self.log):
            return
        self.compare_all()
        while not self.stopping.is_set():
            with self.lock:
                pause = min(self.due.values(), default=None)
            self.wake.wait(None if pause is None else max(0.0, pause - monotonic()))
            self.wake.clear()
            try:
                self._compare_due()
            except Exception:
                self.log.exception("server_fault")
                self.stopping.wait(FIRST_RETRY_S)

    def _compare_due(self) -> None:
        with self.lock:
            keys = [key for key, when in self.due.items() if when <= monotonic()]
            for key in keys:
                del self.due[key]
        if keys:
            try:
                self.containers.read()
            except CniError as e:
                self.log.warning("networks_unchanged", why=e.msg)
                return                  # the next ADD, or the next change of a pod, calls _compare_due() again
        for key in keys:
            pod = self.source.pods.found.get(key)
            if pod and not self.stopping.is_set():
                self._compare(key, pod)

    def _compare(self, key: Key, pod: Pod) -> None:
        """Update the networks of a pod's containers. A pod without containers stays unhandled, because its ADD has not
        run yet."""
        found, done = self.containers.of(key, pod), True
        for container_id, attachments in sorted(found.items()):
            try:
                if first := self._first(container_id, attachments, key, pod):
                    done &= self._update(key, pod, first)
            except CniError as e:
                done = self._failed(key, container_id, e.msg)
        if found and done:
            self.handled[key] = state_of(pod)
            self.delays.pop(key, None)

    def _first(self, container_id: str, attachments: list[CachedAttachment], key: Key,
               pod: Pod) -> CachedAttachment | None:
        """Return the attachment to the container's first network. None: the container has the annotation's networks.
        Raises CniError."""
        keys = read_keys(Section(self.conf))
        by_name = {it.ifname: it for it in attachments}
        state = State(keys.cni_dir, container_id)
        known = state.listed("eth0")
        if not known:
            state.reject_list()
        others = {network.ifname for _, network in known[1:]}
        first = next((it for name, it in sorted(by_name.items()) if name not in others), None)
        if first is None:
            return None                 # DEL has deleted the attachment, or an ADD is not complete
        listed = [network for _, network in state.listed(first.ifname)]
        plan = make_plan(listed, read_networks(pod.annotations.get(NETWORKS, ""), key[0]), keys.default_titles(key[0]))
        return first if listed and plan else None

    def _update(self, key: Key, pod: Pod, first: CachedAttachment) -> bool:
        """Send an UPDATE and wait for its answer. Return whether the UPDATE succeeded."""
        annotations = {name: text for name, text in pod.annotations.items() if name == NETWORKS}
        conf = {**self.conf, "runtimeConfig": {ANNOTATIONS: annotations}}
        env = {"CNI_COMMAND": UPDATE, "CNI_CONTAINERID": first.container_id, "CNI_NETNS": first.netns,
               "CNI_IFNAME": first.ifname, "CNI_PATH": read_keys(Section(self.conf)).bin_dir or BIN_DIR,
               "CNI_ARGS": ";".join(f"{name}={value}" for name, value in first.args.items())}
        try:
            with self.acceptor.submit(str(conf["type"]), env, json.write(conf), self.home) as ours:
                error = self._answer(ours, (first.container_id, first.ifname))
        except OSError as e:
            error = str(e)
        if not error:
            self.log.info("networks_changed", pod="/".join(key), container=first.container_id)
        return self._failed(key, first.container_id, error) if error else True

    def _answer(self, ours: socket, attachment: tuple[str, str]) -> str:
        """Wait for the answer to an UPDATE. Return "", or why the UPDATE failed. A DEL of the pod ends the UPDATE."""
        poll, until = select.poll(), monotonic() + LIMIT_S
        poll.register(ours, select.POLLIN)
        while not poll.poll(POLL_MS):
            if self.acceptor.queue.is_awaited(attachment):
                return "another request of the pod waits"
            if self.stopping.is_set() or monotonic() > until:
                return "no answer in time"
        data = ours.recv(protocol.MAX_ANSWER * 2)
        if len(data) < protocol.HEAD.size:
            return "the request has ended without an answer"
        _, _, status, size = protocol.HEAD.unpack_from(data)
        return read_error(data[protocol.HEAD.size + size:]) if status else ""

    def _failed(self, key: Key, container_id: str, error: str) -> bool:
        """Log a failure, and compare the pod again later: after 1 s, then after twice as long each time, up to
        MAX_RETRY_S. Return False."""
        delay = self.delays[key] = min(max(FIRST_RETRY_S, 2 * self.delays.get(key, 0.0)), MAX_RETRY_S)
        self.log.warning("networks_unchanged", pod="/".join(key), container=container_id, error=error, retry_s=delay)
        self._compare_later(key, delay)
        return False


def state_of(pod: Pod) -> tuple[str, str]:
    return pod.uid, pod.annotations.get(NETWORKS, "")


def read_error(document: bytes) -> str:
    try:
        found = json.read(document)
        return ": ".join(filter(None, (found["msg"], found.get("details"))))
    except (json.JsonError, KeyError, TypeError):
        return "the server declined the request"
