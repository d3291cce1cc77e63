"""Keep processors out of deep idle states while CNI requests arrive, by a latency request to the kernel.

A pod's ADD goes from the runtime to the launcher, to the server, to the kernel's workers and back. At each step an idle
processor may enter an idle state, and its wakeup takes tens of microseconds (docs/server.md has figures). So the server
makes a latency request with each CNI request, and withdraws it some milliseconds after the last request.

Linux, Documentation/power/pm_qos_interface.rst: while a process holds /dev/cpu_dma_latency open and has written a
number of microseconds to it (s32), no processor enters an idle state whose wakeup takes longer.
"""

from __future__ import annotations

import os
import sys
from time import monotonic

from fastcni._acceptor import open_timer, set_timer

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.daemon.log import Logger

DEVICE = "/dev/cpu_dma_latency"
IDLE_DRIVER = "/sys/devices/system/cpu/cpuidle/current_driver"
C1_US = 2                       # time of a wakeup from C1, the lightest idle state, on current processors
NO_LIMIT_US = -1                # PM_QOS_DEFAULT_VALUE
EXPIRATIONS_BYTES = 8           # timerfd_create(2): a u64 that a read returns
DEFAULT_S = 0.01                # seconds from a CNI request to the withdrawal; see FASTCNI_LATENCY_REQUEST_S


class LatencyRequest:
    """The latency request. Call hold() with each CNI request: the latency request lasts until `seconds` after the last
    hold().

    timer: a descriptor for poll(2); when it is readable, call release(). hold() and release() must not be called at the
    same time. No thread waits for the end: hold() would have to wake that thread, which would compete with the request
    for the GIL (0.1 ms for each pod that arrives alone).

    With 0 seconds, or if the device cannot be opened, hold() does nothing and `timer` is None. The log reports a device
    that cannot be opened.
    """

    def __init__(self, seconds: float, log: Logger) -> None:
        self.seconds, self.until, self.held, self.log = seconds, 0.0, False, log
        self.device: int | None = None
        self.timer: int | None = None
        if not seconds:
            return
        try:
            self.device = os.open(DEVICE, os.O_WRONLY)
            self.timer = open_timer()
        except OSError as e:
            self._drop()
            log.info("latency_request_unavailable", why=str(e))
            return
        self.limit_us = limit_us()

    def hold(self) -> None:
        if self.device is None or self.timer is None:
            return
        self.until = monotonic() + self.seconds
        if not self.held:
            self.held = True
            self._write(self.limit_us)
            set_timer(self.timer, self.seconds)

    def release(self) -> None:
        """Withdraw the latency request. If hold() was called after the timer was set, set the timer again instead."""
        assert self.timer is not None
        os.read(self.timer, EXPIRATIONS_BYTES)
        left = self.until - monotonic()
        if left > 0:
            set_timer(self.timer, left)
            return
        self._write(NO_LIMIT_US)
        self.held = False

    def close(self) -> None:
        """End the latency request. Do not call hold() afterwards."""
        self._drop()
        if self.timer is not None:
            os.close(self.timer)
            self.timer = None

    def _write(self, microseconds: int) -> None:
        if self.device is None:
            return
        try:
            os.write(self.device, microseconds.to_bytes(4, sys.byteorder, signed=True))
        except OSError as e:        # no request fails because of this error
            self._drop()
            self.log.warning("latency_request_unavailable", why=str(e))

    def _drop(self) -> None:
        """Close the device. The timer stays open, because an epoll may still have it."""
        if self.device is not None:
            os.close(self.device)
            self.device = None


def limit_us() -> int:
    """Return the microseconds to ask for: 0 in a virtual machine with haltpoll, otherwise C1_US.

    In such a virtual machine each halt exits to the hypervisor, although the kernel assumes a wakeup of one
    microsecond. On other machines C1 has almost no cost.
    """
    try:
        with open(IDLE_DRIVER, encoding="ascii") as file:
            return 0 if file.read().strip() == "haltpoll" else C1_US
    except OSError:                 # a kernel without cpuidle
        return C1_US
