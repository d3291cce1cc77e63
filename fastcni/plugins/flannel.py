"""flannel: calls another plugin, by default bridge, with the node's subnet of the network that flanneld runs.

ADD stores the delegate's configuration in a file, so that DEL uses the same configuration even if flanneld's file has
changed.
"""

from __future__ import annotations

from fastcni.kit import flannel_files
from fastcni.kit.call import delegate
from fastcni.kit.call.conf import keys_of
from fastcni.kit.call.undo import every
from fastcni.spec import errors
from fastcni.spec.config import VALID_ATTACHMENTS, Section, fold
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

    Document = dict[str, Any]

DELEGATE, IPAM = "bridge", "host-local"             # default types of the delegate and its IPAM
SUBNET_FILE, DATA_DIR = "/run/flannel/subnet.env", "/var/lib/cni/flannel"
# Keys that ADD copies to the delegate's configuration and stores with that configuration
KEPT_KEYS = ("runtimeConfig", "args")
REQUEST_KEYS = ("prevResult", VALID_ATTACHMENTS)      # keys that each request copies to the delegate's configuration


class Conf:
    """The configuration keys of one network. subnet_file, data_dir: paths. delegate, ipam: the objects under the keys
    `delegate` and `ipam`; delegate is None in a DEL whose keys are invalid."""

    __slots__ = ("subnet_file", "data_dir", "delegate", "ipam")
    subnet_file: str
    data_dir: str
    delegate: Any                       # Section | None
    ipam: Section


def read(req: Request) -> Conf:
    conf = Conf()
    conf.data_dir = req.conf.file("dataDir", DATA_DIR)
    try:
        read_keys(keys_of(req), conf)
    except CniError as e:
        if req.command != "DEL":
            raise
        req.warn(f"delegate is ignored: {e.msg}")
        conf.delegate = None
    return conf


def read_keys(keys: Section, conf: Conf) -> None:
    conf.subnet_file = keys.file("subnetFile", SUBNET_FILE)
    conf.delegate, conf.ipam = keys.section("delegate"), keys.section("ipam")
    conf.ipam.items("routes")
    for key in KEPT_KEYS:
        keys.section(key)
    if conf.delegate.strict.text("type") == "flannel":
        raise refused("must not have the type 'flannel'")
    for key in ("name", "ipam"):
        if conf.delegate.has(key):
            raise refused(f"must not have '{key}' field, it'll be set by flannel")


def refused(why: str) -> CniError:
    return errors.bad_config(f"'delegate' dictionary {why}", "write the key `ipam` next to `delegate`")


def compose(req: Request, conf: Conf) -> Document:
    """Make the delegate's configuration from the network's keys and flanneld's file. Raises CniError 6 or 11 if the
    file is missing or incomplete."""
    subnet = flannel_files.read_subnet(conf.subnet_file)
    document = {**conf.delegate.values, "name": req.name, "cniVersion": req.version}
    defaults = {"type": DELEGATE, "ipMasq": not subnet.masquerades, "mtu": subnet.mtu}
    if conf.delegate.text("type", DELEGATE) == "bridge":
        defaults["isGateway"] = True
    fill(document, defaults)
    routes = conf.ipam.items("routes") + [{"dst": network} for network in subnet.networks]
    document["ipam"] = {**conf.ipam.values, "ranges": [[{"subnet": one}] for one in subnet.subnets], "routes": routes}
    fill(document["ipam"], {"type": IPAM})
    return document | given(req, KEPT_KEYS)


def given(req: Request, keys: tuple[str, ...]) -> Document:
    """Return {key: value} for each of `keys` that the request's configuration has."""
    return {key: req.conf.raw(key) for key in keys if req.conf.has(key)}


def fill(document: Document, defaults: Document) -> None:
    """Add to `document` each key of `defaults` that it lacks. Keys are case-insensitive."""
    present = fold(document)
    document.update({key: value for key, value in defaults.items() if key.lower() not in present})


def sub_request(req: Request, document: Document) -> Request:
    """Return the request for the delegate, with the cniVersion of `req`. document: the delegate's configuration."""
    return req.delegate(Section(document).text("type"),
                        {**document, "cniVersion": req.version, **given(req, REQUEST_KEYS)})


def saved(req: Request, conf: Conf) -> flannel_files.Saved:
    return flannel_files.Saved(conf.data_dir, req.container_id, req.name)


def add(req: Request, conf: Conf, undo: Undo) -> Document:
    document = compose(req, conf)
    saved(req, conf).keep(document, undo)
    return delegate.add(sub_request(req, document), undo)


def delete(req: Request, conf: Conf) -> None:
    """Run the delegate's DEL with the stored configuration. The DEL of another interface may have removed the stored
    configuration; then compose the configuration from flanneld's file. If flanneld's file cannot be used, delete
    nothing and warn."""
    document = saved(req, conf).read()
    if document is None and conf.delegate:
        try:
            document = compose(req, conf)
        except CniError as e:
            req.warn(f"flannel: {conf.data_dir} does not know the container, and {e.msg}; nothing is deleted")
    if document:
        delegate.run(sub_request(req, document), "DEL")
    saved(req, conf).remove()


def check(req: Request, conf: Conf) -> None:
    delegate.run(sub_request(req, saved(req, conf).read() or compose(req, conf)), "CHECK")


def restore(req: Request, conf: Conf) -> None:
    """Restore the delegate's firewall rules and set elements on the host."""
    delegate.restore(sub_request(req, saved(req, conf).read() or compose(req, conf)))


def gc(req: Request, conf: Conf) -> None:
    every((gc_of_delegate, req, conf), (flannel_files.gc, req, conf.data_dir))


def gc_of_delegate(req: Request, conf: Conf) -> None:
    delegate.run(sub_request(req, compose(req, conf)), "GC")


def status(req: Request, conf: Conf) -> None:
    try:
        document = compose(req, conf)
    except CniError as e:
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, e.msg, e.details) from None
    delegate.status(sub_request(req, document))
