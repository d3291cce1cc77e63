"""Run `dhcp daemon`: one process that acquires and renews the DHCP leases of the node's pods. `fastcni serve --dhcp`
runs the same daemon in a thread."""

from __future__ import annotations

import gc
import os
import resource
import signal
import socket
import sys
import threading
import time

from fastcni.daemon import listening
from fastcni.daemon.stop_signals import UNUSED_SIGNALS, stop_signals
from fastcni.dhcp import flags as flag
from fastcni.dhcp.daemon_log import Log
from fastcni.dhcp.engine import Engine
from fastcni.dhcp.lease_files import LeaseFiles
from fastcni.dhcp.loop import Loop
from fastcni.dhcp.service import Service
from fastcni.kernel import netns

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from fastcni.daemon.log import Logger

RETRY_S = 1.0


class Daemon:
    """The daemon's loop, leases and socket. Create a Daemon in its network namespace, then call run() in the daemon's
    thread.

    Raises ListenError, OSError.
    """

    def __init__(self, flags: flag.Flags, log: Logger, *, handed_over: bool = True) -> None:
        """handed_over: whether to use the socket that systemd has passed to this process."""
        self.log = log
        path = flags.hostprefix + flags.socketpath
        if not (handed_over and os.environ.get("LISTEN_PID") == str(os.getpid())):
            refuse_second(path)         # not for systemd's socket, which accepts the test connection itself
        if handed_over:
            self.listening = listening.listen(path, open_to_all=False, kind=socket.SOCK_STREAM)
        else:
            self.listening = listening.make(path, open_to_all=False, kind=socket.SOCK_STREAM)
        self.files = LeaseFiles(flags.hostprefix + flags.statedir)
        self.loop = Loop(log)
        self.engine = Engine(self.loop, self.files, flags, log)
        self.thread: threading.Thread | None = None

    def run(self) -> None:
        """Serve until stop()."""
        self._come_home()               # a new thread is in the namespace of the thread that started it
        self.engine.start()
        service = Service(self.engine, self.listening.sock)
        self.log.info("dhcp_ready", socket=self.listening.path or "handed over", leases=self.files.directory)
        while not self.loop.ended:
            try:
                self.loop.run()
            except netns.Lost as e:     # the thread is still in a pod's namespace, where it must open no socket
                self.log.error("namespace_lost", why=str(e))
                self._come_home()
        service.close()
        self.engine.stop()
        self.listening.unlink()
        self.listening.sock.close()
        self.listening.unlock()
        self.log.info("dhcp_stopped")

    def _come_home(self) -> None:
        while True:
            try:
                netns.ensure(self.engine.home)
                return
            except netns.Lost:
                time.sleep(RETRY_S)

    def stop(self) -> None:
        """End run(). Any thread or signal handler may call stop()."""
        self.loop.stop()

    def start(self) -> None:
        """Start the daemon in a thread."""
        self.thread = threading.Thread(target=self.run, name="dhcp", daemon=True)
        self.thread.start()

    def join(self) -> None:
        """Stop the thread and wait for it."""
        self.stop()
        if self.thread:
            self.thread.join()


def main(arguments: Sequence[str]) -> int:
    """Run `dhcp daemon` with these flags until one of stop_signals(). Return the exit status, the same as the reference
    plugin's: 2 for a wrong command line, 1 for an error, otherwise 0."""
    gc.enable()                         # a plugin file switches the garbage collector off
    try:
        flags = flag.read(arguments)
    except flag.Help:
        sys.stderr.write(flag.USAGE)
        return 0
    except flag.FlagError as e:
        sys.stderr.write(f"{e}\n{flag.USAGE}")
        return 2
    log = Log()
    raise_descriptor_limit()
    ends = stop_signals()
    signal.pthread_sigmask(signal.SIG_BLOCK, [*ends, *UNUSED_SIGNALS])      # `ends` until `daemon` exists
    try:
        write_pidfile(flags.pidfile)
        daemon = Daemon(flags, log)
    except (OSError, listening.ListenError) as e:
        log.error("dhcp_not_started", why=str(e))
        return 1
    for number in ends:
        signal.signal(number, lambda *_: daemon.stop())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ends)
    daemon.run()
    remove_pidfile(flags.pidfile)
    return 0


def refuse_second(path: str) -> None:
    """Raise ListenError if a daemon answers at the path. The reference plugin's daemon holds no lock file, so only a
    connection shows that it runs."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(path)
        except OSError:
            return
    raise listening.ListenError(f"another dhcp daemon listens on {path}")


def raise_descriptor_limit() -> None:
    """Raise the limit of descriptors to the hard limit, because each lease that is being acquired needs a socket."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def write_pidfile(path: str) -> None:
    """Write the process id in decimal without a newline, like the reference plugin. Raises OSError."""
    if path:
        with open(path, "w", encoding="ascii", opener=lambda name, how: os.open(name, how, 0o644)) as file:
            file.write(str(os.getpid()))


def remove_pidfile(path: str) -> None:
    if path and os.path.exists(path):
        os.unlink(path)
