"""multus: connects a pod to several networks in one request: a default network and the networks of its annotation.

    {"type": "multus", "delegates": [{"name": "a", "type": "bridge", ...}]}
    {"type": "multus", "clusterNetwork": "/etc/cni/net.d/10-flannel.conflist", "confDir": "/etc/cni/multus/net.d"}

The plugin reads the keys of Multus and keeps the files of Multus, so it can replace the programs of Multus.
`multus-shim` is a second name of this plugin. The plugins of each network run as a chain (plugins/chain.py).
"""

from __future__ import annotations

from fastcni.kit.call import delegate
from fastcni.kit.call.conf import read_once
from fastcni.kit.call.pod import Pod
from fastcni.kit.call.undo import Undo, every
from fastcni.kit.links import find
from fastcni.kit.networks import state
from fastcni.kit.networks.chosen import Asked, definitions_of, give_devices, networks_of, objects_of, selected, standing
from fastcni.kit.networks.keys import BIN_DIR, CNI_DIR, Keys, read_keys
from fastcni.kit.networks.network import OWN_ARG, Failing
from fastcni.kit.networks.ready import exists, wait_until_ready
from fastcni.kit.networks.selection import read_networks
from fastcni.spec import errors, version
from fastcni.spec.config import VALID_ATTACHMENTS, is_name
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.networks.changes import Plan
    from fastcni.kit.networks.network import Network

CAPABILITIES, ARGS = ("io.kubernetes.cri.pod-annotations",), (OWN_ARG,)
PASSES_CAPABILITIES = True      # the pod's networks get the capabilities


class Conf:
    """The values of one request. keys: the configuration's keys. asked: the pod and the networks that its annotation
    names. networks: the networks to which ADD attaches the pod. Only ADD sets both. state: the pod's files on disk.
    for_gc: whether a GC, not a DEL, deletes the pod's networks."""

    __slots__ = ("keys", "asked", "networks", "state", "for_gc")

    def __init__(self, keys: Keys, kept: state.State) -> None:
        self.keys, self.state = keys, kept
        self.asked: Asked | None = None
        self.networks: list[Network] = []
        self.for_gc = False


def read(req: Request) -> Conf:
    keys = read_once(req, read_keys)
    conf = Conf(keys, state.State(keys.cni_dir, req.container_id))
    if req.command == "ADD":
        known = definitions_of(req, keys)
        conf.asked = Asked(req, known.objects)
        conf.networks = networks_of(req, keys, conf.asked, known)
        check_names(conf.networks)
        if any(network.gateways for network in conf.networks):
            from fastcni.kit.networks import default_routes

            default_routes.check(conf.networks)
        for network in conf.networks:
            for plugin in network.definition.conf.values["plugins"]:
                delegate.check_version(network.definition.conf.values["cniVersion"], plugin.get("type", ""))
    return conf


def check_names(networks: list[Network]) -> None:
    """Raise CniError 7 if two networks of the pod would have the same interface name."""
    names = [network.ifname for network in networks]
    twice = [name for place, name in enumerate(names) if name in names[:place]]
    if twice:
        raise errors.bad_config(f'two networks of the pod have the interface "{twice[0]}"',
                                f"the pod's interfaces are {', '.join(names)}")


def sub_request(req: Request, conf: Conf, network: Network) -> Request:
    return network.request(req, conf.keys.bin_dir, BIN_DIR)


def add(req: Request, conf: Conf, undo: Undo) -> dict[str, Any]:
    """Run ADD of each network in order. Return the result of the first network, which is the pod's default network. If
    an ADD fails, the rollback removes all networks in reverse order."""
    for text in conf.keys.ignored:
        req.warn(text)
    wait_until_ready(conf.keys.ready_file)
    pod = Pod(req)
    for network in conf.networks:
        if find.link(pod.inside, network.ifname) is not None:
            raise CniError(errors.INVALID_ENVIRONMENT, f'the pod has an interface "{network.ifname}" already')
    undo.unless_failed(conf.state.remove)
    conf.state.write(conf.networks)
    added = []
    for network in conf.networks:
        added.append((network, attach(req, conf, network, undo)))
    if any(network.gateways is not None for network in conf.networks):
        from fastcni.kit.networks import default_routes

        for place in default_routes.arrange(pod, added):
            conf.state.write_result(req, *added[place])
    write_status(req, conf, added)
    return added[0][1]


def attach(req: Request, conf: Conf, network: Network, undo: Undo) -> dict[str, Any]:
    """Run ADD of one network, store the network's result in a file, and return the result."""
    sub = sub_request(req, conf, network)
    sub.command, network.cni_args = "ADD", sub.args
    with Failing(network, "add"):
        if "deviceID" in network.capabilities:
            from fastcni.kit.networks import device_info

            device_info.prepare(req, network, undo)
        undo.unless_failed(conf.state.remove_result, network)
        result = delegate.add(sub, undo)
        conf.state.write_result(req, network, result)
    return result


