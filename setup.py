"""What pyproject.toml cannot say: the compiled leaves, and two files of the launcher's package that are linked here."""

from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

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
COMPACT = "-s -Wl,-z,noseparate-code -Wl,--build-id=none".split()       # fewer bytes and pages to load


class build_all(build_ext):
    """The extensions; then all that plugin files need as one shared object, as each one more takes 0.15 ms to load;
    then the launcher."""

    def run(self):
        self.force = True               # objects of what is up to date would be missing
        super().run()
        folder = ("." if self.inplace else self.build_lib) + "/fastcni/launcher"
        parts = [f"{self.build_temp}/fastcni/{name}.o" for name in PACKED]
        self.compiler.link_shared_object(parts, f"{folder}/{self.get_ext_filename('leaves')}", extra_postargs=COMPACT)
        objects = self.compiler.compile([LAUNCHER], output_dir=self.build_temp, extra_postargs=FREESTANDING)
        self.compiler.link_executable(objects, "launcher.elf", output_dir=folder, extra_postargs=ALONE)


def leaf(name):
    """One compiled leaf; `depends` is what puts the sources into the sdist."""
    speed = "-O2" if name in FAST else "-Os"
    return Extension(
        f"fastcni.{name}",
        [f"fastcni/{name}.pyx"],
        depends=[*glob("fastcni/*.p[xy][dx]"), LAUNCHER, *HEADERS],
        extra_compile_args=[speed, "-g0", "-fvisibility=hidden", "-fno-asynchronous-unwind-tables"],
        extra_link_args=COMPACT,
    )


setup(ext_modules=[leaf(name) for name in (*FAST, *SMALL)], cmdclass={"build_ext": build_all})
