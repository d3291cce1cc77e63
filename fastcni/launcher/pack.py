"""The bytes of a plugin file: the ELF program with a zip of fastcni's code behind it.

    +----------------------+  byte 9 to 15: the mark b"fastcni", in the padding of the ELF identification
    | launcher.elf         |  a struct config in its data, filled in here: interpreter, version, bootstrap
    +----------------------+
    | zip, nothing packed: |
    |   code               |  marshalled code of every module that a one-shot plugin may need, end to end
    |   bundle/bridge, ... |  the modules that a plugin does need, marshalled together: see bootstrap.preload
    |   leaves.so          |  the compiled leaves: one shared object, since each one more takes longer to load
    |   jeepney-LICENSE    |  the licence of a library, whose modules follow fastcni's in code
    |   refuse.py          |  source, for an interpreter that cannot read our code
    |   boot               |  marshalled (code of bootstrap.py, (index, bundles)); read by the bootstrap text
    |   __main__.py        |  the same text once more, for `python3 -I -S FILE`
    +----------------------+

The bootstrap text holds offsets into this file, so the launcher and Python need not search for anything.
"""

from __future__ import annotations

import _frozen_importlib_external
import _imp
import io
import marshal
import os
import struct
import sys
import zipfile
from collections.abc import Sequence

from fastcni.kit.call.deadlines import ANSWER_S, QUICK_ANSWER_S, UNREAD_S
from fastcni.launcher import modules
from fastcni.launcher.closure import modules_of
from fastcni.launcher.modules import LEAVES, LIBRARY, Module, PackError, read
from fastcni.launcher.order import load_order, needs_of
from fastcni.plugins import BUILT_IN
from fastcni.spec.errors import EXHAUSTED
from fastcni.third_party import ThirdParty

HERE = os.path.dirname(os.path.abspath(__file__))
MARK = b"fastcni"
MARK_AT = 9  # EI_PAD, elf(5): bytes that have no meaning
BORROWED = ("_json", "_sha2", "_sha512", "_socket", "fcntl")  # of the interpreter, where they are not built in

CONFIG_MAGIC = b"fastcni-config\n\0"  # struct config of launcher.c
CONFIG = struct.Struct("16s1024s32s1008s4I")
DEADLINES = (UNREAD_S, ANSWER_S, QUICK_ANSWER_S)

# {file} opens or names the plugin file. The test comes first: code of another Python cannot even be read.
# If the file cannot be read, this prints the error document: code 11 if descriptors or memory have run out.
BOOTSTRAP = """\
import sys,posix,marshal,_frozen_importlib_external as e
try:
 f={file}
 if e.MAGIC_NUMBER=={magic!r}and sys.abiflags=={abiflags!r}:
  c,i=marshal.loads(posix.pread(f,{boot[1]},{boot[0]}));exec(c)
 else:exec(posix.pread(f,{refuse[1]},{refuse[0]}))
except Exception as x:
 n=getattr(x,'errno',0);c=11 if n in{exhausted}or isinstance(x,MemoryError)else 5
 t=x.strerror+' (errno %d)'%n if n else type(x).__name__
 posix.write(1,('{{"code":%d,"msg":"read the plugin file: %s",'
'"details":"if this does not pass, run `fastcni install` again"}}'%(c,t)).encode());posix._exit(1)
main({name},f,i)
"""
BY_LAUNCHER = {"file": "int(sys.argv[2])", "name": "sys.argv[1]"}
BY_PYTHON = {"file": "posix.open(sys.argv[0],524288)", "name": "sys.argv[0].rsplit('/',1)[-1]"}  # O_CLOEXEC

REFUSE = """\
import posix, sys
me = sys.executable.replace("\\\\", "\\\\\\\\").replace('"', '\\\\"')
is_now = "%d.%d.%d%s" % (sys.version_info[:3] + (sys.abiflags,))
posix.write(1, ('''{{
    "code": 999,
    "msg": "the Python interpreter %s is Python %s, this file was installed for Python {version}",
    "details": "run `fastcni install --bin-dir DIR` again, with the Python that is to run it"
}}''' % (me, is_now)).encode("utf-8", "replace"))
posix._exit(1)
"""


