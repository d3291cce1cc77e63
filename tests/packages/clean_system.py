"""Make clean systems for tests of installations: debootstrap makes a directory once, and each test uses an overlay of
it."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASES = ROOT / ".packages"              # debootstrap takes a minute or two; `make clean` removes the directory
MIRROR = "http://deb.debian.org/debian"
CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"
# The kernel removes the mounts with the mount namespace. The namespace is made private before the first mount.
ENTER = """
mount --make-rprivate /
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work" "$2/root"
mount -t proc proc "$2/root/proc"
exec chroot "$2/root" /bin/sh -e
"""
ENVIRONMENT = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root",
               "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive", "PIP_ROOT_USER_ACTION": "ignore"}
PIP_SETTINGS = ("PIP_CERT", "PIP_INDEX_URL", "PIP_DEFAULT_TIMEOUT")


def base(suite, name="", *packages):
    """Return the directory `name` (by default the suite's name) of a minimal system with `packages`. debootstrap makes
    the system once. Tests must not change it."""
    there = BASES / (name or suite)
    if not there.exists():
        new = there.with_suffix(".new")
        if new.exists():
            shutil.rmtree(new)          # safe also after an interrupt: debootstrap has unmounted its mounts
        BASES.mkdir(exist_ok=True)
        included = ",".join(("ca-certificates", *packages))
        call("unshare", "-m", "debootstrap", "--variant=minbase", f"--include={included}", suite, new, MIRROR)
        new.rename(there)
    return there


def call(*words, timeout=600, **more):
    """Run a program. Return its output. Raise AssertionError with the last lines if the program fails."""
    done = subprocess.run([*map(str, words)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                          timeout=timeout, **more)
    assert done.returncode == 0, f"{words}\n{done.stdout[-4000:]}"
    return done.stdout


class CleanSystem:
    """A system of `suite`: an overlay below the directory `where`. files: the directory of the files that scripts have
    written."""

    def __init__(self, suite, where):
        self.base, self.where, self.files = base(suite), where, where / "upper"
        for name in ("upper", "work", "root"):
            (where / name).mkdir(parents=True)
        # the system uses this machine's network, and so its resolver
        self.copy("/etc/resolv.conf", "/etc/resolv.conf")
        self.copy(CERTIFICATES, CERTIFICATES)
        self.run("apt-get update -qq")

    def copy(self, source, target):
        there = self.files / target.lstrip("/")
        there.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(os.path.realpath(source), there)

    def run(self, script):
        """Run a shell script as root in the system. Return its output. When the script ends, the kernel ends all
        processes that it started."""
        pip = {name: os.environ[name] for name in PIP_SETTINGS if name in os.environ}
        return call("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-ec", ENTER, "enter", self.base,
                    self.where, input=script, env=ENVIRONMENT | pip)

    def named(self, pattern):
        """Return the paths whose name matches `pattern`, without caches and logs of apt and dpkg."""
        found = self.run(f"find / -xdev -name '{pattern}'").split()
        return [path for path in found if not path.startswith(("/src", "/proc", "/var/log/", "/var/cache/apt/"))]
