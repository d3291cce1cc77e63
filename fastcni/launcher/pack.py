"""Make the bytes of a plugin file: the ELF program followed by a zip of fastcni's code.

    +----------------------+
    | launcher.elf         |  a struct config in its data, filled in here: interpreter, version, bootstrap
    +----------------------+
    | zip, nothing packed: |
    |   code               |  marshalled code of each other module that a one-shot plugin may need, concatenated
    |   part/ipam          |  the modules that every plugin which asks IPAM needs, marshalled together
    |   part/links         |  the modules that every other plugin which reads links needs, marshalled together
    |   part/of-bridge, ...|  the other modules that a plugin, or several, need, marshalled together
    |   part/late-1, ...   |  modules that firewall backends need; a part has the modules that the same backends need
    |   leaves.so          |  fastcni's extension modules in one shared object, which loads faster than several
    |   version            |  fastcni's version
    |   jeepney-LICENSE    |  the licence of jeepney, a library whose modules follow fastcni's in code
    |   python-LICENSE     |  the licence of Python: code has three of Python's modules, for python_core.elf
    |   refuse.py          |  source code, for an interpreter that cannot read the marshalled code
    |   boot               |  marshalled (code of bootstrap.py, (indexes, the modules that every plugin needs, places
    |                      |  of the parts)), for bootstrap.main; read by the bootstrap text
    |   __main__.py        |  the bootstrap text, for `python3 -I -S FILE`
    +----------------------+

The bootstrap text contains offsets into this file, so that the launcher and Python need not search.
"""

from __future__ import annotations

import _frozen_importlib_external
import hashlib
import importlib
import io
import marshal
import os
import struct
import sys
import zipfile
from collections.abc import Container, Iterable, Mapping, Sequence
from types import CodeType

import fastcni
from fastcni import plugins
from fastcni.kit.call.deadlines import ANSWER_S, QUICK_ANSWER_S, UNREAD_S
from fastcni.launcher import interpreters, modules
from fastcni.launcher.closure import modules_of
from fastcni.launcher.core import LIBRARIES_BYTES, NO_CORE, fields_of, libraries_of
from fastcni.launcher.interpreters import version
from fastcni.launcher.modules import LEAVES, LIBRARY, Module, PackError, read
from fastcni.launcher.parts import Division, divide
from fastcni.spec.errors import EXHAUSTED
from fastcni.spec.version import ALL, version_reply
from fastcni.third_party import ThirdParty

HERE = os.path.dirname(os.path.abspath(__file__))
VERSION_MEMBER = "version"
# Extension modules that plugins need from the interpreter's directory, unless the modules are built in
BORROWED = ("_json", "_sha2", "_sha256", "_sha512", "_socket", "fcntl")

CONFIG_MAGIC = b"fastcni-config\n\0"  # struct config of launcher.c
CONFIG = struct.Struct("16s1024s32s1008s1024s504s3Q10I4I1024s")
# Sizes in bytes of the fields interpreters, version, bootstrap, server and libraries
FIELDS = (interpreters.LIST_BYTES, 32, 1008, 1024, LIBRARIES_BYTES)
VERSIONS_BYTES = 1024
SERVER_ARGUMENTS = 15  # arguments of the server's command line: MAX_ARGUMENTS of autostart.h
DEADLINES = (UNREAD_S, ANSWER_S, QUICK_ANSWER_S)

# {file} opens or names the plugin file. The code first tests the Python, because another Python cannot even read the
# packed code. The garbage collector is off: it would take 0.3 ms to search modules that live until the end. {failed} is
# a string, which is compiled only if needed, because that takes as long as to compile the rest. python_core.elf with
# the same extension modules is of the same Python. So only an interpreter imports io and the module with the magic
# number.
BOOTSTRAP = """\
import sys,posix,marshal,gc
try:
 gc.disable()
 f={file};r=getattr(sys,'leaves',0)=={leaves!r}
 if not hasattr(sys,'leaves'):
  import _frozen_importlib_external as e;r=e.MAGIC_NUMBER=={magic!r}and e._imp.extension_suffixes()[0]=={suffix!r}
 if r:
  c,i=marshal.loads(posix.pread(f,{boot[1]},{boot[0]}));exec(c)
 else:exec(posix.pread(f,{refuse[1]},{refuse[0]}))
except Exception as x:exec({failed!r})
main({name},f,i)
"""
# Code that prints the error document if the file cannot be read: code 11 if descriptors or memory have run out.
FAILED = """\
n=getattr(x,'errno',0);c=11 if n in{exhausted}or isinstance(x,MemoryError)else 5
t=x.strerror+' (errno %d)'%n if n else type(x).__name__
posix.write(1,('{{"code":%d,"msg":"read the plugin file: %s",'
'"details":"if this does not pass, run `fastcni install` again"}}'%(c,t)).encode());posix._exit(1)
"""
BY_LAUNCHER = {"file": "int(sys.argv[2])", "name": "sys.argv[1]"}
BY_PYTHON = {"file": "posix.open(sys.argv[0],524288)", "name": "sys.argv[0].rsplit('/',1)[-1]"}  # O_CLOEXEC


