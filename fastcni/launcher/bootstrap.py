"""Run first in the Python of a one-shot plugin: find fastcni's modules inside the plugin file, then answer one request.

The bootstrap runs from the plugin file, under `python -I -S`, and writes nothing to disk. pack.py packs the file and
makes the index. launcher.c calls main(); if Python runs the file as a zipapp, the file's own __main__.py calls main().
The bootstrap imports only built-in modules: each other module would take more time than the complete bootstrap.
"""

from __future__ import annotations

import builtins
import marshal
import posix
import sys
from _frozen_importlib import ModuleSpec
from _imp import create_builtin, create_dynamic, exec_builtin, exec_dynamic, is_builtin

MFD_CLOEXEC = 1  # linux/memfd.h
MFD_NOEXEC_SEAL = 8
POLLIN, POLLOUT = 1, 4  # asm-generic/poll.h
INTERNAL, IO_FAILURE, TRY_AGAIN_LATER = 999, 5, 11  # CNI error codes
EXHAUSTED = 12, 23, 24  # ENOMEM, ENFILE, EMFILE
NOT_MAPPED = "failed to map segment from shared object"  # the dynamic linker's text if mmap(2) fails

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import CodeType, ModuleType
    from typing import Any

    from fastcni.kit.call.request import Reply
    from fastcni.kit.call.request_log import Entry

    Index = dict[str, tuple[str, Any, int]]  # the offset is an int, or a str for the kind "elsewhere"
    Packed = list[tuple[str, str, str, bool, CodeType | None]]
    Parts = dict[str, list[tuple[int, int]]]


