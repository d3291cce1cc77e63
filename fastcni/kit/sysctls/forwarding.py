"""Enable IP forwarding on the host for each family of pods' addresses. fastcni never disables forwarding."""

from __future__ import annotations

from fastcni.kernel import sysctl
from fastcni.spec import errors
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from fastcni.kit.call.mode import Mode

SYSCTLS = {4: "net/ipv4/ip_forward", 16: "net/ipv6/conf/all/forwarding"}


def enable(mode: Mode, ips: Iterable[tuple[bytes, int]]) -> None:
    """Enable forwarding for the families of the addresses `ips`, (packed, prefix length). Raises CniError 999."""
    for length in {len(packed) for packed, _ in ips}:
        try:
            name = SYSCTLS[length]
            if mode.recall(("sysctl", name), lambda: sysctl.read(name)) != "1":     # noqa: B023 - called in this iteration
                sysctl.write(name, "1")
        except OSError as e:
            raise CniError(errors.INTERNAL, f"Could not enable IP forwarding: {SYSCTLS[length]}: {e.strerror}") from e
