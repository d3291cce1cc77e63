"""Define the runners, which call plugins: Exec runs executables, InProcess runs fastcni's own plugins in this
process."""

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, BinaryIO, Protocol

from fastcni.kit.call import invoke, search
from fastcni.runtime.trace import VARIABLES
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.kit.call.request import Reply

NOWHERE = "/nonexistent"


class Runner(Protocol):
    """The methods by which CNI finds and calls a plugin. A runner may have two more methods, is_own() and ask_server();
    Exec describes both."""

    def find(self, plugin: str, dirs: Sequence[str]) -> str:
        """Return where the plugin is, such as its path; run() takes this value. Raises CniError if the plugin is not
        found."""

    def run(self, where: str, env: Mapping[str, str], stdin: bytes, timeout: float | None) -> bytes:
        """Call the plugin and return its stdout. env: CNI and trace variables. timeout: seconds, None for no limit.
        Raises CniError if the plugin fails."""


class Exec:
    """A runner that executes plugin files.

    environ: the plugins' environment without the CNI variables; None: this process's environment. stderr: the binary
    stream to which successful plugins' stderr is written; None: the stream of sys.stderr.
    """

    def __init__(self, environ: Mapping[str, str] | None = None, stderr: BinaryIO | None = None):
        self.environ = os.environ if environ is None else environ
        self.stderr = stderr

    def find(self, plugin: str, dirs: Sequence[str]) -> str:
        return search.find(plugin, dirs)

    def is_own(self, where: str) -> bool:
        """Return whether the file `where` is a plugin of fastcni, of any version."""
        return search.is_own(where)

    def ask_server(self, env: Mapping[str, str], stdin: bytes) -> bytes | None:
        """Send a request for the plugin `chain` to the server that plugin files ask, and return the plugin's stdout.
        None: no server has answered, or the request can be repeated by calls of plugin files. Raises served.Failed."""
        from fastcni.runtime import served

        # If the call has no Trace, the server gets this process's trace variables, as from a plugin file.
        inherited = [name for name in VARIABLES if name in self.environ and VARIABLES[0] not in env]
        answer = served.ask(self.environ, {**{name: self.environ[name] for name in inherited}, **env}, stdin)
        if answer is None:
            return None
        stdout, stderr = answer
        forward(stderr, self.stderr)
        return stdout

    def run(self, where: str, env: Mapping[str, str], stdin: bytes, timeout: float | None) -> bytes:
        stdout, stderr = invoke.execute(where, {**self.environ, **env}, stdin, timeout=timeout)
        forward(stderr, self.stderr)
        return stdout


class InProcess:
    """A runner that calls plugins as functions in this process: fastcni's own, and those that other Python
    distributions register with fastcni. otherwise: the runner for all other plugins; None: Exec.

    Each call runs in a new thread. The plugin changes that thread's network namespace; the caller's thread stays in its
    own. The timeout does not apply, because a thread cannot be killed; the plugin's own time limits end its waits.
    """

    def __init__(self, otherwise: Runner | None = None, environ: Mapping[str, str] | None = None,
                 stderr: BinaryIO | None = None):
        self.otherwise = otherwise or Exec(environ, stderr)
        self.environ = os.environ if environ is None else environ
        self.stderr = stderr
        self.registered = False         # whether plugins.TABLE has the plugins of other distributions

    def find(self, plugin: str, dirs: Sequence[str]) -> str:
        from fastcni import plugins, third_party

        if plugin not in plugins.TABLE and not self.registered:
            third_party.register()
            self.registered = True
        return plugin if plugin in plugins.TABLE else self.otherwise.find(plugin, dirs)

    def is_own(self, where: str) -> bool:
        return "/" not in where or search.is_own(where)

    def run(self, where: str, env: Mapping[str, str], stdin: bytes, timeout: float | None) -> bytes:
        if "/" in where:           # a path: the runner `otherwise` has found the plugin
            return self.otherwise.run(where, env, stdin, timeout)
        # Delegates that are executed need the rest of the environment. A plugin rejects an empty CNI_PATH, so CNI_PATH
        # gets a directory that does not exist. fastcni's own delegates need no directory.
        reply = in_thread(where, {**self.environ, **env, "CNI_PATH": env.get("CNI_PATH") or NOWHERE}, stdin)
        if reply.status:
            raise invoke.read_failure(reply.stdout, reply.stderr, f"exit status {reply.status}")
        forward(reply.stderr, self.stderr)
        return reply.stdout


def in_thread(plugin: str, env: Mapping[str, str], stdin: bytes) -> "Reply":
    """Run one request in a new thread and return its Reply. Raises CniError for an exception in the thread."""
    from fastcni.handle import handle
    from fastcni.runtime.mode import InProcessMode

    done: "list[Reply | BaseException]" = []

    def work() -> None:
        try:
            done.append(handle(plugin, env, stdin, InProcessMode()))
        except BaseException as e:         # a defect: handle() returns errors of plugins as replies
            done.append(e)

    thread = threading.Thread(target=work, name=f"fastcni-{plugin}")
    thread.start()
    thread.join()
    if isinstance(done[0], BaseException):
        raise CniError(errors.INTERNAL, f"{plugin}: {type(done[0]).__name__}: {done[0]}") from done[0]
    return done[0]


def forward(text: bytes, stream: BinaryIO | None) -> None:
    """Write a plugin's stderr to the stream. A closed or full stream is no error of the plugin."""
    if not text:
        return
    try:
        if stream is None:
            # sys.stderr may be None, or an object that accepts only text.
            stream = getattr(sys.stderr, "buffer", None)
        if stream is not None:
            stream.write(text)
            stream.flush()
        elif sys.stderr is not None:
            sys.stderr.write(text.decode("utf-8", "replace"))
    except (OSError, ValueError):
        pass
