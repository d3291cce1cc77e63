"""What chained plugins share: the result of the plugins before them, which ADD hands on."""

from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError


def previous(req, words="must be called as chained plugin"):
    """prevResult in the shape of 1.1.0. Raises CniError 7 with `words` where there is none."""
    found = results.read_prev_result(req.conf, req.version)
    if found is None:
        raise CniError(errors.INVALID_CONFIG, words)
    return found


def in_pod(result, ip, ifname):
    """Is this entry of ips the pod's: of no interface, of one that is not there, or of `ifname` in a sandbox?"""
    interfaces, index = result.get("interfaces", ()), ip.get("interface")
    if index is None or not 0 <= index < len(interfaces):
        return True
    return interfaces[index]["name"] == ifname and bool(interfaces[index].get("sandbox"))