def pack(interpreter: str, deadlines: Sequence[float] = DEADLINES, third_party: Sequence[ThirdParty] = (),
         alternatives: Sequence[str] = (), server: Sequence[str] = (), core: str = "", core_path: str = "") -> bytes:
    """Return the bytes of a plugin file that starts `interpreter`, an absolute path to the same Python as this one.

    alternatives: other paths at which that Python may be if `interpreter` no longer exists; pack() uses as many as fit.
    core: the path of python_core.elf, if it is of the interpreter's build; the launcher tries it first. core_path: the
    path of the copy of `core` on the node, with any modification time; by default the path `core`.
    server: the command line with which a request that finds no server starts the server; by default none.
    deadlines: seconds that the plugin file waits for a server; only tests change the default. third_party: plugins of
    other distributions; pack() adds their modules.

    Raises PackError if a part is not compiled, a plugin cannot be packed, or a path is too long for the launcher;
    OSError if `core` is given but the interpreter does not exist.
    """
    others = list(alternatives)
    first, *rest = [core_path or core, interpreter, *others] if core else [interpreter, *others]
    pythons = interpreters.as_list(first, rest)
    described = fields_of(core, with_time=not core_path) if core else NO_CORE
    elf = read(os.path.join(HERE, "launcher.elf"))
    own = modules.own({plugin.kind: plugin.module for plugin in third_party})
    theirs = {plugin.kind: modules_of(plugin, own) for plugin in third_party}
    division = divide(own, theirs)
    every = division.shared[""]
    late = division.late | modules.daemon() | modules.library() | (modules.codecs() if core else {})
    for found in theirs.values():
        late |= found
    blob, offsets = joined(late)
    image = io.BytesIO(elf)
    image.seek(0, io.SEEK_END)
    with zipfile.ZipFile(image, "a") as out:
        start = add(out, image, "code", blob)[0]
        late_index: dict[str, tuple[str, object, int]] = {
            name: (kind, start + at, size) for name, (kind, at, size) in offsets.items()
        }
        place = add(out, image, "leaves.so", modules.leaves())
        index: dict[str, tuple[str, int | str, int]] = {f"fastcni.{leaf}": ("extension", *place) for leaf in LEAVES}
        add(out, image, VERSION_MEMBER, fastcni.__version__.encode())
        for data in modules.library_licences():
            add(out, image, f"{LIBRARY}-LICENSE", data)
        if core:
            add(out, image, "python-LICENSE", read(os.path.join(HERE, "python_core.LICENSE")))
        late_parts = [add(out, image, f"part/late-{number}", marshal.dumps(packed(own, group)))
                      for number, (group, _) in enumerate(division.together, 1)]
        for group, numbers in division.together:
            late_index |= dict.fromkeys(group, ("group", [late_parts[number] for number in numbers], 0))
        index |= {name: ("elsewhere", name + interpreters.suffix(), 0) for name in BORROWED}
        parts = add_parts(out, image, own, division)
        late_index |= {name: ("group", parts[kind], 0) for name, kind in division.alone.items()}
        contents = index, marshal.dumps(late_index), modules.extensions(), packed(own, every), parts
        places = {
            "refuse": add(out, image, "refuse.py", interpreters.refusal(pythons)),
            "boot": add(out, image, "boot", marshal.dumps((modules.bootstrap(), contents))),
        }
        add(out, image, "__main__.py", bootstrap_text(places, BY_PYTHON))
    by_launcher = bootstrap_text(places, BY_LAUNCHER)
    if core:
        by_launcher = built_for(interpreter) + by_launcher
    return configured(image.getvalue(), pythons, by_launcher, server, libraries_of(interpreter), described, deadlines,
                      as_versions(version_answers(third_party)))


def add_parts(out: zipfile.ZipFile, image: io.BytesIO, own: dict[str, Module],
              division: Division) -> dict[str, list[tuple[int, int]]]:
    """Add the parts that plugins load at their start. Return {plugin: the places of its parts}. Plugins with the same
    modules have one part."""
    every = division.shared[""]
    shared = {name: [add(out, image, f"part/{name}", marshal.dumps(packed(own, names, every)))] if name else []
              for name, names in division.shared.items()}
    parts, written = {}, {}
    for kind, names in division.rests.items():
        if tuple(names) not in written:
            written[tuple(names)] = add(out, image, f"part/of-{kind}", marshal.dumps(packed(own, names)))
        parts[kind] = [*shared[division.shared_of[kind]], written[tuple(names)]]
    return parts


def built_for(interpreter: str) -> bytes:
    """Return the first line of a program for python_core.elf: the interpreter's path, size and modification time."""
    status = os.stat(interpreter)
    return b"#!%b %d %d\n" % (os.fsencode(interpreter), status.st_size, int(status.st_mtime))


