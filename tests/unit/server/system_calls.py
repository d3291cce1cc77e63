"""A counter of a thread's system calls. The kernel counts them: perf_event_open(2) on the tracepoint
raw_syscalls:sys_enter. It omits calls whose number depends on other threads and on earlier requests: futex(2), by which
threads wait for Python's interpreter lock, and the calls by which malloc gets and returns memory."""

import ctypes
import fcntl
import os
import platform
import struct
import subprocess
import sys

# of perf_event_open; of futex, and of malloc's mmap, munmap, mremap, madvise and brk (asm/unistd.h)
NUMBERS = {"x86_64": (298, (202, 9, 11, 25, 28, 12)), "aarch64": (241, (98, 222, 215, 216, 233, 214))}
PERF_EVENT_IOC_SET_FILTER = 0x40082406          # linux/perf_event.h
PERF_TYPE_TRACEPOINT, PERF_FLAG_FD_CLOEXEC, ATTR_BYTES = 2, 8, 64
ID = "events/raw_syscalls/sys_enter/id"


def tracepoint(directory):
    """Return the number of the tracepoint that each system call passes. directory: an empty directory, in which tracefs
    is mounted for this call."""
    subprocess.run(["mount", "-t", "tracefs", "tracefs", directory], check=True)
    try:
        with open(f"{directory}/{ID}", encoding="ascii") as file:
            return int(file.read())
    finally:
        subprocess.run(["umount", directory], check=True)


class Counter:
    """A counter of the system calls of the thread that makes it. If the kernel permits none, OSError is raised."""

    def __init__(self, number):
        head = struct.pack("=IIQ", PERF_TYPE_TRACEPOINT, ATTR_BYTES, number)  # the beginning of struct perf_event_attr
        attributes = ctypes.create_string_buffer(head, ATTR_BYTES)
        libc = ctypes.CDLL(None, use_errno=True)
        open_event, omitted = NUMBERS[platform.machine()]
        self.fd = libc.syscall(open_event, attributes, 0, -1, -1, ctypes.c_ulong(PERF_FLAG_FD_CLOEXEC))
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), f"perf_event_open: {os.strerror(ctypes.get_errno())}")
        counted = " && ".join(f"id != {number}" for number in omitted).encode() + b"\0"
        fcntl.ioctl(self.fd, PERF_EVENT_IOC_SET_FILTER, counted)

    def read(self):
        """Return the number of system calls, including the read(2) of this method."""
        return int.from_bytes(os.read(self.fd, 8), sys.byteorder)

    def close(self):
        os.close(self.fd)
