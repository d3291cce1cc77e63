"""Makes the bytes of a plugin file: the ELF program with a zip of fastcni's code behind it.

    +----------------------+  byte 9 to 15: the mark b"fastcni", in the padding of the ELF identification
    | launcher.elf         |  a struct config in its data, filled in here: interpreter, version, bootstrap
    +----------------------+
    | zip, nothing packed: |
    |   code               |  marshalled code of every module a one-shot plugin may need, end to end
    |   bundle/bridge, ... |  once more, all that a plugin does need, marshalled together: see bootstrap.preload
    |   leaves.so          |  the compiled leaves: one shared object, since each one more takes longer to load
    |   jeepney-LICENSE    |  of a library whose modules are behind ours in code
    |   refuse.py          |  source, for an interpreter that cannot read our code
    |   boot               |  marshalled (code of bootstrap.py, (index, bundles)); read by the bootstrap text
    |   __main__.py        |  the same text once more, for `python3 -I -S FILE`
    +----------------------+

The bootstrap text holds offsets into this file, so neither way in searches for anything.
"""

import _frozen_importlib_external
import _imp
import importlib.util
import io
import marshal
import os
import struct
import sys
import zipfile

import fastcni
from fastcni.kit.call.deadlines import ANSWER_SECONDS, QUICK_ANSWER_SECONDS, UNREAD_SECONDS
from fastcni.launcher.order import load_order, needs_of
from fastcni.launcher.strip import stripped
from fastcni.plugins import TABLE
from fastcni.spec.errors import EXHAUSTED

HERE = os.path.dirname(os.path.abspath(__file__))
PACKAGE = os.path.dirname(os.path.abspath(fastcni.__file__))
MARK = b"fastcni"
MARK_AT = 9  # EI_PAD, elf(5): bytes that have no meaning
LEAVES = ("_abandoned", "_ipam_bitmap", "_netlink", "_rtnetlink", "_run_token", "_system")     # all in leaves.so
BORROWED = ("_json", "_sha2", "_sha512", "_socket", "fcntl")  # of the interpreter, where they are not built in
ROWS = ("spec", "kernel", "kit", "plugins")  # the packages below handle.py, all of them
LIBRARY = "jeepney"  # D-Bus, for pods behind firewalld; imported when one comes

CONFIG_MAGIC = b"fastcni-config\n\0"  # struct config of launcher.c
CONFIG = struct.Struct("16s1024s32s1008s4I")
DEADLINES = (UNREAD_SECONDS, ANSWER_SECONDS, QUICK_ANSWER_SECONDS)

# {file} opens or names the plugin file. The test stands first: code of another Python cannot even be read.
# A file that cannot be read gets its error document here, code 11 where descriptors or memory have run out.
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


class PackError(Exception):
    """The file cannot be made from this installation; the text says what is missing."""


def pack(interpreter, deadlines=DEADLINES):
    """The bytes of a plugin file that starts `interpreter`, an absolute path to the same Python as this one.

    deadlines: seconds that it waits for a server; other ones are for tests.

    Raises PackError when a part is not compiled or the path is too long for the launcher.
    """
    elf = marked(read(os.path.join(HERE, "launcher.elf")))
    blob, index = modules()
    image = io.BytesIO(elf)
    image.seek(0, io.SEEK_END)
    with zipfile.ZipFile(image, "a") as out:
        start = add(out, image, "code", blob)[0]
        index = {name: (kind, start + at, size) for name, (kind, at, size) in index.items()}
        place = add(out, image, "leaves.so", read(leaves_path()))
        index |= {f"fastcni.{leaf}": ("extension", *place) for leaf in LEAVES}
        for data in library_licences():
            add(out, image, f"{LIBRARY}-LICENSE", data)
        index |= {name: ("elsewhere", name + _imp.extension_suffixes()[0], 0) for name in BORROWED}
        whole = {kind: add(out, image, f"bundle/{kind}", data) for kind, data in bundles().items()}
        places = {
            "refuse": add(out, image, "refuse.py", REFUSE.format(version=version()).encode()),
            "boot": add(out, image, "boot", marshal.dumps((code_of("launcher/bootstrap.py"), (index, whole)))),
        }
        add(out, image, "__main__.py", bootstrap_text(places, BY_PYTHON))
    return configured(image.getvalue(), interpreter, bootstrap_text(places, BY_LAUNCHER), deadlines)