def packed(
    own: dict[str, Module], names: Iterable[str], without: Container[str] = ()
) -> list[tuple[str, str, str, bool, CodeType | None]]:
    """Return the input of bootstrap.preload() for `names`: the modules' code, and None for an extension module."""
    found = []
    for name in names:
        if name not in without:
            parent, _, child = name.rpartition(".")
            is_package, code = (own[name].is_package, own[name].code) if name in own else (False, None)
            found.append((name, sys.intern(parent), sys.intern(child), is_package, code))
    return found


def joined(modules: dict[str, Module]) -> tuple[bytes, dict[str, tuple[str, int, int]]]:
    """Return the marshalled code of all modules: (blob, {module name: (kind, offset in blob, length)})."""
    pieces, index, at = [], {}, 0
    for name, module in modules.items():
        data = marshal.dumps(module.code)
        index[name] = ("package" if module.is_package else "module", at, len(data))
        pieces.append(data)
        at += len(data)
    return b"".join(pieces), index


def add(out: zipfile.ZipFile, image: io.BytesIO, name: str, data: bytes) -> tuple[int, int]:
    """Add one member to the zip; return (offset, length) of the member's bytes in the file."""
    info = zipfile.ZipInfo(name)  # dated 1980, so that the same input gives the same file
    info.external_attr = 0o644 << 16
    out.writestr(info, data)
    end = image.tell()
    assert image.getbuffer()[end - len(data) : end] == data
    return end - len(data), len(data)


def bootstrap_text(places: dict[str, tuple[int, int]], way: dict[str, str]) -> bytes:
    """Return the Python source that runs the zip's member `boot`, or in another Python the member `refuse.py`."""
    magic = _frozen_importlib_external.MAGIC_NUMBER
    failed = FAILED.format(exhausted=EXHAUSTED)
    return BOOTSTRAP.format(magic=magic, suffix=interpreters.suffix(), leaves=leaves_digest(), failed=failed, **places,
                            **way).encode()


def leaves_digest() -> str:
    """Return the digest by which python_core.elf identifies its extension modules; setup.py computes the same
    digest."""
    return hashlib.sha256(modules.leaves()).hexdigest()[:16]


def as_field(texts: Sequence[str]) -> bytes:
    """Encode a list for the launcher: a NUL ends each text. NULs fill the rest of the field."""
    return b"".join(os.fsencode(text) + b"\0" for text in texts)


def version_answers(third_party: Iterable[ThirdParty]) -> dict[bytes, list[str]]:
    """Return {answer to VERSION: CNI types of the plugins that give it}, for the launcher. A plugin of another
    distribution that cannot be imported is not in the answer, so that Python reports the error."""
    found: dict[bytes, list[str]] = {}
    for kind, module in [*plugins.BUILT_IN.items(), *((it.kind, it.module) for it in third_party)]:
        try:
            supported = getattr(importlib.import_module(module), "VERSIONS", ALL)
            found.setdefault(version_reply(supported), []).append(kind)
        except (Exception, SystemExit):
            if kind in plugins.BUILT_IN:
                raise
    return found


def as_versions(answers: Mapping[bytes, Iterable[str]]) -> bytes:
    """Return the launcher's field `versions`. Python answers VERSION for the plugins that do not fit into the field."""
    field = b""
    for answer, kinds in answers.items():
        part = answer + b"\0" + as_field(list(kinds)) + b"\0"
        field += part if len(field) + len(part) < VERSIONS_BYTES else b""
    return field


def configured(image: bytes, pythons: Sequence[str], bootstrap: bytes, server: Sequence[str], libraries: Sequence[str],
               core: Iterable[int], deadlines: Sequence[float], versions: bytes) -> bytes:
    """Return the plugin file `image` with the launcher's struct config filled in."""
    at = image.find(CONFIG_MAGIC)
    if len(server) > SERVER_ARGUMENTS or "" in server:
        raise PackError(f"the launcher cannot start this command line: {server!r}")
    fields = (as_field(pythons), version().encode(), bootstrap, as_field(server), as_field(libraries))
    for field, room in zip(fields, FIELDS, strict=True):
        if len(field) >= room:
            raise PackError(f"{os.fsdecode(field)!r} is longer than the launcher's {room - 1} bytes for it")
    milliseconds = [int(seconds * 1000) for seconds in deadlines]
    config = CONFIG.pack(CONFIG_MAGIC, *fields, *core, *milliseconds, 0, versions)
    return image[:at] + config + image[at + CONFIG.size :]


def read_config(head: bytes) -> tuple[str, str, str, tuple[int, ...]]:
    """Read the first bytes of a plugin file. Return the path of its interpreter, the interpreter's version, and the
    path and core.fields_of() of its python_core.elf. Missing values are "" or ()."""
    at = head.find(CONFIG_MAGIC)
    if at < 0 or len(head) < at + CONFIG.size:
        return "", "", "", ()
    _, pythons, python, _, _, _, *numbers, _ = CONFIG.unpack_from(head, at)
    first, second, *_ = os.fsdecode(pythons).split("\0")
    has_core, python = numbers[0] > 0, python.rstrip(b"\0").decode("ascii", "replace")
    return (second, python, first, tuple(numbers[:len(NO_CORE)])) if has_core else (first, python, "", ())
