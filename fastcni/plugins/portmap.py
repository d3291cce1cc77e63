"""portmap: ports of the host lead to ports of the pod, as the capability portMappings asks for.

Backends are imported when they are used: a one-shot ADD needs one of them, and most pods' none.
"""

from fastcni.kit.call import chained, names
from fastcni.kit.call.undo import every
from fastcni.kit.firewall import port_mappings
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec import result as results
from fastcni.spec.config import shown
from fastcni.spec.errors import CniError

CAPABILITIES = ("portMappings",)
CONDITIONS = {4: "conditionsV4", 16: "conditionsV6"}          # by length of an address


class Conf:
    """The keys: mappings (as port_mappings has them), snat, masq_all, iptables (is that the backend?), mark_bit,
    set_mark_chain ("": our own), conditions {length of an address: [words]}.

    Of prevResult: previous, and pod {length: (packed, prefix)}, its first address of each family.
    """

    __slots__ = ("mappings", "snat", "masq_all", "iptables", "mark_bit", "set_mark_chain", "conditions", "previous",
                 "pod")

    def mappings_for(self, length):
        """The mappings of one family, in their order."""
        return [mapping for mapping in self.mappings if length in mapping.lengths]


def read(req):
    if req.command in ("DEL", "GC"):
        return read_leniently(req)
    try:
        return read_strictly(req)
    except CniError as e:
        words = "failed to parse config: " if req.command == "ADD" else ""
        raise CniError(e.code, words + e.msg, e.details) from None


def read_leniently(req):
    """For DEL: what ADD would have refused is mapped to nobody, and what is there is found without."""
    try:
        return read_strictly(req)
    except CniError as e:
        req.warn(f"{e.msg}; what ADD has made is looked for in each backend")
        conf = Conf()
        conf.mappings, conf.pod, conf.iptables = [], {}, True
        return conf


def read_strictly(req):
    keys, conf = req.conf, Conf()
    conf.snat, conf.masq_all = keys.flag("snat", default=True), keys.flag("masqAll")
    read_backend(keys, conf)
    conf.mappings = port_mappings.read(keys)
    conf.previous, conf.pod = results.read_prev_result(keys, req.version), {}
    for ip in (conf.previous or {}).get("ips", ()):
        if chained.in_pod(conf.previous, ip, req.ifname):
            packed, prefix = addresses.read_cidr(ip["address"])
            conf.pod.setdefault(len(packed), (packed, prefix))
    return conf


def read_backend(keys, conf):
    """backend, and what only one of the two understands."""
    conf.mark_bit = keys.integer("markMasqBit", default=13)
    if keys.text("externalSetMarkChain") and keys.has("markMasqBit"):
        raise CniError(errors.INVALID_CONFIG, "Cannot specify externalSetMarkChain and markMasqBit")
    if not 0 <= conf.mark_bit <= 31:
        raise CniError(errors.INVALID_CONFIG, "MasqMarkBit must be between 0 and 31", f"markMasqBit is {conf.mark_bit}")
    conf.set_mark_chain = names.read_chain(keys, "externalSetMarkChain")
    conf.conditions = {length: read_words(keys, key) for length, key in CONDITIONS.items()}
    own = {"iptables": ["externalSetMarkChain"] if conf.set_mark_chain else [], "nftables": []}
    for length, words in conf.conditions.items():
        if words:
            own["iptables" if words[0][0] in "-!" else "nftables"].append(CONDITIONS[length])
    backend = keys.text("backend") or ("iptables" if own["iptables"] else "nftables")
    if backend not in own:
        raise CniError(errors.INVALID_CONFIG, f'unrecognized backend "{backend}"',
                       "backend is nftables (the default) or iptables")
    conf.iptables = backend == "iptables"
    other = "nftables" if conf.iptables else "iptables"
    if own[other]:
        raise CniError(errors.INVALID_CONFIG, f"{backend} backend was requested but configuration contains "
                       f"{other}-specific options [{' '.join(own[other])}]")
    for key in own["nftables"]:
        raise CniError(errors.UNSUPPORTED_FIELD,
                       f"{key} {shown(keys.texts(key))} cannot be used with the nftables backend",
                       'it takes no words of nft(8); with "backend": "iptables" and words of iptables(8), as '
                       '["-s", "192.0.2.0/24"], it can')


def read_words(keys, key):
    words = keys.texts(key)
    if not all(word and word.isprintable() for word in words):
        raise keys.wrong(key, f"expected printable words, got {shown(words)}")
    return words


def backend_of(conf):
    if conf.iptables:
        from fastcni.kit.firewall import portmap_iptables as backend
    else:
        from fastcni.kit.firewall import portmap_nft as backend
    return backend


def add(req, conf, undo):
    result = conf.previous or chained.previous(req)
    if conf.mappings and conf.pod:
        from fastcni.kit.firewall import flows

        backend = backend_of(conf)
        undo(backend.delete, req, conf)
        backend.add(req, conf)
        flows.after_add(req, conf)
        if needs_localnet(conf):
            from fastcni.kit.firewall import localnet

            localnet.enable(req, conf.pod[4][0])
    return result


def restore(req, conf):
    """Put back what is missing of what ADD did."""
    if conf.mappings and conf.pod:
        backend_of(conf).restore(req, conf)
        if needs_localnet(conf):
            from fastcni.kit.firewall import localnet

            localnet.guard(req)


def needs_localnet(conf):
    return conf.snat and 4 in conf.pod and any(from_localhost(mapping) for mapping in conf.mappings_for(4))


def from_localhost(mapping):
    """Is it one of a port of 127.0.0.1?"""
    return not mapping.host_ip or mapping.host_ip[:1] == b"\x7f"


def delete(req, conf):
    """Take back what ADD did, in whichever backend and by whichever implementation."""
    from fastcni.kit.firewall import portmap_iptables, portmap_nft

    every((take_back, portmap_nft, req, conf), (take_back, portmap_iptables, req, conf))


def take_back(backend, req, conf):
    # Where nothing was ours the flows are somebody else's.
    if backend.delete(req, conf):
        from fastcni.kit.firewall import flows

        flows.after_delete(req, conf)


def check(req, conf):
    from fastcni.kit.call import checks
    from fastcni.kit.firewall import portmap_iptables  # CHECK alone needs these

    if conf.previous is None:
        chained.previous(req, "Required prevResult missing")
    if not conf.mappings or not conf.pod:
        return
    wrong = backend_of(conf).missing(req, conf)
    if wrong and not conf.iptables and portmap_iptables.present(req):
        wrong = portmap_iptables.missing(req, conf)         # the pod is older than its configuration
    if wrong:
        raise checks.wrong(wrong, "was the firewall flushed?")


def gc(req, conf):
    from fastcni.kit.firewall import portmap_iptables, portmap_nft

    every((portmap_nft.gc, req), (portmap_iptables.gc, req))


def status(req, conf):
    """A backend that does not work is a warning: pods without mappings have their network."""
    try:
        backend_of(conf).status(req)
    except CniError as e:
        req.warn(f"portmap: {e}")