def version():
    """The Python this process runs and packs for, as in "3.11" or "3.13t"."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}{sys.abiflags}"


def bundles():
    """{plugin name: marshalled [(module name, is a package, code)]}: what a request for it needs, fit for running.

    With a plugin that asks IPAM goes host-local, the usual delegate.
    """
    paths = {module_name(path): path for path in module_files()}
    code = {name: (name, path.endswith("__init__.py"), code_of(path)) for name, path in paths.items()}
    needs = needs_of({name: read(os.path.join(PACKAGE, path)) for name, path in paths.items()})
    found = {}
    for kind, module in TABLE.items():
        order = load_order(needs, ["fastcni.handle", module])
        if "fastcni.kit.call.ipam" in order:
            order = load_order(needs, [*order, TABLE["host-local"]])
        found[kind] = marshal.dumps([code[name] for name in order])
    return found


def modules():
    """The code a one-shot plugin may import: (blob, {module name: (kind, offset in blob, length)})."""
    pieces, index, at = [], {}, 0
    for folder, path in [*((PACKAGE, path) for path in module_files()), *library_files()]:
        data = marshal.dumps(code_of(path, folder))
        kind = "package" if os.path.basename(path) == "__init__.py" else "module"
        index[module_name(path, folder)] = (kind, at, len(data))
        pieces.append(data)
        at += len(data)
    return b"".join(pieces), index


def module_name(path, folder=PACKAGE):
    """"kit/__init__.py" as "fastcni.kit"."""
    return f"{os.path.basename(folder)}/{path}".removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def module_files():
    """Paths below the package, in order: fastcni itself, the rows, and handle."""
    found = ["__init__.py", "handle.py"]
    for row in ROWS:
        for folder, _, names in os.walk(os.path.join(PACKAGE, row)):
            folder = os.path.relpath(folder, PACKAGE)
            found += (os.path.join(folder, name) for name in names if name.endswith(".py"))
    return sorted(found)


def library_files():
    """[(folder, path in it)] of the library's modules but those of its subpackages, which are not for us. None where
    it is not installed: what needs it says so."""
    spec = importlib.util.find_spec(LIBRARY)
    if not spec:
        return []
    folder = os.path.dirname(spec.origin)
    return [(folder, name) for name in sorted(os.listdir(folder)) if name.endswith(".py")]


def library_licences():
    """The library's licence has to go with each copy."""
    from importlib import metadata

    try:
        files = metadata.files(LIBRARY) or ()
    except metadata.PackageNotFoundError:
        return []
    return [file.read_binary() for file in files if file.name == "LICENSE"]


def code_of(path, folder=PACKAGE):
    """Compiled without docstrings, assertions and annotations: a third less to read at each start."""
    name = f"{os.path.basename(folder)}/{path}"
    return compile(stripped(read(os.path.join(folder, path)), name), name, "exec", dont_inherit=True, optimize=2)


def leaves_path():
    """The shared object of all leaves, for this Python."""
    return os.path.join(HERE, "leaves" + _imp.extension_suffixes()[0])


def read(path):
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise PackError(
            f"{path}: {error.strerror}; not compiled? pip install . or python setup.py build_ext --inplace"
        ) from error


def add(out, image, name, data):
    """Store one member; returns (offset, length) of its bytes in the file."""
    info = zipfile.ZipInfo(name)  # of 1980: the same input gives the same file
    info.external_attr = 0o644 << 16
    out.writestr(info, data)
    end = image.tell()
    assert image.getbuffer()[end - len(data) : end] == data
    return end - len(data), len(data)


def bootstrap_text(places, way):
    """The few lines of Python that find the boot member, or the refusal."""
    magic = _frozen_importlib_external.MAGIC_NUMBER
    return BOOTSTRAP.format(magic=magic, abiflags=sys.abiflags, exhausted=EXHAUSTED, **places, **way).encode()


def marked(elf):
    """The ELF program with our mark: how `is this file one of ours` is answered without running it."""
    return elf[:MARK_AT] + MARK + elf[MARK_AT + len(MARK) :]


def configured(image, interpreter, bootstrap, deadlines):
    """The file with the launcher's config filled in."""
    at = image.find(CONFIG_MAGIC)
    fields = (os.fsencode(interpreter), version().encode(), bootstrap)
    for field, room in zip(fields, (1024, 32, 1008), strict=True):
        if len(field) >= room:
            raise PackError(f"{os.fsdecode(field)!r} is longer than the launcher's {room - 1} bytes for it")
    milliseconds = [int(seconds * 1000) for seconds in deadlines]
    return image[:at] + CONFIG.pack(CONFIG_MAGIC, *fields, *milliseconds, 0) + image[at + CONFIG.size :]
