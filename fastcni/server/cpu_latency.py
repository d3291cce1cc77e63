"""Processors that do not sleep while requests come.

A pod's ADD goes from the runtime to the launcher, to the server, to the kernel's workers and back, and at each step a
processor that has nothing to do for the moment would go to sleep and have to be woken (docs/server.md has figures). So
while requests come, and for some milliseconds after the last, the kernel is asked not to let them.

Linux, Documentation/power/pm_qos_interface.rst: who holds /dev/cpu_dma_latency open and has written a number of
microseconds there (s32) keeps every processor out of states that take longer to wake from.
"""

import os
import sys
from threading import Event, Thread
from time import monotonic, sleep

DEVICE = "/dev/cpu_dma_latency"
IDLE_DRIVER = "/sys/devices/system/cpu/cpuidle/current_driver"
LIGHTEST_US = 2                 # what the lightest sleep takes, C1 of processors of today
ANY_US = -1                     # PM_QOS_DEFAULT_VALUE
DEFAULT_SECONDS = 0.01          # after a request, unless FASTCNI_AWAKE says otherwise


class LatencyRequest:
    """hold() at each request; `seconds` after the last one processors may sleep again. 0 seconds: does nothing, as
    where the device cannot be opened, which the log says."""

    def __init__(self, seconds, log):
        self.seconds, self.until, self.held, self.log = seconds, 0.0, False, log
        self.device, self.begun = None, Event()
        if not seconds:
            return
        try:
            self.device = os.open(DEVICE, os.O_WRONLY)
        except OSError as e:
            log.info("latency_request_unavailable", why=str(e))
            return
        self.least = least()
        try:
            Thread(target=self._release, name="awake", daemon=True).start()
        except RuntimeError as e:       # pids.max
            os.close(self.device)
            self.device = None
            log.warning("latency_request_unavailable", why=str(e))

    def hold(self):
        if self.device is None:
            return
        self.until = monotonic() + self.seconds
        if not self.held:
            self.held = True
            self._ask(self.least)
            self.begun.set()

    def _release(self):
        while True:
            self.begun.wait()
            self.begun.clear()
            while (left := self.until - monotonic()) > 0:
                sleep(left)
            self._ask(ANY_US)
            self.held = False       # last: who holds in between is left out, and the next one is not

    def _ask(self, microseconds):
        if (device := self.device) is None:
            return
        try:
            os.write(device, microseconds.to_bytes(4, sys.byteorder, signed=True))
        except OSError as e:        # no request is to suffer for it
            self.device = None
            os.close(device)
            self.log.warning("latency_request_unavailable", why=str(e))


def least():
    """Microseconds that a processor may take to wake. In a virtual machine with haltpoll to halt at all is to leave
    it, and counts as one microsecond; elsewhere the lightest sleep is no loss."""
    try:
        with open(IDLE_DRIVER, encoding="ascii") as file:
            return 0 if file.read().strip() == "haltpoll" else LIGHTEST_US
    except OSError:                 # a kernel without cpuidle
        return LIGHTEST_US
