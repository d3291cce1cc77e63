"""Build what pyproject.toml cannot describe: the extension modules, and the programs of fastcni/launcher."""

import hashlib
import os
import struct
import subprocess
import sys
import sysconfig
import tempfile
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import CCompilerError

FAST = ["_ipam_bitmap", "_netlink", "_rtnetlink"]
# Only the server imports these, so plugin files do not have them
OF_SERVER = ["_acceptor", "_steps"]
SMALL = ["_abandoned", "_processes", "_run_token", "_system"]         # compiled for size: mostly system calls
PACKED = [*FAST, *SMALL]                                # the extension modules that plugin files need
LAUNCHER, HEADERS = "fastcni/launcher/launcher.c", glob("fastcni/launcher/*.h")
# These flags come after the flags of the environment and of Python's own build, and override them. The launcher runs
# without libc, so code for stack protection, fortified calls or unwinding would not work.
FREESTANDING = """-Os -g0 -std=c11 -ffreestanding -fno-pic -fno-pie -fno-stack-protector -fno-lto
    -fno-exceptions -fno-asynchronous-unwind-tables -fno-unwind-tables -U_FORTIFY_SOURCE""".split()
ALONE = """-nostdlib -static -no-pie -fno-lto -Wl,--strip-all -Wl,--build-id=none -Wl,-z,noseparate-code
    -Wl,-z,norelro -Wl,-z,noexecstack -Wl,--gc-sections""".split()
NO_UNWINDER = "-fno-asynchronous-unwind-tables -fno-unwind-tables".split()      # aarch64 needs the second flag
# On aarch64 RELRO ends at a multiple of 64 KiB: its 38 kB of padding would make a plugin file larger than 3 MB.
UNPADDED = ["-Wl,-z,norelro"] if os.uname().machine == "aarch64" else []
COMPACT = "-s -Wl,-z,noseparate-code -Wl,--build-id=none".split()       # the kernel loads fewer bytes and pages
CORE = "fastcni/launcher/python_core.c"
CORE_VERSIONS = (3, 11), (3, 12)        # Python 3.13 crashes if a codec is looked up before the main phase of its start
CORE_FLAGS = "-O2 -g0 -fno-pie -fno-reorder-functions".split()
CORE_LINK = """-no-pie -s -Wl,--export-dynamic -Wl,--gc-sections -Wl,--build-id=none
    -Wl,--wrap=_Py_Deepfreeze_Init""".split()

REDIRECT, PROGRAMS = "fastcni/kernel/bpf/redirect.bpf.c", "fastcni/kernel/bpf/redirect_programs.py"
CLANG_FLAGS = "-target bpf -mcpu=v2 -O2 -g0 -std=gnu11 -ffreestanding -Wall -Werror".split()
SHT_SYMTAB, SHT_REL = 2, 9              # elf.h


def write_programs(announce):
    """Compile REDIRECT by clang, and write the module PROGRAMS. Without clang, an existing module stays, as in a source
    archive. If none exists, write a module without programs; fastcni then has no datapath "ebpf"."""
    found = {}
    try:
        with tempfile.TemporaryDirectory() as folder:
            made = f"{folder}/redirect.o"
            subprocess.run([os.environ.get("CLANG", "clang"), *CLANG_FLAGS, "-c", REDIRECT, "-o", made], check=True)
            with open(made, "rb") as file:
                found = read_programs(file.read())
    except (OSError, subprocess.CalledProcessError) as error:
        if os.path.exists(PROGRAMS):
            return
        announce(f"{PROGRAMS} has no programs, so fastcni has no datapath ebpf: {error}", 4)
    lines = [f'"""The programs of {os.path.basename(REDIRECT)}, as setup.py and clang made them."""\n',
             f'DIGEST = "{hashlib.sha256(repr(found).encode()).hexdigest()[:8] if found else ""}"',
             "PROGRAMS: dict[str, tuple[bytes, tuple[tuple[int, str], ...]]] = {",
             *(f"    {name!r}: {program!r}," for name, program in found.items()), "}\n"]
    with open(PROGRAMS, "w", encoding="ascii") as file:
        file.write("\n".join(lines))


