"""IP forwarding on the host: turned on for each family of a result, never turned off again."""

from fastcni.kernel import sysctl
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

SYSCTLS = {4: "net/ipv4/ip_forward", 16: "net/ipv6/conf/all/forwarding"}


def enable(result):
    for length in {len(addresses.read_cidr(ip["address"])[0]) for ip in result.get("ips", ())}:
        try:
            sysctl.ensure(SYSCTLS[length], "1")
        except OSError as e:
            raise CniError(errors.INTERNAL, f"Could not enable IP forwarding: {SYSCTLS[length]}: {e.strerror}") from e
