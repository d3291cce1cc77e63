"""List the signals that end a server, an agent and a dhcp daemon in order."""

import signal

STOP_SIGNALS = signal.SIGTERM, signal.SIGINT, signal.SIGHUP


def stop_signals() -> list[signal.Signals]:
    """Return the STOP_SIGNALS that end this process. SIGHUP comes when the terminal of the process closes; nohup(1)
    makes its program ignore SIGHUP. The kernel keeps a blocked signal pending even if the process ignores it, so
    sigwait() would return SIGHUP."""
    ignored = signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    return [number for number in STOP_SIGNALS if not (ignored and number == signal.SIGHUP)]