def read_programs(elf):
    """Return {name: (instructions, ((index of an instruction that loads a map, the map's name), ...))} of the object
    file that clang made. Each program is a section tc/NAME; all relocations are for maps. Source: elf.h."""

    def text(table, at):
        start = table[4] + at
        return elf[start:elf.index(b"\0", start)].decode()

    first, (count, names) = struct.unpack_from("<Q", elf, 40)[0], struct.unpack_from("<HH", elf, 60)
    sections = [struct.unpack_from("<IIQQQQIIQQ", elf, first + 64 * number) for number in range(count)]
    symbols = next(section for section in sections if section[1] == SHT_SYMTAB)
    maps = {}
    for section in sections:
        if section[1] == SHT_REL:
            for offset, info in struct.iter_unpack("<QQ", elf[section[4]:section[4] + section[5]]):
                name = struct.unpack_from("<I", elf, symbols[4] + 24 * (info >> 32))[0]
                maps.setdefault(section[7], []).append((offset // 8, text(sections[symbols[6]], name)))
    return {name.removeprefix("tc/"): (elf[section[4]:section[4] + section[5]], tuple(maps.get(number, ())))
            for number, section in enumerate(sections)
            if (name := text(sections[names], section[0])).startswith("tc/")}


class with_programs(build_py):
    def run(self):
        write_programs(self.announce)
        super().run()


class sdist_with_programs(sdist):
    def run(self):
        write_programs(self.announce)
        super().run()


class build_all(build_ext):
    """Build the extension modules. Link the modules of PACKED also as one shared object, leaves.so, because loading
    each further shared object takes a plugin 0.15 ms. Then build the launcher and python_core.elf."""

    def run(self):
        self.force = True               # otherwise objects of unchanged modules would be missing
        self.parallel = os.cpu_count()
        super().run()
        folder = ("." if self.inplace else self.build_lib) + "/fastcni/launcher"
        parts = [f"{self.build_temp}/fastcni/{name}.o" for name in PACKED]
        leaves = f"{folder}/{self.get_ext_filename('leaves')}"
        self.compiler.link_shared_object(parts, leaves, extra_postargs=[*COMPACT, *UNPADDED])
        objects = self.compiler.compile([LAUNCHER], output_dir=self.build_temp, extra_postargs=FREESTANDING)
        self.compiler.link_executable(objects, "launcher.elf", output_dir=folder, extra_postargs=ALONE)
        self.link_core(folder, parts, leaves)

    def link_core(self, folder, parts, leaves):
        """Link python_core.elf, if the interpreter's static library is installed. Debian's python3-dev has it, and the
        manylinux images do not. Without python_core.elf, one-shot requests start the interpreter itself.

        parts: the object files of the extension modules, which python_core.elf contains. leaves: the path of the shared
        object, whose digest python_core.elf contains.
        """
        elf, library = f"{folder}/python_core.elf", os.path.join(*sysconfig.get_config_vars("LIBPL", "LIBRARY"))
        licence = os.path.join(sysconfig.get_path("stdlib"), "LICENSE.txt")
        if os.path.exists(elf):
            os.unlink(elf)
        why = "" if library.endswith(".a") and os.path.exists(library) else f"there is no static library {library}"
        if not os.path.exists(licence):
            why = f"there is no {licence}, which each copy of Python has to have"
        if sys.version_info[:2] not in CORE_VERSIONS or sys.abiflags:
            why = "python_core.elf needs Python 3.11 or 3.12"
        if not why:
            libraries = " ".join(sysconfig.get_config_vars("MODLIBS", "LIBS", "SYSLIBS")).split()
            with open(leaves, "rb") as file:
                macros = [("LEAVES", f'"{hashlib.sha256(file.read()).hexdigest()[:16]}"')]
            # No run path: the dynamic linker would search it
            libraries = [name for name in libraries if name.startswith("-l")]
            try:
                objects = self.compiler.compile([CORE], output_dir=self.build_temp, macros=macros,
                                                include_dirs=self.include_dirs, extra_postargs=CORE_FLAGS)
                self.compiler.link_executable([*objects, *parts, library], "python_core.elf", output_dir=folder,
                                              extra_postargs=[*CORE_LINK, *libraries])
                self.copy_file(licence, f"{folder}/python_core.LICENSE")
            except CCompilerError as error:
                why = str(error)
        if why:
            self.announce(f"{elf} is not built: {why}", 4)


def leaf(name):
    """Return the Extension of one module. `depends` also puts the source files into the source archive."""
    speed = "-Os" if name in SMALL else "-O2"
    return Extension(
        f"fastcni.{name}",
        [f"fastcni/{name}.pyx"],
        depends=[*glob("fastcni/*.p[xy][dx]"), LAUNCHER, CORE, *HEADERS, REDIRECT],
        extra_compile_args=[speed, "-g0", "-fvisibility=hidden", *NO_UNWINDER],
        extra_link_args=COMPACT,
    )


setup(ext_modules=[leaf(name) for name in (*PACKED, *OF_SERVER)],
      cmdclass={"build_ext": build_all, "build_py": with_programs, "sdist": sdist_with_programs})