def pack(interpreter: str, deadlines: Sequence[float] = DEADLINES, third_party: Sequence[ThirdParty] = ()) -> bytes:
    """The bytes of a plugin file that starts `interpreter`, an absolute path to the same Python as this one.

    deadlines: seconds that it waits for a server; other ones are for tests. third_party: plugins of other
    distributions, whose modules go into the file, too.

    Raises PackError when a part is not compiled, a plugin cannot be packed, or the path is too long for the launcher.
    """
    elf = marked(read(os.path.join(HERE, "launcher.elf")))
    own = modules.own({plugin.kind: plugin.module for plugin in third_party})
    others = {plugin.kind: modules_of(plugin, own) for plugin in third_party}
    every = own | modules.library()
    for found in others.values():
        every |= found
    blob, offsets = joined(every)
    image = io.BytesIO(elf)
    image.seek(0, io.SEEK_END)
    with zipfile.ZipFile(image, "a") as out:
        start = add(out, image, "code", blob)[0]
        index: dict[str, tuple[str, int | str, int]] = {
            name: (kind, start + at, size) for name, (kind, at, size) in offsets.items()}
        place = add(out, image, "leaves.so", modules.leaves())
        index |= {f"fastcni.{leaf}": ("extension", *place) for leaf in LEAVES}
        for data in modules.library_licences():
            add(out, image, f"{LIBRARY}-LICENSE", data)
        index |= {name: ("elsewhere", name + _imp.extension_suffixes()[0], 0) for name in BORROWED}
        bundled = {kind: add(out, image, f"bundle/{kind}", data) for kind, data in bundles(own, others).items()}
        places = {
            "refuse": add(out, image, "refuse.py", REFUSE.format(version=version()).encode()),
            "boot": add(out, image, "boot", marshal.dumps((modules.bootstrap(), (index, bundled)))),
        }
        add(out, image, "__main__.py", bootstrap_text(places, BY_PYTHON))
    return configured(image.getvalue(), interpreter, bootstrap_text(places, BY_LAUNCHER), deadlines)


def version() -> str:
    """The Python this process runs and packs for, as in "3.11" or "3.13t"."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}"


def bundles(own: dict[str, Module], others: dict[str, dict[str, Module]]) -> dict[str, bytes]:
    """{CNI type: marshalled [(module name, is a package, code)]}: what a request for it needs, fit for running.

    With a plugin that asks IPAM goes host-local, the usual delegate. The modules of another distribution are left to
    the import system: they may import each other in a circle, and use what it sets in a module.
    """
    needs = needs_of({name: module.source for name, module in own.items()})
    ends = {kind: [module] for kind, module in BUILT_IN.items()}
    for kind, theirs in others.items():
        known = {name: module.source for name, module in theirs.items()} | dict.fromkeys(own, b"")
        ends[kind] = sorted({name for found in needs_of(known).values() for name in found if name in own})
    found = {}
    for kind, names in ends.items():
        order = load_order(needs, [*modules.ENTRY, *names])
        if "fastcni.kit.call.ipam" in order:
            order = load_order(needs, [*order, BUILT_IN["host-local"]])
        found[kind] = marshal.dumps([(name, own[name].is_package, own[name].code) for name in order])
    return found


def joined(modules: dict[str, Module]) -> tuple[bytes, dict[str, tuple[str, int, int]]]:
    """The code of all modules: (blob, {module name: (kind, offset in blob, length)})."""
    pieces, index, at = [], {}, 0
    for name, module in modules.items():
        data = marshal.dumps(module.code)
        index[name] = ("package" if module.is_package else "module", at, len(data))
        pieces.append(data)
        at += len(data)
    return b"".join(pieces), index


def add(out: zipfile.ZipFile, image: io.BytesIO, name: str, data: bytes) -> tuple[int, int]:
    """Store one member; return (offset, length) of its bytes in the file."""
    info = zipfile.ZipInfo(name)  # of 1980: the same input gives the same file
    info.external_attr = 0o644 << 16
    out.writestr(info, data)
    end = image.tell()
    assert image.getbuffer()[end - len(data) : end] == data
    return end - len(data), len(data)


def bootstrap_text(places: dict[str, tuple[int, int]], way: dict[str, str]) -> bytes:
    """The few lines of Python that find the boot member, or the refusal."""
    magic = _frozen_importlib_external.MAGIC_NUMBER
    return BOOTSTRAP.format(magic=magic, abiflags=sys.abiflags, exhausted=EXHAUSTED, **places, **way).encode()


def marked(elf: bytes) -> bytes:
    """The ELF program with the mark by which a launcher of fastcni is known without running it."""
    return elf[:MARK_AT] + MARK + elf[MARK_AT + len(MARK) :]


def configured(image: bytes, interpreter: str, bootstrap: bytes, deadlines: Sequence[float]) -> bytes:
    """The file with the launcher's config filled in."""
    at = image.find(CONFIG_MAGIC)
    fields = (os.fsencode(interpreter), version().encode(), bootstrap)
    for field, room in zip(fields, (1024, 32, 1008), strict=True):
        if len(field) >= room:
            raise PackError(f"{os.fsdecode(field)!r} is longer than the launcher's {room - 1} bytes for it")
    milliseconds = [int(seconds * 1000) for seconds in deadlines]
    return image[:at] + CONFIG.pack(CONFIG_MAGIC, *fields, *milliseconds, 0) + image[at + CONFIG.size :]
