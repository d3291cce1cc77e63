"""Define the states of restoring in one network namespace, and their transitions.

There are three state machines. TRANSITIONS has each arrow of the drawings. Any other event is a defect of fastcni.

The copy (namespace_watch.NamespaceWatch): is the server's copy of the kernel's tables current?

              READ
    STALE ---------------> VALID        STALE: the server reads all tables when it next handles the namespace.
      ^                      |          INTERRUPTED: nftables changed during the reading; STALE stays, for 0.1 s at
      +----------------------+          least.
         DROPPED or FAULT               DROPPED: the kernel dropped notifications. FAULT: an exception of fastcni.

fastcni's own tables (table_mirror.TableMirror): is an object missing from `inet fastcni`, `bridge fastcni` or
`netdev fastcni`?

              MESSAGE
    CURRENT ---------------> PARTIAL    PARTIAL: a part of a transaction was notified; the rest will follow.
      ^  ^                    |   ^     MESSAGE: a notification about one of the tables, in any state.
      |  +--------------------+   |     COMPLETE: the transaction has ended, and has deleted no object.
      |    COMPLETE           |   |     SUSPICIOUS: the transaction has ended, and the server may have to restore.
      |            SUSPICIOUS |   | MESSAGE
      |    RESTORED           v   |
      +-------------------- SUSPECT     SUSPECT: the server compares the tables with its copy, and restores them.
      |                       |   ^     READING: the server reads the copy again, in any state, and may find that an
      |    RESTORED  TOO_SOON |   |     object is missing.
      |                REFUSED|   | READING
      |                       v   |     DELAYED: as SUSPECT, but after a delay: the last restore was a moment ago
      +-------------------- DELAYED     (TOO_SOON), or the kernel has returned an error (REFUSED).

iptables, firewalld and an administrator's chains (replay.Replay): is a replay needed?

             MAYBE_LOST
     IDLE --------------> MAYBE_NEEDED  MAYBE_LOST: a pod's jump was deleted without its chain. A DEL may be running, so
      | ^                  |  |         the server waits DELAY_AFTER_DEL_S.
      | |   PRESENT        |  | LOST    LOST: an object that all pods share was deleted, iptables begins to
      | +------------------+  v         filter, a replay has failed, or the server starts.
      | +------------------- NEEDED     PRESENT: after the wait all objects exist again.
      | |   PRESENT           ^  |
      +-|---------------------+  | BEGUN (also of MAYBE_NEEDED)
        |     LOST               v
        +------------------- RUNNING    RUNNING: a thread replays result caches. NOT_STARTED: the thread could not be
          ENDED, NOT_STARTED            started. The server handles a loss during a replay when the replay has ended.
"""

from __future__ import annotations

STALE, VALID = "stale", "valid"
READ, INTERRUPTED, DROPPED, FAULT = "read", "interrupted", "dropped", "fault"

CURRENT, PARTIAL, SUSPECT, DELAYED = "current", "partial", "suspect", "delayed"
MESSAGE, COMPLETE, SUSPICIOUS, READING = "message", "complete", "suspicious", "reading"
RESTORED, TOO_SOON, REFUSED = "restored", "too soon", "refused"

IDLE, MAYBE_NEEDED, NEEDED, RUNNING = "idle", "maybe needed", "needed", "running"
MAYBE_LOST, LOST, PRESENT = "maybe lost", "lost", "present"
BEGUN, ENDED, NOT_STARTED = "begun", "ended", "not started"

TRANSITIONS = {                 # {(state, event): state}
    (STALE, READ): VALID,
    (STALE, INTERRUPTED): STALE,
    (STALE, DROPPED): STALE,
    (STALE, FAULT): STALE,
    (VALID, DROPPED): STALE,
    (VALID, FAULT): STALE,

    (CURRENT, MESSAGE): PARTIAL,
    (PARTIAL, MESSAGE): PARTIAL,
    (SUSPECT, MESSAGE): PARTIAL,
    (DELAYED, MESSAGE): PARTIAL,
    (PARTIAL, COMPLETE): CURRENT,
    (PARTIAL, SUSPICIOUS): SUSPECT,
    (CURRENT, READING): SUSPECT,
    (PARTIAL, READING): SUSPECT,
    (SUSPECT, READING): SUSPECT,
    (DELAYED, READING): SUSPECT,
    (SUSPECT, TOO_SOON): DELAYED,
    (DELAYED, TOO_SOON): DELAYED,
    (SUSPECT, REFUSED): DELAYED,
    (DELAYED, REFUSED): DELAYED,
    (SUSPECT, RESTORED): CURRENT,
    (DELAYED, RESTORED): CURRENT,

    (IDLE, MAYBE_LOST): MAYBE_NEEDED,
    (IDLE, LOST): NEEDED,
    (MAYBE_NEEDED, LOST): NEEDED,
    (MAYBE_NEEDED, PRESENT): IDLE,
    (NEEDED, PRESENT): IDLE,
    (MAYBE_NEEDED, BEGUN): RUNNING,
    (NEEDED, BEGUN): RUNNING,
    (RUNNING, ENDED): IDLE,
    (RUNNING, NOT_STARTED): IDLE,
}


class Machine:
    """One state, which only on() changes."""

    __slots__ = ("state",)

    def __init__(self, state: str) -> None:
        self.state = state

    def on(self, event: str) -> None:
        """Make the transition of this event. Raises KeyError if TRANSITIONS does not have the transition."""
        self.state = TRANSITIONS[self.state, event]
