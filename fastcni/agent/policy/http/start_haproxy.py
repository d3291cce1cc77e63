"""Run a program with a seccomp filter that hides a connection's destination before NAT (SO_ORIGINAL_DST).

    python -IS start_haproxy.py haproxy -db -f haproxy.cfg

HAProxy before 3.3 uses SO_ORIGINAL_DST as the destination of an IPv4 connection. For a connection to a Service, this is
the address of the Service: HAProxy would check requests by this address, and connect to it. Without SO_ORIGINAL_DST,
HAProxy uses the local address of the socket. This is the pod's address, because TPROXY comes after destination NAT.

This process adds the filter, which stays in force after execve(2), and replaces itself by the program. The filter
answers getsockopt(SO_ORIGINAL_DST) with ENOENT.
Source: linux/seccomp.h, linux/filter.h; HAProxy, src/sock_inet.c, sock_inet_get_dst().
"""

import ctypes
import errno
import os
import platform
import struct
import sys

SYSTEM_CALLS = {"x86_64": (0xC000003E, 55), "aarch64": (0xC00000B7, 209)}       # AUDIT_ARCH_..., __NR_getsockopt
PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP, SECCOMP_MODE_FILTER = 38, 22, 2
ALLOW, ERRNO = 0x7FFF0000, 0x00050000           # SECCOMP_RET_ALLOW, SECCOMP_RET_ERRNO
LOAD, EQUAL, RETURN = 0x20, 0x15, 0x06          # BPF_LD | BPF_W | BPF_ABS, BPF_JMP | BPF_JEQ | BPF_K, BPF_RET | BPF_K
NUMBER, ARCHITECTURE, LEVEL, OPTION = 0, 4, 24, 32      # offsets in struct seccomp_data: nr, arch, args[1], args[2]
IPPROTO_IP, SO_ORIGINAL_DST = 0, 80             # linux/netfilter_ipv4.h


def supported() -> bool:
    """Return whether SYSTEM_CALLS has this machine's architecture."""
    return platform.machine() in SYSTEM_CALLS


def program(architecture: int, getsockopt: int) -> bytes:
    """Return the filter as an array of struct sock_filter. A failed comparison jumps to the last instruction, ALLOW.

    architecture: AUDIT_ARCH_... of the machine. getsockopt: the number of the system call."""
    compared = ((ARCHITECTURE, architecture), (NUMBER, getsockopt), (LEVEL, IPPROTO_IP), (OPTION, SO_ORIGINAL_DST))
    found: list[tuple[int, int, int, int]] = []
    for at, (offset, value) in enumerate(compared):
        found += (LOAD, 0, 0, offset), (EQUAL, 0, 2 * (len(compared) - at) - 1, value)
    found += (RETURN, 0, 0, ERRNO | errno.ENOENT), (RETURN, 0, 0, ALLOW)
    return b"".join(struct.pack("=HBBI", *each) for each in found)


def restrict() -> None:
    """Add the seccomp filter to this thread. Raises OSError."""
    code = program(*SYSTEM_CALLS[platform.machine()])
    buffer = ctypes.create_string_buffer(code, len(code))
    fprog = struct.pack("HxxxxxxP", len(code) // 8, ctypes.addressof(buffer))           # struct sock_fprog
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, fprog):
        number = ctypes.get_errno()
        raise OSError(number, f"set a seccomp filter: {os.strerror(number)}")


if __name__ == "__main__":
    restrict()
    os.execvp(sys.argv[1], sys.argv[1:])
