"""Run a command while one of its system calls fails, or is killed: the driver of inject.c, which gcc compiles once.

    calls = Injector(directory).run(["/opt/cni/bin/bridge"], env, stdin).calls      # a counting run
    Injector(directory).run([...], env, stdin, at=17, variant=0)                    # call 17 fails by its first errno

The table CALLS has the calls that may fail, with the errnos that the kernel may really answer to each.
"""

import ctypes
import errno
import mmap
import os
import subprocess
from pathlib import Path

CALLS = {                       # system call: its possible errnos
    "accept4": "EMFILE ECONNABORTED ENOBUFS", "access": "EIO", "bind": "ENOMEM EADDRINUSE", "clone": "EAGAIN ENOMEM",
    "clone3": "EAGAIN ENOMEM", "connect": "ECONNREFUSED ENOMEM", "dup": "EMFILE", "epoll_wait": "EINTR",
    "execve": "ENOMEM EIO", "fallocate": "ENOSPC EOPNOTSUPP EINTR", "fcntl": "EMFILE ENOLCK", "flock": "ENOLCK EINTR",
    "fork": "EAGAIN ENOMEM", "fstat": "EIO", "fsync": "EIO", "ftruncate": "EIO ENOSPC", "getdents64": "EIO ENOMEM",
    "ioctl": "EPERM ENOMEM", "link": "EIO EMLINK", "linkat": "EIO EPERM",
    "memfd_create": "EMFILE ENOMEM", "mkdir": "ENOSPC EROFS EPERM",
    "mmap": "ENOMEM", "newfstatat": "EIO ENOMEM", "openat": "EIO EMFILE EPERM ENOMEM", "pidfd_open": "EMFILE ENOSYS",
    "pipe2": "EMFILE ENFILE", "poll": "EINTR ENOMEM", "ppoll": "EINTR ENOMEM", "pread64": "EIO",
    "pwrite64": "EIO ENOSPC", "read": "EIO", "readlink": "EIO ENOMEM", "recvfrom": "ENOBUFS EINTR ENOMEM",
    "recvmsg": "ENOMEM EINTR", "rename": "EIO ENOSPC EROFS", "sendfile": "EIO ENOMEM",
    "sendmsg": "ENOBUFS ENOMEM EINTR",
    "sendto": "ENOBUFS ENOMEM EPERM EINTR", "setns": "EPERM ENOMEM", "setsockopt": "ENOPROTOOPT ENOMEM",
    "socket": "EMFILE ENOBUFS EPERM EAFNOSUPPORT", "symlink": "EIO ENOSPC", "unlink": "EIO EPERM EROFS",
    "unlinkat": "EIO EPERM EROFS", "unshare": "EPERM ENOMEM", "utimensat": "EPERM EIO", "vfork": "EAGAIN ENOMEM",
    "wait4": "EINTR", "waitid": "EINTR", "write": "EIO ENOSPC",
}
ERRNOS = {name: text.split() for name, text in CALLS.items()} | {"message": ["an unknown type"]}
NAMES = [*CALLS, "message"]     # by the index that inject.c uses
CREATES = 0x80                  # beside the index: openat that may create or empty a file
CHANGING = frozenset((          # calls that another process, the kernel or the disk can notice
    "accept4 clone clone3 connect execve fallocate fork fsync ftruncate ioctl link linkat mkdir pwrite64 recvmsg "
    "rename sendfile sendmsg sendto symlink unlink unlinkat utimensat vfork wait4 waitid write").split())
LAUNCHER, INTERPRETER, PLUGIN = 1, 2, 3
KILL, NOTHING = -1, -2
TIME_LIMIT = 30                 # seconds for one request, on a busy machine
MAX_LOG = 4000


class Control(ctypes.Structure):
    _fields_ = [(name, ctypes.c_int) for name in ("armed", "at", "variant", "count", "hit", "error", "status", "pid")]
    _fields_ += [("log", ctypes.c_ushort * MAX_LOG)]


class Run:
    """The outcome of one command. status: negative for a signal, None if it hung. hit: the failed call as text, ""
    for none. calls: see calls()."""

    def __init__(self, status, stdout, stderr, control):
        self.status, self.stdout, self.stderr = status, stdout, stderr
        self.calls, self.hit = calls(control), hit(control)


def calls(control):
    """Return the calls in order, [(phase, name of the call, whether others may notice it)]."""
    found = [(entry >> 8, NAMES[entry & ~CREATES & 255], entry) for entry in control.log[:min(control.count, MAX_LOG)]]
    return [(phase, name, bool(entry & CREATES) or name in CHANGING) for phase, name, entry in found]


def hit(control):
    """Return the fault, 'openat EIO' or 'openat killed', "" if the chosen call was not reached."""
    if not control.hit:
        return ""
    name = NAMES[control.hit - 1]
    if control.variant == KILL:
        return f"{name} killed"
    return f"{name} {errno.errorcode[control.error]}" if control.error else f"{name} of an unknown type"


class Injector:
    """The injector that compiled() returned, with its control file in `directory`."""

    def __init__(self, program, directory):
        self.program, self.file = program, Path(directory) / "control"
        self.file.write_bytes(bytes(ctypes.sizeof(Control)))
        with open(self.file, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)
        self.control = Control.from_buffer(self.map)

    def command_line(self, *command):
        return [self.program, str(self.file), *command]

    def arm(self, at=0, variant=NOTHING):
        """Let call number `at`, counted from now, fail. 0: count the calls only."""
        control = self.control
        control.armed = control.count = control.hit = control.error = 0
        control.at, control.variant, control.armed = at, variant, 1

    def disarm(self):
        self.control.armed = 0

    def calls(self):
        return calls(self.control)

    def hit(self):
        return hit(self.control)

    def run(self, command, env, stdin, at=0, variant=NOTHING):
        self.control.status = 0
        self.arm(at, variant)
        with subprocess.Popen(self.command_line(*command), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, env=env) as process:
            try:
                stdout, stderr = process.communicate(stdin, TIME_LIMIT)
                status = os.waitstatus_to_exitcode(self.control.status)
            except subprocess.TimeoutExpired:
                process.kill()
                stdout, stderr = process.communicate()
                status = None
            except BaseException:
                process.kill()
                raise
        return Run(status, stdout, stderr, self.control)


def compiled(directory):
    """Compile the injector in `directory`. Return its path."""
    lines = (f"{{SYS_{name}, {{{', '.join(ERRNOS[name])}}}}}," for name in CALLS)
    Path(directory, "calls.h").write_text("\n".join(lines))
    program = f"{directory}/inject"
    subprocess.run(["gcc", "-O1", "-Wall", "-Werror", f"-I{directory}", "-o", program,
                    Path(__file__).with_name("inject.c")], check=True)
    return program


def errors(found, phases):
    """Return each way in which each of these calls can fail, [(number of the call, variant)]."""
    return [(at, variant) for at, (phase, name, _) in enumerate(found, 1) if phase in phases
            for variant in range(len(ERRNOS[name]))]


def kills(found, phases, *, each=False):
    """Return the calls before which a kill may have an effect of its own, [(number of the call, KILL)].

    A killed process leaves only changes that others can notice. So a kill before a call that no other process notices
    equals a kill before the next call. The calls that change something remain, and the first call after each. each:
    every call, for a process whose end another process notices immediately.
    """
    chosen, after = [], True
    for at, (phase, name, changes) in enumerate(found, 1):
        if name == "message":                   # part of the request that the call before it sends
            continue
        if phase in phases and (each or changes or after):
            chosen.append((at, KILL))
        after = changes
    return chosen