class Finder:
    """A meta path finder and loader of the modules in the open plugin file.

    index: {module name: (kind, offset, length)}; offset and length in bytes of the file. The Finder reads the code of a
    "package", "module" or "extension" when code imports the module. The import of a "group" runs all modules of some
    parts; its offset is the list of these parts' places. An "elsewhere" is an extension module of the interpreter; its
    offset is the file name, so that the Finder need not list the interpreter's directory.

    late: the marshalled index of further modules, which few requests import. extensions: the interpreter's directory of
    extension modules, for python_core.elf. plain: the modules, except packages, that preload() has run. parts: offsets
    of the parts that read() has read.
    paths: {offset: path of the shared object, as the dynamic linker can open it}.
    """

    __slots__ = ("extensions", "fd", "index", "late", "parts", "paths", "plain")

    def __init__(self, fd: int, index: Index, late: bytes, extensions: str = "") -> None:
        self.fd, self.index, self.late, self.extensions = fd, index, late, extensions
        self.paths: dict[int | str, str] = {}
        self.plain: dict[str, ModuleType] = {}
        self.parts: set[int] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if self.late and name not in self.index:
            self.index |= marshal.loads(self.late)
            self.late = b""
        found = self.spec(name) if name in self.index else None
        if not found and is_core():
            complete_start()  # from now on Python's own finder follows this finder, and searches next
        return found

    def spec(self, name: str) -> ModuleSpec | None:
        kind, offset, length = self.index[name]
        origin = None
        if kind == "group":
            try:
                preload(self.read(offset), self)
            except BaseException:  # the rollback may import the module again
                self.parts.clear()
                raise
            if name not in sys.modules:
                return None
            return ModuleSpec(name, self, is_package=name not in self.plain)  # type: ignore[arg-type]  # by protocol
        if kind == "extension":
            origin = self.paths.get(offset) or self.extension_path(name, offset, length)
        elif kind == "elsewhere":
            # with -I -S the last entry of sys.path is lib-dynload
            origin = f"{self.extensions if is_core() else sys.path[-1]}/{offset}"
            if not posix.access(origin, posix.R_OK):
                return None  # the module is built in, or has moved: Python's own finder finds it
        return ModuleSpec(name, self, origin=origin, is_package=kind == "package")  # type: ignore[arg-type]  # by protocol

    def read(self, places: Iterable[tuple[int, int]]) -> Packed:
        """Return the modules of the parts at these (offset, length). Skip the parts that were read before."""
        packed: Packed = []
        for offset, length in places:
            if offset not in self.parts:
                self.parts.add(offset)
                packed += marshal.loads(posix.pread(self.fd, length, offset))
        return packed

    def extension(self, name: str) -> ModuleType:
        """Make an extension module from the plugin file, or from python_core.elf if that has the module. The module's
        code has not run yet."""
        if is_builtin(name):
            return create_builtin(ModuleSpec(name, self))  # type: ignore[arg-type]  # by protocol
        return create_dynamic(self.spec(name))  # type: ignore[arg-type]  # spec() knows the name

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return create_dynamic(spec) if spec.origin else sys.modules.get(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        if module.__spec__.origin:  # type: ignore[union-attr]  # the import system has set __spec__
            exec_dynamic(module)
            return
        kind, offset, length = self.index[module.__name__]
        if kind != "group":  # a group's modules were run by spec()
            exec(marshal.loads(posix.pread(self.fd, length, offset)), module.__dict__)

    def extension_path(self, name: str, offset: int, length: int) -> str:
        """Return a path by which the dynamic linker can open the shared object inside the plugin file.

        A shared object can have several modules, and is loaded once. Its memory file stays open. Otherwise the next
        shared object could get the same descriptor and thus the same path, and the linker would use the first shared
        object again.
        """
        start = offset
        try:
            memory = posix.memfd_create(name, MFD_CLOEXEC)
        except PermissionError:  # sysctl vm.memfd_noexec = 2; mapping the file as code is still allowed
            memory = posix.memfd_create(name, MFD_CLOEXEC | MFD_NOEXEC_SEAL)
        while length > 0:
            sent = posix.sendfile(memory, self.fd, offset, length)
            if not sent:
                raise ImportError(f"{name}: the plugin file is cut short")
            offset, length = offset + sent, length - sent
        self.paths[start] = f"/proc/self/fd/{memory}"
        return self.paths[start]


def is_core() -> bool:
    """Return whether this is python_core.elf, before the main phase of Python's start."""
    return "path" not in sys.__dict__


def complete_when_needed() -> None:
    """Arrange that the main phase of Python's start runs when code first uses a result of that phase: an attribute of
    sys, or open().

    Watching imports is not enough. Python finds its frozen modules before the modules of the plugin file, and the
    frozen module `site` reads sys.prefix.
    """

    def attribute(name: str) -> Any:
        if name == "_stdlib_dir":  # the import of a frozen module checks whether this attribute exists
            raise AttributeError(f"module 'sys' has no attribute {name!r}")
        complete_start()
        return getattr(sys, name)

    def open_file(*args: Any, **named: Any) -> Any:
        complete_start()
        return builtins.open(*args, **named)

    sys.__getattr__, builtins.open = attribute, open_file  # type: ignore[method-assign]  # PEP 562


def complete_start() -> None:
    """Run the main phase of Python's start. Raises ImportError."""
    from python_core import complete  # type: ignore[import-not-found]  # built in

    sys.__dict__.pop("__getattr__", None)
    complete()
    sys.stdout = sys.stderr  # as main() does
    # The file's package finds the library's modules from now on. With -I -S the library is the entry before the last
    sys.modules["encodings"].__path__.append(f"{sys.path[-2]}/encodings")


def preload(packed: Packed, finder: Finder) -> None:
    """Run modules, each after the modules that it imports, without calling the import system for each.

    packed: [(module name, its package, its name in that package, whether it is a package, code)], code None for an
    extension. For a bridge ADD this saves 0.9 ms: half of it because the import system has less work, half because
    modules that are marshalled together share their names. While preload() runs, `from module import name` is faster,
    too: the import system would check for each import whether the module is a package, and each check would make the
    text of an AttributeError.
    """
    modules, plain, import_any = sys.modules, finder.plain, builtins.__import__

    def import_quickly(name: str, where: Any = None, local: Any = None, names: Any = (), level: int = 0) -> Any:
        if name in plain and names and not level:
            return plain[name]
        module = import_any(name, where, local, names, level)
        if names and not level and not hasattr(module, "__path__"):
            plain[name] = module
        return module

    builtins.__import__ = import_quickly  # type: ignore[assignment]  # names is read, and passed on
    try:
        for name, parent, child, is_package, code in packed:
            if name in modules:  # a part that ran before has the module, too
                continue
            module = modules[name] = type(sys)(name) if code else finder.extension(name)
            if is_package:
                module.__path__ = []
            try:
                if code:
                    exec(code, module.__dict__)
                elif is_builtin(name):
                    exec_builtin(module)
                else:
                    exec_dynamic(module)
            except BaseException:
                del modules[name]
                raise
            if not is_package:
                plain[name] = module
            if parent:
                setattr(modules[parent], child, module)
    finally:
        builtins.__import__ = import_any


def main(name: str, fd: int, contents: tuple[Index, bytes, str, Packed, Parts]) -> None:
    """Answer the request in the environment and on stdin as plugin `name`, then end the process. fd: a descriptor of
    the plugin file.

    contents: (index, late and extensions for the Finder, the modules that every plugin needs, {plugin name: [(offset,
    length) of the parts with the other modules that the plugin needs]}).
    """
    status = 1
    try:
        sys.stdout = sys.stderr  # stdout is for the answer, even if a plugin of another distribution prints
        if is_core():
            complete_when_needed()
        index, late, extensions, packed, parts = contents
        finder = Finder(fd, index, late, extensions)
        sys.meta_path.insert(2, finder)  # after the finders of built-in and frozen modules
        preload(packed + finder.read(parts.get("chain" if name == "netavark" else name, ())), finder)
        # Not earlier, because python_core.c may execute the interpreter before this line
        posix.set_inheritable(fd, False)
        words = daemon_words(sys.argv) if name == "dhcp" else []
        status = run_daemon(words[1:]) if words else answer(name)
    except BaseException as error:
        status = report_failure(name, error)
    finally:
        posix._exit(status)  # Python's own exit spends a millisecond on memory that the kernel frees anyway


def daemon_words(argv: list[str]) -> list[str]:
    """Return the arguments of `dhcp daemon ...`, [] for a request. If the launcher has started Python, the arguments
    follow -c, the plugin's name and a descriptor."""
    words = argv[3:] if argv[0] == "-c" else argv[1:]
    return words if words[:1] == ["daemon"] else []


def run_daemon(words: list[str]) -> int:
    """Run the daemon of the dhcp plugin until it ends. Returns the exit status."""
    from fastcni.dhcp.daemon import main as run

    return run(words)


def answer(name: str) -> int:
    """Run one request through handle() and write its answer. Returns the exit status.

    handle() writes the result of an ADD before it returns. If the result cannot be written, handle() rolls back the
    ADD.
    """
    from fastcni.handle import handle, needs_stdin
    from fastcni.kit.call.request import MAX_STDIN_BYTES
    from fastcni.launcher.one_shot import OneShotMode

    env = {
        key.decode("utf-8", "surrogateescape"): value.decode("utf-8", "surrogateescape")
        for key, value in posix.environ.items()
    }
    if env.get("FASTCNI_WIRE"):
        trace_wire()
    try:
        stdin = read_stdin(MAX_STDIN_BYTES + 1) if needs_stdin(env) else b""
    except OSError as error:
        what = f"error reading from stdin: {error.strerror}"
        write(1, error_document(name, IO_FAILURE, what, "stdin has to be the network configuration"))
        return 1
    run: Callable[..., Reply] = handle
    write_result: Callable[[int, bytes], None] = write
    if name == "netavark":              # podman's protocol
        from fastcni.launcher import netavark

        env, stdin, run, write_result = netavark.begin(env, stdin, write)
    log = env.get("FASTCNI_LOG") and log_entry(name, env, stdin)
    mode = OneShotMode(write_result)
    reply = run(name, env, stdin, mode)
    write(2, reply.stderr)
    try:
        status = mode.delivered.status if mode.delivered else print_answer(reply)
    except OSError as error:
        what = f"{name}: cannot write this answer to stdout: {error.strerror} (errno {error.errno})\n"
        write(2, what.encode() + reply.stdout + b"\n")
        status = 1
    if log:
        log.write(env["FASTCNI_LOG"], reply)
    return status


def print_answer(reply: Reply) -> int:
    write(1, reply.stdout)
    return reply.status


def log_entry(name: str, env: dict[str, str], stdin: bytes) -> Entry:
    """Return the object that logs this request. Without the variable FASTCNI_LOG the logging module is not imported."""
    from fastcni.kit.call.request_log import Entry

    return Entry(name, env, stdin)


def trace_wire() -> None:
    """Write each netlink message of this process to stderr."""
    from fastcni.kernel import waiting, wire_trace

    waiting.here.request = wire_trace.Traced(lambda data: write(2, data))


def read_stdin(limit: int) -> bytes:
    """Return all of standard input, cut at `limit` bytes. Raises OSError."""
    pieces = []
    while limit > 0:
        try:
            piece = posix.read(0, min(limit, 1 << 20))
        except BlockingIOError:
            wait(0, POLLIN)
            continue
        if not piece:
            break
        pieces.append(piece)
        limit -= len(piece)
    return b"".join(pieces)


def write(fd: int, data: bytes) -> None:
    """Write all of `data`, even if the stream accepts little at a time. Errors of stderr (2) are ignored.

    After a write to stdout (1), programs that this process starts do not inherit stdout, and python_core.c prints no
    error document.
    """
    while data:
        try:
            data = data[posix.write(fd, data) :]
        except BlockingIOError:
            wait(fd, POLLOUT)
        except OSError:
            if fd == 2:
                return
            raise
    if fd == 1:
        posix.set_inheritable(1, False)


def wait(fd: int, events: int) -> None:
    """Wait until a non-blocking stream is ready for `events`."""
    from select import poll

    waiting = poll()
    waiting.register(fd, events)
    waiting.poll()


def report_failure(name: str, error: BaseException) -> int:
    """Write an exception that handle() did not catch: its traceback to stderr, a CNI error to stdout. Returns 1."""
    try:
        sys.__excepthook__(type(error), error, error.__traceback__)
    except BaseException:
        pass
    # ImportError itself means that the dynamic linker could not read a module; a missing module raises a subclass.
    code = IO_FAILURE if isinstance(error, OSError) or type(error) is ImportError else INTERNAL
    if is_exhaustion(error):
        code = TRY_AGAIN_LATER
    try:
        write(1, error_document(name, code, f"{name}: {type(error).__name__}: {error}", f"in {place(error)}"))
    except BaseException:
        pass  # stdout is closed
    return 1


def is_exhaustion(error: BaseException) -> bool:
    """Return whether the process has run out of descriptors or memory. The function compares the dynamic linker's text,
    because the linker gives no errno."""
    if isinstance(error, MemoryError) or getattr(error, "errno", 0) in EXHAUSTED:
        return True
    return str(error).endswith((NOT_MAPPED, *map(posix.strerror, EXHAUSTED)))


def place(error: BaseException) -> str:
    """Return the innermost line of a traceback, as file:line."""
    step = error.__traceback__
    while step and step.tb_next:
        step = step.tb_next
    return f"{step.tb_frame.f_code.co_filename}:{step.tb_lineno}" if step else "?"


def error_document(name: str, code: int, msg: str, details: str) -> bytes:
    """Return the bytes of an error in the protocol of plugin `name`. The protocol of netavark has no code and no
    details. Use no other modules of fastcni, which may be damaged."""
    if name == "netavark":
        text = f'{{"error": "{escape(msg)}"}}'
    else:
        text = f'{{\n    "code": {code},\n    "msg": "{escape(msg)}",\n    "details": "{escape(details)}"\n}}'
    return text.encode("utf-8", "replace")


def escape(text: str) -> str:
    """Return `text` as the inside of a JSON string."""
    return "".join(c if c >= " " and c not in '"\\' else f"\\u{ord(c):04x}" for c in text)
