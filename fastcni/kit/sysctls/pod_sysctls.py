"""Write and check the sysctls that a configuration names: below net/, in the pod's namespace."""

from __future__ import annotations

import posix
from errno import EACCES, EIO

from fastcni.kernel import sysctl
from fastcni.spec import errors, json
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.kit.call.pod import Pod
    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

    Sysctls = dict[str, tuple[list[str], str]]

UNREADABLE = (EACCES, EIO)      # errnos of read(2) for an existing sysctl that is write-only or was never written


def read_keys(req: Request) -> Sysctls:
    """Return {key: (names, value)} of the configuration's `sysctl` and of args.cni.sysctl, which has precedence. Raises
    CniError 7, also for a key that the configuration has twice."""
    keys = req.conf
    twice = json.repeated_keys(req.stdin, "sysctl") if keys.has("sysctl") else []
    if twice:
        raise errors.bad_config("duplicated sysctl keys are not allowed", ", ".join(twice))
    sections = [section.section("sysctl") for section in (keys, keys.section("args").section("cni"))]
    return {key: (names(key, req.ifname), section.text(key)) for section in sections for key in section.values}


def names(key: str, ifname: str) -> list[str]:
    """Return the names below /proc/sys that a key can mean, in the order to try. The first IFNAME in the key stands for
    the pod's link.

    The first name is the reference plugin's, which has a slash for every dot. The second follows sysctl(8), where a dot
    can belong to a link's name: net/ipv4/conf/eth0.5/forwarding. Raises CniError 7 for a name that is not below net/.
    """
    found = []
    try:
        for name in dict.fromkeys((key.replace(".", "/"), sysctl.path(key).removeprefix(sysctl.ROOT))):
            parts = [part for part in name.replace("IFNAME", ifname, 1).split("/") if part not in ("", ".")]
            if parts[:1] != ["net"] or len(parts) == 1:
                raise ValueError
            found.append("/".join(parts))
    except ValueError:
        raise errors.bad_config(f'invalid net sysctl key: "{key.replace("IFNAME", ifname, 1)}"',
                                "the sysctls below net. belong to the pod, others to the node") from None
    return found


def write(pod: Pod, undo: Undo, sysctls: Sysctls) -> None:
    """Write {key: (names, value)}; the rollback writes the earlier values. Raises CniError 999."""
    with pod.enter():
        for candidates, value in sysctls.values():
            name = first_existing(candidates)
            before = read(name)
            if before is not None:
                undo(write_back, pod, name, before)
            try:
                sysctl.write(name, value)
            except OSError as e:
                raise sysctl_error(name, "open" if e.filename else "write", e) from None


def write_back(pod: Pod, name: str, value: str) -> None:
    with pod.enter():
        sysctl.write(name, value)


def check(pod: Pod, sysctls: Sysctls) -> None:
    """Raise CniError 999 if a sysctl has another value. Ignore differences in white space."""
    with pod.enter():
        for candidates, value in sysctls.values():
            name = first_existing(candidates)
            current = read(name)
            if current is not None and current.split() != value.split():
                raise CniError(errors.INTERNAL, f"Error: Tuning configured value of {sysctl.path(name)} is {value}, "
                               f"current value is {current}")


def first_existing(candidates: list[str]) -> str:
    """Return the first of the names that exists; if none exists, the first name."""
    return next((name for name in candidates[1:] if not sysctl.exists(candidates[0])), candidates[0])


def read(name: str) -> str | None:
    """Return the value in the calling thread's namespace, None if the sysctl exists but cannot be read. Raises CniError
    999."""
    try:
        return sysctl.read(name)
    except OSError as e:
        if e.errno not in UNREADABLE:
            raise sysctl_error(name, "open", e) from None
        return None


def sysctl_error(name: str, verb: str, error: OSError) -> CniError:
    return CniError(errors.INTERNAL, f"{verb} {sysctl.path(name)}: {posix.strerror(error.errno or 0).lower()}",
                    "in the pod's network namespace; does this sysctl accept the value?" if verb == "write" else
                    "in the pod's network namespace; does this kernel have it, and is /proc/sys mounted writable?")
