"""A latency request while requests come: processors stay out of idle states that take long to leave.

A pod's ADD goes from the runtime to the launcher, to the server, to the kernel's workers and back. At each step an idle
processor may enter an idle state, and its wakeup takes tens of microseconds (docs/server.md has figures). So the server
makes a latency request with each CNI request, and withdraws it some milliseconds after the last one.

Linux, Documentation/power/pm_qos_interface.rst: while a process holds /dev/cpu_dma_latency open and has written a
number of microseconds to it (s32), no processor enters an idle state whose wakeup takes longer.
"""

from __future__ import annotations

import os
import sys
from threading import Event, Thread
from time import monotonic, sleep

from fastcni.server.background import CANNOT_START

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.server.log import Logger

DEVICE = "/dev/cpu_dma_latency"
IDLE_DRIVER = "/sys/devices/system/cpu/cpuidle/current_driver"
C1_US = 2                       # the wakeup from C1, the lightest idle state, on processors of today
NO_LIMIT_US = -1                # PM_QOS_DEFAULT_VALUE
DEFAULT_S = 0.01                # after a request, unless FASTCNI_LATENCY_REQUEST_S says otherwise


class LatencyRequest:
    """hold() with each CNI request: the latency request lasts until `seconds` after the last hold().

    With 0 seconds it does nothing, and also if the device cannot be opened, which the log says.
    """

    def __init__(self, seconds: float, log: Logger) -> None:
        self.seconds, self.until, self.held, self.log = seconds, 0.0, False, log
        self.device: int | None = None
        self.begun = Event()
        if not seconds:
            return
        try:
            self.device = os.open(DEVICE, os.O_WRONLY)
        except OSError as e:
            log.info("latency_request_unavailable", why=str(e))
            return
        self.limit_us = limit_us()
        try:
            Thread(target=self._release, name="latency-request", daemon=True).start()
        except CANNOT_START as e:       # pids.max
            os.close(self.device)
            self.device = None
            log.warning("latency_request_unavailable", why=str(e))

    def hold(self) -> None:
        if self.device is None:
            return
        self.until = monotonic() + self.seconds
        if not self.held:
            self.held = True
            self._write(self.limit_us)
            self.begun.set()

    def _release(self):
        while True:
            self.begun.wait()
            self.begun.clear()
            while (left := self.until - monotonic()) > 0:
                sleep(left)
            self._write(NO_LIMIT_US)
            self.held = False       # this comes last: a hold() just before it has no effect, and the next one has

    def _write(self, microseconds):
        if (device := self.device) is None:
            return
        try:
            os.write(device, microseconds.to_bytes(4, sys.byteorder, signed=True))
        except OSError as e:        # no request fails because of it
            self.device = None
            os.close(device)
            self.log.warning("latency_request_unavailable", why=str(e))


def limit_us() -> int:
    """The microseconds to ask for: 0 in a virtual machine with haltpoll, else C1_US.

    There any halt leaves the virtual machine, though it counts as one microsecond. Elsewhere C1 costs next to nothing.
    """
    try:
        with open(IDLE_DRIVER, encoding="ascii") as file:
            return 0 if file.read().strip() == "haltpoll" else C1_US
    except OSError:                 # a kernel without cpuidle
        return C1_US