def write_status(req: Request, conf: Conf, added: Sequence[tuple[Network, dict[str, Any]]]) -> None:
    """Write the pod's annotation network-status to the Kubernetes API, if the configuration has a kubeconfig. A failure
    is only a warning."""
    objects, asked = objects_of(req, conf.keys), conf.asked
    if not objects or not asked or not asked.name or asked.namespace in conf.keys.system_namespaces:
        return
    from fastcni.clients.errors import Away
    from fastcni.kit.networks import network_status

    try:
        objects.write_status(asked.namespace, asked.name, asked.uid, network_status.text_of(added))
    except Away as e:
        req.warn(f"multus: the annotation network-status of pod {asked.namespace}/{asked.name} is not written: {e}")


def on_each(req: Request, conf: Conf, step: Callable[[Request, Conf, Network], None]) -> None:
    """Call step(req, conf, network) for each network that the pod's ADD has attached; for DEL in reverse order.
    Continue after errors, then raise CniError."""
    networks = [network for _, network in conf.state.listed(req.ifname)]
    results, damaged = conf.state.kept_results(networks)
    doubts: list[tuple[Any, ...]] = []
    if not networks or results or damaged:
        from fastcni.kit.networks import lost

        networks, doubts = lost.complete(req, conf.keys, conf.state, networks, results, damaged, conf.for_gc)
    if req.command == "DEL":
        networks.reverse()
    every(*((step, req, conf, network) for network in networks), *doubts)


def delete(req: Request, conf: Conf) -> None:
    """Run DEL of each network in reverse order. Continue after errors. The pod's files stay until all networks are
    deleted."""
    on_each(req, conf, delete_network)
    conf.state.remove()


def delete_network(req: Request, conf: Conf, network: Network) -> None:
    with Failing(network, "delete"):
        sub = sub_request(req, conf, network)
        sub.mode.announce_delete(sub)
        delegate.run(sub, "DEL")
    if "deviceID" in network.capabilities:
        from fastcni.kit.networks import device_info

        device_info.remove(network)
    conf.state.remove_result(network)


def update(req: Request, conf: Conf) -> None:
    """Attach and detach networks of a running pod, so that it has the networks of its annotation. UPDATE is no CNI
    command: the server sends it (server/networks/hot_plug.py), with the annotation in `runtimeConfig`.

    update() finds all network definitions before it changes anything. If the ADD of a network fails, update() rolls
    this ADD back and attaches no further network; the pod keeps its other networks. If a DEL has deleted the pod's
    networks, update() does nothing.
    """
    from fastcni.kit.networks import changes, default_routes

    listed = conf.state.listed(req.ifname)
    if not listed:
        conf.state.reject_list()
        return
    known = definitions_of(req, conf.keys)
    conf.asked = asked = Asked(req, known.objects)
    plan = changes.make_plan([it for _, it in listed], read_networks(asked.networks, asked.namespace),
                              conf.keys.default_titles(asked.namespace))
    joins = [selected(conf.keys, asked, known, selection, ifname) for selection, ifname in plan.joins]
    check_names([*(it for it, _ in plan.stays), *joins])
    default_routes.check(joins)
    give_devices(req, asked, joins, changes.devices_of(it for it, _ in plan.stays))
    elements = {id(it): element for element, it in listed}
    for network in reversed(plan.leaves):
        delete_network(req, conf, network)
        del elements[id(network)]
        conf.state.rewrite([*elements.values()])
    added = changes.with_results(it for it, _ in plan.stays)
    every((join_all, req, conf, joins, added, [*elements.values()]),
          (write_new_status, req, conf, plan, added))


def write_new_status(req: Request, conf: Conf, plan: Plan, added: list[tuple[Network, dict[str, Any]]]) -> None:
    """Write the annotation network-status of a running pod, if the pod's networks have changed."""
    for network, selection in plan.stays:
        network.gateways = selection.gateways if selection else None
    if plan:
        write_status(req, conf, added)


def join_all(req: Request, conf: Conf, networks: list[Network], added: list[tuple[Network, dict[str, Any]]],
             elements: list[dict[str, Any]]) -> None:
    """Attach `networks` to a running pod. added: (network, result) of the pod's networks; join_all() appends the new
    networks. elements: the JSON objects of the pod's networks in its list file, to which the new networks' objects are
    added."""
    if not networks:
        return
    pod = Pod(req)                      # not earlier: the DELs of other networks close the pod's open descriptors
    for network in networks:
        join(req, conf, pod, network, added, elements)
        elements = [*elements, state.element(network, 1)]


