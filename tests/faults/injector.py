"""Run a command, and let one of its system calls fail or kill the process: the driver of inject.c, which gcc compiles
once.

    calls = Injector(directory).run(["/opt/cni/bin/bridge"], env, stdin).calls      # counts the calls only
    Injector(directory).run([...], env, stdin, at=17, variant=0)  # call 17 fails with the first errno of CALLS

The table CALLS has the system calls that may fail. For each, CALLS has the errnos that the kernel can return.
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
NAMES = [*CALLS, "message"]     # indexed by the numbers of inject.c
CREATES = 0x80                  # a flag next to the index: an openat() that may create or truncate a file
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
    """The outcome of one command. status: the exit status; negative for a signal, None if the command hung. hit: the
    failed call as text, "" for none. calls: see calls()."""

    def __init__(self, status, stdout, stderr, control):
        self.status, self.stdout, self.stderr = status, stdout, stderr
        self.calls, self.hit = calls(control), hit(control)


def calls(control):
    """Return the system calls in order, [(phase, name of the call, whether other processes may notice the call)]."""
    found = [(entry >> 8, NAMES[entry & ~CREATES & 255], entry) for entry in control.log[:min(control.count, MAX_LOG)]]
    return [(phase, name, bool(entry & CREATES) or name in CHANGING) for phase, name, entry in found]


def hit(control):
    """Return the injected fault, such as 'openat EIO' or 'openat killed', or "" if the command did not reach the chosen
    call."""
    if not control.hit:
        return ""
    name = NAMES[control.hit - 1]
    if control.variant == KILL:
        return f"{name} killed"
    return f"{name} {errno.errorcode[control.error]}" if control.error else f"{name} of an unknown type"


class Injector:
    """The injector program that compiled() built, with its control file in `directory`."""

    def __init__(self, program, directory):
        self.program, self.file = program, Path(directory) / "control"
        self.file.write_bytes(bytes(ctypes.sizeof(Control)))
        with open(self.file, "r+b") as file:
            self.map = mmap.mmap(file.fileno(), 0)
        self.control = Control.from_buffer(self.map)

    def command_line(self, *command):
        return [self.program, str(self.file), *command]

    def arm(self, at=0, variant=NOTHING):
        """Let system call number `at`, counted from now, fail. at=0: only count the calls."""
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
    """Compile inject.c in `directory`. Return the program's path."""
    lines = (f"{{SYS_{name}, {{{', '.join(ERRNOS[name])}}}}}," for name in CALLS)
    Path(directory, "calls.h").write_text("\n".join(lines))
    program = f"{directory}/inject"
    subprocess.run(["gcc", "-O1", "-Wall", "-Werror", f"-I{directory}", "-o", program,
                    Path(__file__).with_name("inject.c")], check=True)
    return program


def errors(found, phases):
    """Return [(number of the call, variant)]: each errno of each of these calls."""
    return [(at, variant) for at, (phase, name, _) in enumerate(found, 1) if phase in phases
            for variant in range(len(ERRNOS[name]))]


def kills(found, phases, *, each=False):
    """Return [(number of the call, KILL)] of the calls before which a kill may have a different effect.

    A killed process leaves only changes that other processes can notice. So a kill before a call that no process can
    notice has the effect of a kill before the next call. kills() returns the calls that change something, and the first
    call after each. each: return every call, for a process whose end another process notices immediately.
    """
    chosen, after = [], True
    for at, (phase, name, changes) in enumerate(found, 1):
        if name == "message":                   # belongs to the request that the previous call sends
            continue
        if phase in phases and (each or changes or after):
            chosen.append((at, KILL))
        after = changes
    return chosen
