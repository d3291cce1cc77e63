"""What pyproject.toml cannot say: the compiled leaves, and the files of the launcher's package that are linked here."""

import hashlib
import os
import sys
import sysconfig
from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CCompilerError

FAST = ["_acceptor", "_ipam_bitmap", "_netlink", "_rtnetlink"]
SMALL = ["_abandoned", "_run_token", "_system"]         # in few instructions: mostly system calls
PACKED = [*FAST[1:], *SMALL]                            # what plugin files need
LAUNCHER, HEADERS = "fastcni/launcher/launcher.c", glob("fastcni/launcher/*.h")
# They stand after the flags of the environment and of Python's own build, so these win: there is no libc
# under the launcher, hence nothing that a canary, a fortified call or an unwinder could use.
FREESTANDING = """-Os -g0 -std=c11 -ffreestanding -fno-pic -fno-pie -fno-stack-protector -fno-lto
    -fno-exceptions -fno-asynchronous-unwind-tables -fno-unwind-tables -U_FORTIFY_SOURCE""".split()
ALONE = """-nostdlib -static -no-pie -fno-lto -Wl,--strip-all -Wl,--build-id=none -Wl,-z,noseparate-code
    -Wl,-z,norelro -Wl,-z,noexecstack -Wl,--gc-sections""".split()
NO_UNWINDER = "-fno-asynchronous-unwind-tables -fno-unwind-tables".split()      # aarch64 needs the second
# On aarch64 RELRO ends at a multiple of 64 KiB: 38 kB of padding, with which a plugin file is larger than 3 MB.
UNPADDED = ["-Wl,-z,norelro"] if os.uname().machine == "aarch64" else []
COMPACT = "-s -Wl,-z,noseparate-code -Wl,--build-id=none".split()       # fewer bytes and pages to load
CORE = "fastcni/launcher/python_core.c"
CORE_VERSIONS = (3, 11), (3, 12)        # Python 3.13 crashes if a codec is looked up before the main phase of its start
CORE_FLAGS = "-O2 -g0 -fno-pie".split()
CORE_LINK = """-no-pie -s -Wl,--export-dynamic -Wl,--gc-sections -Wl,--build-id=none
    -Wl,--wrap=_Py_Deepfreeze_Init""".split()


class build_all(build_ext):
    """The extensions; then all that plugin files need as one shared object, as each one more takes 0.15 ms to load;
    then the launcher."""

    def run(self):
        self.force = True               # objects of what is up to date would be missing
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

        parts: the objects of the leaves, which it contains. leaves: the shared object, whose digest it knows.
        """
        elf, library = f"{folder}/python_core.elf", os.path.join(*sysconfig.get_config_vars("LIBPL", "LIBRARY"))
        licence = os.path.join(sysconfig.get_path("stdlib"), "LICENSE.txt")
        if os.path.exists(elf):
            os.unlink(elf)
        why = "" if library.endswith(".a") and os.path.exists(library) else f"there is no static library {library}"
        if not os.path.exists(licence):
            why = f"there is no {licence}, which each copy of Python has to have"
        if sys.version_info[:2] not in CORE_VERSIONS or sys.abiflags:
            why = "it needs Python 3.11 or 3.12"
        if not why:
            libraries = " ".join(sysconfig.get_config_vars("MODLIBS", "LIBS", "SYSLIBS")).split()
            with open(leaves, "rb") as file:
                macros = [("LEAVES", f'"{hashlib.sha256(file.read()).hexdigest()[:16]}"')]
            libraries = [name for name in libraries if name.startswith("-l")]       # no run path: it costs a search
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
    """One compiled leaf; `depends` is what puts the sources into the sdist."""
    speed = "-O2" if name in FAST else "-Os"
    return Extension(
        f"fastcni.{name}",
        [f"fastcni/{name}.pyx"],
        depends=[*glob("fastcni/*.p[xy][dx]"), LAUNCHER, CORE, *HEADERS],
        extra_compile_args=[speed, "-g0", "-fvisibility=hidden", *NO_UNWINDER],
        extra_link_args=COMPACT,
    )


setup(ext_modules=[leaf(name) for name in (*FAST, *SMALL)], cmdclass={"build_ext": build_all})
