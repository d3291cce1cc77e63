"""tuning: sysctls of the pod, and MAC, MTU, queue length, promiscuity and multicast of its link.

DEL puts the link back as it was, which matters for one that outlives the pod. Sysctls end with the pod's namespace.
"""

from fastcni._netlink import Batch
from fastcni.kernel import rtnl, uapi, wire
from fastcni.kit.call import chained
from fastcni.kit.call.conf import read_mac
from fastcni.kit.links import find
from fastcni.kit.links.pod import Pod
from fastcni.kit.sysctls import allowlist, backup, pod_sysctls
from fastcni.kit.sysctls.backup import FLAGS, Backup, read_attributes
from fastcni.spec import errors, json
from fastcni.spec.config import Section, read_args
from fastcni.spec.errors import CniError

CAPABILITIES, ARGS = ("mac",), ("MAC",)
MISSING = "Required prevResult missing"
# {attribute: (keyword of rtnl.set_link, CHECK's words for it)}
SETTINGS = {"mac": ("address", "configured Ethernet of {}"), "promisc": ("promisc", "link {} configured promisc"),
            "mtu": ("mtu", "configured MTU of {}"), "allmulti": ("allmulti", "link {} configured all-multicast mode"),
            "txQLen": ("txqlen", "configured txQLen of {}")}


class Conf:
    """data_dir, sysctls ({key: (names, value)}), wanted ({attribute of the link: value})."""

    __slots__ = ("data_dir", "sysctls", "wanted")


def read(req):
    keys, conf = req.conf, Conf()
    conf.data_dir = backup.read_folder(keys)
    if req.command in ("DEL", "GC"):
        return conf
    asked = keys.section("args").section("cni")
    conf.sysctls = read_sysctls(req, keys, asked)
    runtime, variable = keys.section("runtimeConfig"), Section(read_args(req.args, ARGS))

    def pick(key):
        layers = (asked, runtime, variable, keys) if key == "mac" else (asked, keys)
        return next((layer for layer in layers if layer.raw(key, "") != ""), keys)

    conf.wanted = read_attributes(pick)
    if not conf.wanted.get("promisc", True):
        del conf.wanted["promisc"]              # only true asks for something
    return conf


def read_sysctls(req, keys, asked):
    twice = json.repeated_keys(req.stdin, "sysctl") if keys.has("sysctl") else []
    if twice:
        raise CniError(errors.INVALID_CONFIG, "duplicated sysctl keys are not allowed", ", ".join(twice))
    sections = [section.section("sysctl") for section in (keys, asked)]
    return {key: (pod_sysctls.names(key, req.ifname), section.text(key))
            for section in sections for key in section.values}


def add(req, conf, undo):
    result = chained.previous(req, MISSING)
    allowlist.check(conf.sysctls)
    pod = Pod(req)
    pod_sysctls.write(pod, undo, conf.sysctls)
    if conf.wanted:
        link = find.pod_link(pod, req.ifname, f"Cannot find container link {req.ifname}")
        before = {key: value for key, value in state(link).items() if key in conf.wanted}
        Backup(req, conf.data_dir).keep(before, undo)
        undo(change, pod.inside, link, before)
        change(pod.inside, link, conf.wanted)
    for interface in result.get("interfaces", ()):
        if interface["name"] == req.ifname and "mac" in conf.wanted:
            interface["mac"] = conf.wanted["mac"]           # as it is written in the configuration
    return result


def state(link):
    """{attribute: value} of a link."""
    return {"mac": link.mac, "promisc": bool(link.flags & uapi.IFF_PROMISC), "mtu": link.mtu,
            "allmulti": bool(link.flags & uapi.IFF_ALLMULTI), "txQLen": link.txqlen}


def change(sock, link, values):
    """Set {attribute: value}; a refused one does not keep the others from being set."""
    batch = Batch()
    for key, value in values.items():
        keyword, _ = SETTINGS[key]
        rtnl.set_link(batch, link.index, **{keyword: read_mac(value) if key == "mac" else value},
                      what=f'failed to set {key} of "{link.name}" to {value}')
    wire.exchange(sock, batch)


def delete(req, conf):
    """A link that does not take its values back is no reason to keep the pod: the file stays, with a warning."""
    backup = Backup(req, conf.data_dir)
    try:
        values = backup.read()
        if values and not req.netns_gone():
            change_back(Pod(req), req.ifname, values)
        backup.remove()
    except (CniError, OSError) as e:
        req.warn(f"tuning: {req.ifname} is not put back as it was: {e}")


def change_back(pod, ifname, values):
    link = find.link(pod.inside, ifname)
    if link:
        change(pod.inside, link, values)


def check(req, conf):
    from fastcni.kit.call.checks import wrong

    chained.previous(req, MISSING)
    pod = Pod(req)
    pod_sysctls.check(pod, conf.sysctls)
    found = state(find.pod_link(pod, req.ifname, f"Cannot find container link {req.ifname}"))
    for key, value in {"promisc": False, **conf.wanted}.items():
        if key == "mac":
            value = read_mac(value).hex(":")
        if found[key] != value:
            _, words = SETTINGS[key]
            current = int(found[key]) if key in FLAGS else found[key]
            raise wrong(f"Error: Tuning {words.format(req.ifname)} is {str(value).lower()}, current value is {current}")


def gc(req, conf):
    backup.gc(req, conf.data_dir)


def status(req, conf):
    try:
        allowlist.check(conf.sysctls)
    except CniError as e:
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, e.msg, e.details) from None
