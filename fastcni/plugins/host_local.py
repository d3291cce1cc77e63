"""host-local: addresses from ranges of this node, kept as files; the Go plugin can share the directory.

Its keys are below `ipam` and those of the reference: subnet, rangeStart, rangeEnd, gateway, ranges, routes,
dataDir, resolvConf; requested addresses come from IP= in CNI_ARGS, args.cni.ips and runtimeConfig.ips,
further ranges from runtimeConfig.ipRanges. One key is ours: `fsync` (false); kit/ipam/store.py tells what it gives
and costs.

Other than the reference:
- one lock for the whole ADD or DEL, and a lock that cannot be had is an error;
- a container gets no second address of a set by asking for one (there, the duplicate test is only made
  when no address is requested);
- a failed ADD releases what it took itself, never what an earlier one left;
- a full range is code 11 (try again later), and so is a requested address that somebody has; impossible
  requests are code 7. The texts are the reference's, the numbers behind them are in the details;
- GC releases what is not in cni.dev/valid-attachments. STATUS warns when a range set is full, and fails when the files
  cannot be read. Both do without ranges, which a runtime may hand over for ADD only;
- a relative dataDir is refused: relative to what, in a server?
"""

import posix

from fastcni._netlink import read_file
from fastcni.kit.call.conf import read_once
from fastcni.kit.ipam import ipam_conf
from fastcni.kit.ipam.ranges import in_turn, range_of, read_range_sets, text_of
from fastcni.kit.ipam.store import Store, owner_of
from fastcni.spec import address
from fastcni.spec.config import read_args, shown
from fastcni.spec.errors import (
    INTERNAL,
    INVALID_CONFIG,
    INVALID_ENVIRONMENT,
    IO_FAILURE,
    PLUGIN_NOT_AVAILABLE,
    TRY_AGAIN_LATER,
    CniError,
)
from fastcni.spec.json import quote

CAPABILITIES, ARGS = ("ipRanges", "ips"), ("IP",)
DATA_DIR = "/var/lib/cni/networks"
RESOLV_CONF_LIMIT = 1 << 20


class Conf:
    """What a configuration asks of us: Keys, and for this container `owner`, the content of its files, and `requested`,
    packed addresses, each once."""

    __slots__ = ("keys", "owner", "requested")


class Keys:
    """sets: tuples of Range; the others under their own names."""

    __slots__ = ("data_dir", "fsync", "resolv_conf", "routes", "sets")


def read(req):
    conf = Conf()
    conf.owner = owner_of(req.container_id, req.ifname)
    if req.command in ("DEL", "GC"):
        conf.keys = read_once(req, read_place)
        return conf
    conf.keys = req.conf.once(read_keys)
    conf.requested = _read_requested(req)
    if not conf.keys.sets and req.command != "STATUS":
        raise CniError(INVALID_CONFIG, "no IP ranges specified")
    return conf


def read_place(section):
    """The Keys of DEL and GC: where the addresses are."""
    ipam = ipam_conf.ipam_section(section)
    conf = Keys()
    conf.data_dir = ipam.strict.text("dataDir") or DATA_DIR
    if not conf.data_dir.startswith("/") or "\0" in conf.data_dir:
        raise ipam.wrong("dataDir", f"expected an absolute path, got {shown(conf.data_dir)}")
    conf.fsync = ipam.flag("fsync")
    return conf


def read_keys(section):
    ipam, conf = ipam_conf.ipam_section(section), read_place(section)
    conf.sets = read_range_sets(ipam, section.section("runtimeConfig"), section.text("cniVersion"))
    conf.routes = ipam_conf.read_routes(ipam)
    conf.resolv_conf = ipam.text("resolvConf")
    return conf


def add(req, conf, undo):
    """One address of each range set."""
    dns = _read_resolv_conf(conf.keys.resolv_conf) if conf.keys.resolv_conf else {}
    wanted = _plan(conf)
    taken = []
    undo(_give_back, req, conf, taken)
    with _store(req, conf, create=True) as store:
        for i, range_set in enumerate(conf.keys.sets):
            try:
                taken.append(_take(store, conf, i, range_set, wanted[i], req.container_id))
            except CniError as e:
                raise CniError(e.code, f"failed to allocate for range {i}: {e.msg}", e.details) from None
    ips = []
    for range_set, packed in zip(conf.keys.sets, taken, strict=True):
        one = range_of(range_set, packed)
        ips.append((packed, one.prefix, one.gateway))
    return ipam_conf.make_result(ips, conf.keys.routes, dns)


