"""flannel: has another plugin, bridge by default, connect the pod to the node's part of the network that flanneld runs.

What the other plugin is told is kept in a file, so that DEL tells it the same, whatever flanneld says by then.
"""

from fastcni.kit import flannel_files
from fastcni.kit.call import delegate
from fastcni.kit.call.conf import keys_of
from fastcni.kit.call.undo import every
from fastcni.spec import errors
from fastcni.spec.config import Section, fold
from fastcni.spec.errors import CniError

SUBNET_FILE, DATA_DIR = "/run/flannel/subnet.env", "/var/lib/cni/flannel"
AT_ADD = ("runtimeConfig", "args")                  # what the delegate is told of the request, and kept with it
EACH_TIME = ("prevResult", "cni.dev/valid-attachments")


class Conf:
    """subnet_file, data_dir; delegate and ipam, Sections as they are written, None where DEL has what ADD refused."""

    __slots__ = ("subnet_file", "data_dir", "delegate", "ipam")


def read(req):
    conf = Conf()
    conf.data_dir = read_path(req.conf, "dataDir", DATA_DIR)
    try:
        read_keys(keys_of(req), conf)
    except CniError as e:
        if req.command != "DEL":
            raise
        req.warn(f"delegate is ignored: {e.msg}")
        conf.delegate = None
    return conf


def read_keys(keys, conf):
    conf.subnet_file = read_path(keys, "subnetFile", SUBNET_FILE)
    conf.delegate, conf.ipam = keys.section("delegate"), keys.section("ipam")
    conf.ipam.items("routes")
    for key in AT_ADD:
        keys.section(key)
    if conf.delegate.strict.text("type") == "flannel":
        raise refused("must not have the type 'flannel'")
    for key in ("name", "ipam"):
        if conf.delegate.has(key):
            raise refused(f"must not have '{key}' field, it'll be set by flannel")


def read_path(keys, key, default):
    path = keys.text(key) or default
    if not path.startswith("/") or "\0" in path:
        return keys.bad(key, f"expected an absolute path, got {path!r}", default)
    return path


def refused(why):
    return CniError(errors.INVALID_CONFIG, f"'delegate' dictionary {why}", "`ipam` stands beside `delegate`")


def compose(req, conf):
    """The delegate's configuration. Raises CniError where flanneld does not say enough."""
    subnet = flannel_files.read_subnet(conf.subnet_file)
    document = {**conf.delegate.values, "name": req.name, "cniVersion": req.version}
    defaults = {"type": "bridge", "ipMasq": not subnet.masquerades, "mtu": subnet.mtu}
    if conf.delegate.text("type", "bridge") == "bridge":
        defaults["isGateway"] = True
    fill(document, defaults)
    routes = conf.ipam.items("routes") + [{"dst": network} for network in subnet.networks]
    document["ipam"] = {**conf.ipam.values, "ranges": [[{"subnet": one}] for one in subnet.subnets], "routes": routes}
    fill(document["ipam"], {"type": "host-local"})
    return document | given(req, AT_ADD)


def given(req, keys):
    return {key: req.conf.raw(key) for key in keys if req.conf.has(key)}


def fill(document, defaults):
    """Add what is not there, in whatever spelling."""
    there = fold(document)
    document.update({key: value for key, value in defaults.items() if key.lower() not in there})


def sub_request(req, document):
    """The delegate's own request, in the version of this one."""
    return req.delegate(Section(document).text("type"),
                        {**document, "cniVersion": req.version, **given(req, EACH_TIME)})


def saved(req, conf):
    return flannel_files.Saved(conf.data_dir, req.container_id, req.name)


def add(req, conf, undo):
    document = compose(req, conf)
    saved(req, conf).keep(document, undo)
    return delegate.add(sub_request(req, document), undo)


def delete(req, conf):
    """By the file; without, as another interface's DEL has left it, by what would be told today, if anything."""
    document = saved(req, conf).read()
    if document is None and conf.delegate:
        try:
            document = compose(req, conf)
        except CniError as e:
            req.warn(f"flannel: {conf.data_dir} does not know the container, and {e.msg}; nothing is deleted")
    if document:
        delegate.run(sub_request(req, document), "DEL")
    saved(req, conf).remove()


def check(req, conf):
    delegate.run(sub_request(req, saved(req, conf).read() or compose(req, conf)), "CHECK")


def restore(req, conf):
    """Put back what is missing of what the delegate has in the host's firewall."""
    delegate.restore(sub_request(req, saved(req, conf).read() or compose(req, conf)))


def gc(req, conf):
    every((gc_of_delegate, req, conf), (flannel_files.gc, req, conf.data_dir))


def gc_of_delegate(req, conf):
    delegate.run(sub_request(req, compose(req, conf)), "GC")


def status(req, conf):
    try:
        document = compose(req, conf)
    except CniError as e:
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, e.msg, e.details) from None
    delegate.status(sub_request(req, document))
