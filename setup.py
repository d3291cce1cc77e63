"""What pyproject.toml cannot say: the compiled leaves, and the launcher that is linked beside them."""

from glob import glob

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

LAUNCHER, MACHINES = "fastcni/launcher/launcher.c", "fastcni/launcher/machines.h"
# They stand after the flags of the environment and of Python's own build, so these win: there is no libc
# under the launcher, hence nothing that a canary, a fortified call or an unwinder could use.
FREESTANDING = """-Os -g0 -std=c11 -ffreestanding -fno-pic -fno-pie -fno-stack-protector -fno-lto
    -fno-exceptions -fno-asynchronous-unwind-tables -fno-unwind-tables -U_FORTIFY_SOURCE""".split()
ALONE = """-nostdlib -static -no-pie -fno-lto -Wl,--strip-all -Wl,--build-id=none -Wl,-z,noseparate-code
    -Wl,-z,norelro -Wl,-z,noexecstack -Wl,--gc-sections""".split()


class build_all(build_ext):
    """The extensions, then the launcher into its package."""

    def run(self):
        super().run()
        folder = ("." if self.inplace else self.build_lib) + "/fastcni/launcher"
        objects = self.compiler.compile([LAUNCHER], output_dir=self.build_temp, extra_postargs=FREESTANDING)
        self.compiler.link_executable(objects, "launcher.elf", output_dir=folder, extra_postargs=ALONE)


def leaf(name):
    """One compiled leaf; `depends` is what puts the sources into the sdist, `-s` keeps it small to load."""
    return Extension(
        f"fastcni.{name}",
        [f"fastcni/{name}.pyx"],
        depends=[*glob("fastcni/*.p[xy][dxi]"), LAUNCHER, MACHINES],
        extra_compile_args=["-O2", "-g0", "-fvisibility=hidden"],
        extra_link_args=["-s"],
    )


setup(ext_modules=[leaf("_netlink"), leaf("_ipam_bitmap"), leaf("_acceptor")], cmdclass={"build_ext": build_all})