def delete(req, conf):
    """Release all of the container's interface, in whatever range; what is not there is released."""
    with _store(req, conf) as store:
        if store is None:
            return
        for owner in (conf.owner, owner_of(req.container_id)):      # the id alone: files from before CNI 0.7
            released = _release_each(store, [(packed, owner) for packed in store.index.addresses_of(owner)])
            if released:
                break
        if store.unreadable and len(released) < _most_held(req):
            store.check_all_read()


def check(req, conf):
    """The container holds an address of this network. Which one is not compared, as in the reference."""
    with _store(req, conf) as store:
        if store and (store.addresses_of(conf.owner) or store.addresses_of(owner_of(req.container_id))):
            return
        if store:
            store.check_all_read()
    raise CniError(INTERNAL, f"host-local: Failed to find address added by container {req.container_id}")


def gc(req, conf):
    """Release what no valid attachment holds, torn files too. Reads every file: the thorough sweep."""
    valid = {owner_of(*pair) for pair in req.valid_attachments}
    valid |= {owner_of(pair[0]) for pair in req.valid_attachments}
    with _store(req, conf) as store:
        if store is None:
            return
        held, torn = store.read_all()
        for packed in torn:
            store.release_torn(packed)
        lost = [(packed, owner) for packed, owner in held if owner not in valid and _is_attachment(owner)]
        for packed, owner in _release_each(store, lost):
            req.release(f"address {address.ip_text(packed)}", " ".join(owner.decode("utf-8", "replace").split()))
        store.check_all_read()


def status(req, conf):
    """Addresses can be given. Creates nothing. A full range is a warning: a runtime takes a failure for a node without
    network, and the node's pods are evicted."""
    try:
        with _store(req, conf) as store:
            for i, range_set in enumerate(conf.keys.sets if store else ()):
                if not _has_free(store, range_set) and not (store.recheck() and _has_free(store, range_set)):
                    req.warn(f"host-local: range set {i} is full: {_usage(store, conf, range_set)}")
    except CniError as e:
        if e.code != TRY_AGAIN_LATER:
            raise CniError(PLUGIN_NOT_AVAILABLE, e.msg, e.details) from None
        req.warn(f"host-local: {e.msg}")


# -- giving out -------------------------------------------------------------------------------------------

def _store(req, conf, create=False):
    return Store(conf.keys.data_dir, req.name, req.warn, create=create, sync=conf.keys.fsync)


def _plan(conf):
    """The requested address, or None, for each set. Raises CniError before anything is touched."""
    left = list(conf.requested)
    wanted = []
    for i, range_set in enumerate(conf.keys.sets):
        packed = next((p for p in left if range_of(range_set, p)), None)
        wanted.append(packed)
        if packed is None:
            continue
        left.remove(packed)
        if packed == range_of(range_set, packed).gateway:
            raise CniError(INVALID_CONFIG, f"failed to allocate for range {i}: "
                           f"requested ip {address.ip_text(packed)} is subnet's gateway")
    if left:
        texts = " ".join(address.ip_text(packed) for packed in left)
        ranges = "; ".join(text_of(range_set) for range_set in conf.keys.sets)
        raise CniError(INVALID_CONFIG, f"failed to allocate all requested IPs: {texts}",
                       f"one address is given from each of the sets {ranges}")
    return wanted


def _take(store, conf, number, range_set, wanted, container_id):
    for packed in store.addresses_of(conf.owner):
        if range_of(range_set, packed):
            raise CniError(INTERNAL, f"{address.ip_text(packed)} has been allocated to {container_id}, "
                           "duplicate allocation is not allowed")
    if wanted is None:
        packed = _take_next(store, conf, number, range_set)
        if packed is None and store.recheck():
            packed = _take_next(store, conf, number, range_set)
        if packed is None:
            raise CniError(TRY_AGAIN_LATER, f"no IP addresses available in range set: {text_of(range_set)}",
                           _usage(store, conf, range_set))
    elif store.take(wanted, conf.owner):
        packed = wanted
    else:
        raise CniError(TRY_AGAIN_LATER, f"requested IP address {address.ip_text(wanted)} is not available in "
                       f"range set {text_of(range_set)}")
    store.write_cursor(number, packed)
    return packed


