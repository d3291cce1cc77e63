"""Run `dhcp daemon` as a process, and plugins that use it."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys

from fastcni.testing.witnesses import eventually

LIMIT_S = 40
RUN = "import sys; from fastcni.dhcp.daemon import main; sys.exit(main(sys.argv[1:]))"


class Daemon:
    """The dhcp daemon as a process. In `with Daemon(directory) as daemon:` the block begins when the daemon listens.

    directory: the place of the daemon's socket, leases and log. command: how to run the daemon; by default with this
    Python.
    """

    def __init__(self, directory, *flags, command=(sys.executable, "-c", RUN), socket="dhcp.sock", own=True):
        self.directory, self.path = str(directory), f"{directory}/{socket}"
        self.command = [*command, "-socketpath", self.path, *flags]
        self.command += ["-statedir", self.leases] if own else []
        self.process, self.own, self.starts = None, own, 0

    @property
    def leases(self):
        return f"{self.directory}/leases"

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        with open(f"{self.directory}/log", "ab") as log:
            self.process = subprocess.Popen(self.command, stderr=log, stdin=subprocess.DEVNULL)
        assert eventually(lambda: self.process.poll() is not None or self.answers())
        assert self.process.poll() is None, self.log()
        self.starts += 1
        if self.own:                            # the daemon answers before it has read its leases
            self.wait_for("dhcp_ready", self.starts)

    def answers(self):
        import socket

        with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError):
            sock.connect(self.path)
            return True
        return False

    def stop(self, how=signal.SIGTERM):
        """End the daemon. Return its exit status."""
        self.process.send_signal(how)
        return self.process.wait(LIMIT_S)

    def log(self):
        with open(f"{self.directory}/log", encoding="utf-8") as log:
            return log.read()

    def wait_for(self, event, count=1):
        """Wait until the daemon's log has `count` of these events."""
        assert eventually(lambda: len(re.findall(rf"event={event}\b", self.log())) >= count, LIMIT_S)

    def conf(self, version="1.1.0", **ipam):
        return {"cniVersion": version, "name": "net", "type": "dhcp",
                "ipam": {"type": "dhcp", "daemonSocketPath": self.path, **ipam}}


def call(command, conf, netns="", *, plugin=None, cid="c1", ifname="eth0", **env):
    """Run one CNI request. Return (exit status, the document on stdout or None, stderr). plugin: the path of a plugin
    file, or None to run in this process."""
    env = {"CNI_COMMAND": command, "CNI_CONTAINERID": cid, "CNI_NETNS": netns, "CNI_IFNAME": ifname,
           "CNI_PATH": "/nowhere", **env}
    stdin = json.dumps(conf).encode()
    if plugin:
        done = subprocess.run([plugin], input=stdin, capture_output=True, timeout=LIMIT_S * 2,
                              env={**os.environ, "FASTCNI_SOCKET": "", **env})
        status, stdout, stderr = done.returncode, done.stdout, done.stderr
    else:
        from fastcni.handle import handle
        from fastcni.kit.call.mode import Mode

        reply = handle(conf["type"], env, stdin, Mode())
        status, stdout, stderr = reply.status, reply.stdout, reply.stderr
    return status, json.loads(stdout or "null"), stderr.decode()


def ok(command, conf, netns="", **more):
    status, document, stderr = call(command, conf, netns, **more)
    assert status == 0, (document, stderr)
    return document
