"""The two ways to call a plugin: its executable, or, for fastcni's own, a function in this process."""

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO, Protocol

from fastcni.kit.call import invoke
from fastcni.spec import errors
from fastcni.spec.errors import CniError

NOWHERE = "/nonexistent"


class Runner(Protocol):
    """What CNI needs of a way to call plugins."""

    def find(self, plugin: str, dirs: Sequence[str]) -> str:
        """Say where the plugin is; what comes back is given to run(). CniError: nowhere."""

    def run(self, where: str, env: Mapping[str, str], stdin: bytes, timeout: float | None) -> bytes:
        """Call it and return its stdout. env: CNI and trace variables. timeout: seconds. CniError: failed."""


class Exec:
    """Calls executables.

    environ: what they inherit besides the CNI variables, this process's own when None. stderr: where
    to write what a plugin that succeeded said there, sys.stderr's bytes when None.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, stderr: BinaryIO | None = None):
        self.environ = environ
        self.stderr = stderr

    def find(self, plugin: str, dirs: Sequence[str]) -> str:
        return invoke.find(plugin, dirs)

    def is_own(self, where: str) -> bool:
        """Is it one of fastcni's own plugins, whatever its version of fastcni?"""
        return invoke.is_own(where)

    def run(self, where: str, env: Mapping[str, str], stdin: bytes, timeout: float | None) -> bytes:
        base = os.environ if self.environ is None else self.environ
        stdout, stderr = invoke.execute(where, {**base, **env}, stdin, timeout=timeout)
        forward(stderr, self.stderr)
        return stdout


class InProcess:
    """Calls fastcni's own plugins, and those that other distributions declare to it, without starting a program; any
    other through `otherwise`, Exec when None.

    The call is made in a thread of its own, since a plugin enters network namespaces: the caller's
    thread never leaves its own. A timeout does not apply, a thread cannot be killed; what a plugin
    waits for is bounded by itself.
    """

    def __init__(self, otherwise: Runner | None = None, environ: Mapping[str, str] | None = None,
                 stderr: BinaryIO | None = None):
        self.otherwise = otherwise or Exec(environ, stderr)
        self.environ = environ
        self.stderr = stderr
        self.registered = False         # the plugins of other distributions

    def find(self, plugin: str, dirs: Sequence[str]) -> str:
        from fastcni import plugins, third_party

        if plugin not in plugins.TABLE and not self.registered:
            third_party.register()
            self.registered = True
        return plugin if plugin in plugins.TABLE else self.otherwise.find(plugin, dirs)

    def is_own(self, where: str) -> bool:
        return "/" not in where or invoke.is_own(where)

    def run(self, where: str, env: Mapping[str, str], stdin: bytes, timeout: float | None) -> bytes:
        if "/" in where:           # a path: not one of ours
            return self.otherwise.run(where, env, stdin, timeout)
        # The rest of the environment is for delegates that have to be executed. A plugin insists on a
        # CNI_PATH, and finds fastcni's own delegates without one.
        base = os.environ if self.environ is None else self.environ
        reply = in_thread(where, {**base, **env, "CNI_PATH": env.get("CNI_PATH") or NOWHERE}, stdin)
        if reply.status:
            raise invoke.read_failure(reply.stdout, reply.stderr, f"exit status {reply.status}")
        forward(reply.stderr, self.stderr)
        return reply.stdout


def in_thread(plugin: str, env: Mapping[str, str], stdin: bytes) -> Any:
    """Return the handle.Reply of one request, made in a fresh thread."""
    from fastcni.handle import handle
    from fastcni.runtime.mode import InProcessMode

    done: list[Any] = []

    def work() -> None:
        try:
            done.append(handle(plugin, env, stdin, InProcessMode()))
        except BaseException as e:         # handle() turns its plugins' errors into replies
            done.append(e)

    thread = threading.Thread(target=work, name=f"fastcni-{plugin}")
    thread.start()
    thread.join()
    if isinstance(done[0], BaseException):
        raise CniError(errors.INTERNAL, f"{plugin}: {type(done[0]).__name__}: {done[0]}") from done[0]
    return done[0]


def forward(text: bytes, stream: BinaryIO | None) -> None:
    """Hand on what a plugin wrote to stderr; a stream that is closed or full is not the plugin's failure."""
    if not text:
        return
    try:
        if stream is None:
            # sys.stderr is None in a program without one; one that stands in for it may take text only.
            stream = getattr(sys.stderr, "buffer", None)
        if stream is not None:
            stream.write(text)
            stream.flush()
        elif sys.stderr is not None:
            sys.stderr.write(text.decode("utf-8", "replace"))
    except (OSError, ValueError):
        pass
