"""firewall: lets the pod's traffic through the host, and bridges' pods be reached only from where a policy says.

Backends are imported when they are used: a one-shot ADD needs one of them.
"""

from fastcni.kit.call import chained, names
from fastcni.kit.call.conf import ENDINGS, keys_of
from fastcni.kit.call.undo import every
from fastcni.spec import errors, version
from fastcni.spec import result as results
from fastcni.spec.config import check_ifname, shown
from fastcni.spec.errors import CniError

VERSIONS = version.ALL[version.ALL.index("0.4.0"):]         # as the reference: before there is no CHECK
BACKENDS = ("iptables", "firewalld", "nftables")
POLICIES = ("open", "same-bridge", "isolated")


class Conf:
    """The keys: backend ("": whatever filters here, None: unknown to DEL), admin_chain, zone, policy ("": open).

    Of prevResult: previous; ips, the packed addresses of all it has; bridge, the name of its first interface.
    """

    __slots__ = ("backend", "admin_chain", "zone", "policy", "previous", "ips", "bridge")

    @property
    def isolated(self):
        return self.policy == "isolated"


def read(req):
    try:
        return read_strictly(req)
    except CniError as e:
        if req.command not in ENDINGS:
            raise
        req.warn(f"{e.msg}; what ADD has made is looked for in each backend")
        return read_leniently(req)


def read_leniently(req):
    """For DEL and GC: what is there is found without the keys."""
    from fastcni.kit.firewall.masquerade import prev_addresses

    conf = Conf()
    conf.zone = keys_of(req).text("firewalldZone") or "trusted"
    conf.backend, conf.policy, conf.previous, conf.admin_chain = None, "", None, names.ADMIN_CHAIN
    conf.ips = list(prev_addresses(req))
    return conf


def read_strictly(req):
    keys, conf = req.conf, Conf()
    conf.backend = keys.text("backend")
    if conf.backend not in BACKENDS:
        if conf.backend:
            req.warn(f"unknown backend {shown(conf.backend)} is taken for none; there are {', '.join(BACKENDS)}")
        conf.backend = ""
    conf.zone = keys.text("firewalldZone") or "trusted"
    conf.admin_chain = names.read_chain(keys, "iptablesAdminChainName", names.ADMIN_CHAIN)
    conf.policy = keys.text("ingressPolicy") or "open"
    if conf.policy not in POLICIES:
        raise CniError(errors.INVALID_CONFIG, f'unknown ingress policy: "{conf.policy}"',
                       f"ingressPolicy is one of {', '.join(POLICIES)}")
    conf.previous = results.read_prev_result(keys, req.version)
    conf.ips = list(dict.fromkeys(packed for packed, _ in results.ips_of(conf.previous or {})))
    conf.policy = "" if conf.policy == "open" else conf.policy
    conf.bridge = read_bridge(conf) if conf.policy and conf.previous else ""
    return conf


def read_bridge(conf):
    interfaces = conf.previous.get("interfaces", ())
    if not interfaces:
        raise CniError(errors.INVALID_CONFIG, f'interface needs to be set for ingress policy "{conf.policy}", make '
                       'sure to chain "firewall" plugin with "bridge"')
    if not interfaces[0]["name"]:
        raise CniError(errors.INVALID_CONFIG, "got empty bridge name")
    for it in interfaces:
        try:
            check_ifname(it["name"])
        except CniError as e:
            raise CniError(errors.INVALID_CONFIG, f"prevResult.interfaces: {shown(it['name'])}: {e.msg}") from None
    return interfaces[0]["name"]


def backend_of(req, conf):
    """The module of the backend. Without the key it is whoever filters what this host forwards, so that it is them who
    are told."""
    from fastcni.kit.firewall import forward_firewalld, forward_iptables, forward_nft

    if conf.backend:
        return {"iptables": forward_iptables, "firewalld": forward_firewalld, "nftables": forward_nft}[conf.backend]
    if forward_firewalld.owns_name(req):
        return forward_firewalld
    return forward_iptables if forward_iptables.filters_forwarded(req) else forward_nft


def policies_of(backend):
    """The module that puts ingressPolicy in force."""
    from fastcni.kit.firewall import forward_iptables

    if backend is forward_iptables:
        from fastcni.kit.firewall import ingress_iptables as found
    else:
        from fastcni.kit.firewall import ingress_nft as found
    return found


def add(req, conf, undo):
    result = conf.previous or chained.previous(req, "missing prevResult from earlier plugin")
    backend = backend_of(req, conf)
    undo(delete, req, conf)
    backend.add(req, conf)
    if conf.policy:
        policies_of(backend).add(req, conf)
    return result


def delete(req, conf):
    """Remove what ADD did, in every backend that may have it and by every implementation."""
    from fastcni.kit.firewall import forward_firewalld, forward_iptables, forward_nft, ingress_nft

    by_nftables = forward_nft.knows(req, conf)
    every((ingress_nft.delete, req, conf),
          (forward_iptables.delete, req, conf),
          (forward_firewalld.delete, req, conf, by_nftables),
          (forward_nft.delete, req, conf))


def check(req, conf):
    from fastcni.kit.call import checks

    if conf.previous is None:
        chained.previous(req, "missing prevResult from earlier plugin")
    backend = backend_of(req, conf)
    wrong = backend.missing(req, conf) or (conf.policy and policies_of(backend).missing(req, conf))
    if wrong:
        raise checks.wrong(wrong, "was the firewall flushed?")


def restore(req, conf):
    """Put back what somebody has flushed."""
    if conf.previous:
        backend = backend_of(req, conf)
        backend.restore(req, conf)
        if conf.policy:
            policies_of(backend).restore(req, conf)


def gc(req, conf):
    from fastcni.kit.firewall import forward_firewalld, forward_iptables, forward_nft, ingress_iptables, ingress_nft

    every((forward_iptables.gc, req, conf), (forward_firewalld.gc, req, conf), (forward_nft.gc, req, conf),
          (ingress_nft.gc, req), (ingress_iptables.gc, req))


def status(req, conf):
    backend_of(req, conf).status(req)