def join(req: Request, conf: Conf, pod: Pod, network: Network, added: list[tuple[Network, dict[str, Any]]],
         elements: list[dict[str, Any]]) -> None:
    """Attach one network to a running pod, with the arguments of join_all()."""
    from fastcni.kit.networks import default_routes

    if find.link(pod.inside, network.ifname) is not None:
        raise CniError(errors.INVALID_ENVIRONMENT, f'the pod has an interface "{network.ifname}" already')
    with Undo() as undo:
        undo.unless_failed(conf.state.rewrite, elements)
        conf.state.rewrite([*elements, state.element(network, 1)])
        undo(conf.state.remove_result, network)         # an UPDATE attaches networks without a stored result
        after = [*added, (network, attach(req, conf, network, undo))]
        for place in default_routes.arrange(pod, after):
            conf.state.write_result(req, *after[place])
        added.append(after[-1])


def check(req: Request, conf: Conf) -> None:
    on_each(req, conf, check_network)


def check_network(req: Request, conf: Conf, network: Network) -> None:
    spoken = network.definition.conf.values["cniVersion"]
    if version.at_least(spoken, "0.4.0") and not network.definition.document.get("disableCheck"):
        with Failing(network, "check"):
            need_result(conf, network)
            delegate.run(sub_request(req, conf, network), "CHECK")


def need_result(conf: Conf, network: Network) -> None:
    """Raise CniError 5 if the file with the network's result is missing or damaged."""
    if "prevResult" not in network.given:
        path = conf.state.path_of_result(network.definition.name, network.ifname)
        raise CniError(errors.IO_FAILURE, f"{path} is damaged or missing", "the file has the result of the ADD")


def restore(req: Request, conf: Conf) -> None:
    """Restore the firewall rules and set elements of all networks' plugins on the host."""
    on_each(req, conf, restore_network)


def restore_network(req: Request, conf: Conf, network: Network) -> None:
    with Failing(network, "restore"):
        need_result(conf, network)
        delegate.restore(sub_request(req, conf, network))


def gc(req: Request, conf: Conf) -> None:
    """Run DEL of the networks of containers that no longer exist. Then run GC of each network's plugins, with the
    containers that exist as valid attachments."""
    valid = req.valid_attachments
    # an id with other characters cannot be the name of a file
    living = {container_id for container_id, _ in valid if is_name(container_id)}
    kept, damaged = state.kept_results(conf.keys.cni_dir, living)
    gone = state.gone_containers(conf.keys.cni_dir, kept, damaged, living)
    named = {(it.container_id, it.ifname) for it in kept} | {(it.container_id, it.ifname) for it in damaged}
    valid |= {it for it in named if it[0] not in gone}
    valid |= {(it, ifname) for it in living for ifname in state.State(conf.keys.cni_dir, it).interfaces()}
    networks = {it.definition.name: it for it in [*kept, *standing(req, conf.keys, req.warn)]}
    every(*((delete_container, req, conf, one) for one in sorted(gone)),
          *((gc_network, req, conf, network, valid) for network in networks.values()))


def delete_container(req: Request, conf: Conf, container_id: str) -> None:
    """Run DEL of all networks of a container that no longer exists."""
    gone = req.delegate(req.plugin)
    gone.command, gone.container_id, gone.ifname = "DEL", container_id, "eth0"
    files = Conf(conf.keys, state.State(conf.keys.cni_dir, container_id))
    files.for_gc = True
    delete(gone, files)
    req.release("networks", container_id)


def gc_network(req: Request, conf: Conf, network: Network, valid: set[tuple[str, str]]) -> None:
    """Run GC of one network's plugins. valid: the attachments of this multus. The plugins also keep the attachments
    that the runtime or another multus has added to the network."""
    from fastcni.kit.networks import other_caches

    places = [it for it in (other_caches.RUNTIME_DIR, CNI_DIR) if it != conf.keys.cni_dir]
    with Failing(network, "gc"):
        others = other_caches.living(network.definition.name, places)
        network.given, network.capabilities = {VALID_ATTACHMENTS: other_caches.objects(valid | others.keys())}, {}
        delegate.run(sub_request(req, conf, network), "GC")


def status(req: Request, conf: Conf) -> None:
    """Run STATUS of the networks to which every pod is attached. Raises CniError 50."""
    if conf.keys.ready_file and not exists(conf.keys.ready_file):
        raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"readinessindicatorfile {conf.keys.ready_file} does not exist")
    for network in standing(req, conf.keys):
        with Failing(network, "status"):
            delegate.status(sub_request(req, conf, network))
