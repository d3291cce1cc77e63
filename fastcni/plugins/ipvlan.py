"""ipvlan: a link on a link of the host that shares its MAC: the pod's addresses tell its packets apart."""

from fastcni.kernel import kinds
from fastcni.kit.links import devices
from fastcni.kit.links.master import WHY, Master
from fastcni.kit.links.pod import Pod
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.errors import CniError


class Conf(devices.Conf):
    """master, mode, mtu (0: the master's), previous (the result of the plugin before, or None)."""

    __slots__ = ("master", "mode", "mtu", "previous")


def read(req):
    keys, conf = req.conf, Conf(req)
    if req.command in devices.ENDINGS:
        return conf
    conf.master, conf.mtu = Master(keys), keys.integer("mtu", high=0xFFFFFFFF)
    conf.mode = keys.text("mode") or "l2"
    if conf.mode not in kinds.IPVLAN_MODES:
        raise CniError(errors.INVALID_CONFIG, f'unknown ipvlan mode: "{conf.mode}"',
                       f"there are {', '.join(kinds.IPVLAN_MODES)}")
    conf.previous = results.read_prev_result(keys, req.version)
    if req.command == "ADD":
        read_previous(conf)
    return conf


def read_previous(conf):
    """Behind another plugin the master is its one interface, and its addresses are the pod's where there is no IPAM."""
    if conf.previous and not conf.master.name:
        names = [item["name"] for item in conf.previous.get("interfaces", ())]
        if len(names) != 1 or not names[0]:
            raise CniError(errors.INVALID_CONFIG, "chained master failure. PrevResult lacks a single named interface",
                           'name a link with the key "master"')
        conf.master.name = names[0]
    if not conf.layer3 and not (conf.previous or {}).get("ips"):
        raise CniError(errors.INVALID_CONFIG, "no plugin name provided",
                       "ipvlan needs ipam.type, or addresses of a plugin before it")


def add(req, conf, undo):
    pod = Pod(req)
    master = conf.master.find(req, pod)
    link = devices.create(req, pod, undo, "ipvlan", sock=conf.master.sock(pod), master=master, why=WHY, mtu=conf.mtu,
                          data=kinds.ipvlan(conf.mode))
    return devices.attach(req, conf, undo, pod, link, given=conf.previous, arp_notify=True, ndisc_notify=True)


delete = devices.delete


def check(req, conf):
    pod, link = devices.check(req, conf, "ipvlan")
    if conf.master.name:                # else whatever it was, the default route may lead elsewhere by now
        conf.master.find(req, pod)
    devices.same("Container IPVlan mode", kinds.ipvlan_mode(link), conf.mode)


gc = devices.gc


def status(req, conf):
    if conf.master.name:                # else perhaps one of a plugin before it, of which STATUS is not told
        conf.master.status(req)
    devices.status(req, conf, "ipvlan")
