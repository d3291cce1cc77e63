"""Run the agent in a thread of another program: `fastcni serve --agent`."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from fastcni.agent.contract import ConfigurationError
from fastcni.agent.run import Agent
from fastcni.clients.errors import Away

if TYPE_CHECKING:
    from collections.abc import Callable

    from fastcni.agent.run import Options
    from fastcni.daemon.log import Logger

AGAIN_S = 5.0                   # seconds between the agent's failure and its next start


class AgentThread:
    """A thread that runs an Agent until join(). After a failure it logs `agent_failed` and runs a new Agent.

    The thread calls note(agent) before each Agent runs. Call start() in a thread that is in the node's namespace.
    """

    def __init__(self, options: Options, log: Logger, note: Callable[[Agent], object]) -> None:
        self.options, self.log, self.note = options, log, note
        self.ended = threading.Event()
        self.agent: Agent | None = None
        self.thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def start(self) -> None:
        self.thread = threading.Thread(target=self._run, name="agent", daemon=True)
        self.thread.start()

    def join(self) -> None:
        """Stop the agent and wait for its end. Links, routes and rules in the kernel stay."""
        with self._lock:
            self.ended.set()
            if self.agent:
                self.agent.stop()
        if self.thread:
            self.thread.join()

    def _run(self) -> None:
        while not self.ended.is_set():
            try:
                self._run_once()
            except (ConfigurationError, Away, OSError) as e:
                self.log.error("agent_failed", error=str(e), again_in=AGAIN_S)
            except Exception as e:      # a bug in the agent must not end the server
                self.log.exception("agent_failed", error=repr(e), again_in=AGAIN_S)
            self.ended.wait(AGAIN_S)

    def _run_once(self) -> None:
        with self._lock:
            if self.ended.is_set():
                return
            self.agent = agent = Agent(self.options, self.log)
        try:
            self.note(agent)
            agent.run()
        finally:
            with self._lock:            # join() may call agent.stop() in another thread
                self.agent = None
                agent.close()
