"""List the signals that end a server, an agent and a dhcp daemon in order, and the signals that have no effect."""

import signal

STOP_SIGNALS = signal.SIGTERM, signal.SIGINT, signal.SIGHUP
# Other daemons print statistics or open their logs again at these signals. Here the signals stay blocked, because their
# default action kills the process.
UNUSED_SIGNALS = signal.SIGUSR1, signal.SIGUSR2


def stop_signals() -> list[signal.Signals]:
    """Return the STOP_SIGNALS that end this process. The kernel sends SIGHUP when the terminal of the process closes.
    Leave out SIGHUP if the process ignores it, as under nohup(1): sigwait() returns a blocked signal even if the
    process ignores the signal."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in STOP_SIGNALS if not (ignored and number == signal.SIGHUP)]