def _take_next(store, conf, number, range_set):
    for first, last, gateway in in_turn(range_set, store.read_cursor(number)):
        while (packed := store.index.next_free(first, last, gateway)) is not None:
            if store.take(packed, conf.owner):
                return packed           # else the index knows now who has it
    return None


def _give_back(req, conf, taken):
    """The way back of a failed ADD: the files that it made, if they still are its own."""
    if not taken:
        return
    with _store(req, conf) as store:
        for packed in taken if store else ():
            store.release(packed, conf.owner)


def _most_held(req):
    """The number of addresses that the container's interface can have: one of each range set."""
    try:
        return len(req.conf.once(read_keys).sets)
    except CniError:                    # a typo since the ADD: then an unread file may be the container's, too
        return float("inf")


def _release_each(store, held):
    """Release (packed, owner) pairs, going on after a failure; returns those that were held. Raises one CniError for
    all failures."""
    released, failures = [], []
    for packed, owner in held:
        try:
            if store.release(packed, owner):
                released.append((packed, owner))
        except CniError as e:
            failures.append(e)
    if failures:
        raise CniError(failures[0].code, ";".join(e.msg for e in failures), failures[0].details)
    return released


def _has_free(store, range_set):
    return any(store.index.next_free(r.start, r.end, r.gateway) is not None for r in range_set)


def _usage(store, conf, range_set):
    used = sum(store.index.count(r.start, r.end) - (r.contains(r.gateway) and store.index.is_held(r.gateway))
               for r in range_set)
    size = sum(r.size() for r in range_set)
    subnets = ",".join(dict.fromkeys(r.network() for r in range_set))
    return f'{subnets} of network "{store.network}", {used} of {size} addresses in use'


def _is_attachment(owner):
    """Written by ADD: an id alone, or an id and an interface. An operator's note is not ours to collect."""
    return len(owner.split(None)) == (2 if b"\r\n" in owner else 1)


# -- reading ----------------------------------------------------------------------------------------------

def _read_requested(req):
    """Requested addresses, prefix lengths ignored: the union of three sources, each address once."""
    text = read_args(req.args, ("IP",)).get("IP", "")
    if not text:
        return req.conf.once(_read_configured)
    try:
        own = _read_address(text)
    except ValueError as e:
        raise CniError(INVALID_ENVIRONMENT,
                       f"ARGS: error parsing value of pair {quote('IP=' + text)}: {e}") from None
    return list(dict.fromkeys([own, *req.conf.once(_read_configured)]))


def _read_configured(conf):
    """Those that the configuration asks for, in args.cni.ips and runtimeConfig.ips."""
    found = []
    for section in (conf.section("args").section("cni"), conf.section("runtimeConfig")):
        for text in section.texts("ips"):
            try:
                found.append(_read_address(text))
            except ValueError as e:
                raise CniError(INVALID_CONFIG, f"cannot understand ip: {e}", f"{section.where}.ips") from None
    return list(dict.fromkeys(found))


def _read_address(text):
    return address.read_cidr(text)[0] if "/" in text else address.read_ip(text)


def _read_resolv_conf(path):
    """resolv.conf(5) as result dns. Raises CniError 5."""
    try:
        data = read_file(path, posix.O_RDONLY | posix.O_NONBLOCK, RESOLV_CONF_LIMIT)
    except (OSError, ValueError) as e:
        why = posix.strerror(e.errno).lower() if isinstance(e, OSError) else str(e)
        raise CniError(IO_FAILURE, f"open {path}: {why}", "ipam.resolvConf names it") from None
    dns = {"nameservers": [], "domain": "", "search": [], "options": []}
    for line in data.decode("utf-8", "replace").split("\n"):
        words = line.split()
        if len(words) < 2 or words[0][0] in "#;":
            continue
        if words[0] == "nameserver":
            dns["nameservers"].append(words[1])
        elif words[0] == "domain":
            dns["domain"] = words[1]
        elif words[0] in ("search", "options"):
            dns[words[0]] += words[1:]
    return {key: value for key, value in dns.items() if value}
