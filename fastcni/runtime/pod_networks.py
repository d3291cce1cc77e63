"""Attach pods to networks and detach pods, for a program that runs pods. go-cni does this for containerd, ocicni for
CRI-O."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fastcni.runtime import discover
from fastcni.runtime.cni import CNI
from fastcni.runtime.collect import at_least
from fastcni.runtime.errors import ConfError, ManyErrors
from fastcni.runtime.network_directory import NetworkDirectory
from fastcni.runtime.parse import parse_list
from fastcni.runtime.pods import Detached, Pod, PodInterface, PodNetwork, PodStatus, Readiness
from fastcni.runtime.records import LO_IFNAME, Attachment, NetworkList, RuntimeConf
from fastcni.runtime.serial import Serial
from fastcni.spec import errors
from fastcni.spec.config import check_container_id
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.runtime.watch import Watch

LOOPBACK = parse_list(b'{"cniVersion": "0.3.1", "name": "cni-loopback", "plugins": [{"type": "loopback"}]}')

NO_RESULT = {"cniVersion": "1.1.0"}

Wanted = tuple[NetworkList, RuntimeConf]


class PodNetworks:
    """The networks of the pods of a node.

    cni: the CNI object that finds and calls the plugins. Its conf_dir has the networks. Its cache on disk has the
    attachments, so a new PodNetworks finds the pods of an earlier process. serial: whether set_up_pod() attaches a pod
    to its networks one after another.

    A pod without a list of networks gets the default network: the first valid file of the conf_dir, by name, as in
    containerd and CRI-O. PodNetworks reads the files again when they have changed, also if the directory was deleted
    and created again.

    Any number of threads may use the object. Calls for one container run one after another, in the order of their
    arrival. Methods raise CniError.
    """

    def __init__(self, cni: CNI, *, serial: bool = False, warn: discover.Warn = discover.log_warning):
        self.cni = cni
        self.serial = serial
        self.warn = warn
        self.directory = NetworkDirectory(cni.conf_dir)
        self._calls = Serial()

    def set_up_pod(self, pod: Pod) -> PodStatus:
        """Bring up the loopback interface, then attach the pod to each of its networks.

        The first network is attached before the other networks, so that its default route stays. The other networks
        are attached at the same time, or in their order with `serial`. After an error all networks are detached.

        Raises the error of the first network that failed; the other networks' errors are its notes. Raises CniError 4
        if the container already has networks. Nothing has changed then; call tear_down_pod() before another attempt.
        """
        with self._calls.hold(pod.container_id):
            wanted = self.wanted(pod)
            if there := self.attachments(pod.container_id):
                raise CniError(errors.INVALID_ENVIRONMENT, f"pod {pod.container_id} is set up already, with "
                               f"{', '.join(f'{it.network} {it.ifname}' for it in there)}", "tear it down first")
            try:
                self.cni.add(LOOPBACK, loopback(pod), rollback=True)
                self._attach(wanted)
            except BaseException as e:
                self._roll_back(pod, wanted, e)
                raise
            return PodStatus(pod.container_id, tuple(self.interface(*it) for it in wanted))

    def tear_down_pod(self, pod: Pod) -> tuple[Detached, ...]:
        """Detach the pod from all its networks, in reverse order. The caller may repeat the call, and `pod` needs no
        netns.

        tear_down_pod() detaches the networks in the result cache, with the configurations of their ADD. It also
        detaches the networks that `pod` asks for, because an interrupted ADD is not in the cache. If a cache file is
        damaged, its name gives the network and the interface, and DEL uses the configuration in the conf_dir.
        tear_down_pod() continues after errors.

        Raises ManyErrors. The networks that the error names are still attached; the caller must call tear_down_pod()
        again.
        """
        with self._calls.hold(pod.container_id):
            found, lost = self.attached(pod)
            done, failed = self._detach([(LOOPBACK, loopback(pod)), *found])
            failed += lost
        if failed:
            raise ManyErrors("\n".join(str(e) for e in failed), failed)
        return tuple(it for it in done if it.network != LOOPBACK.name)

    def pod_status(self, pod: Pod, *, check: bool = False) -> PodStatus:
        """Return the pod's interfaces and addresses, from the result cache. check: also run CHECK of each network; its
        error becomes the interface's `problem`. Networks below CNI 0.4.0 have no CHECK."""
        with self._calls.hold(pod.container_id):
            return PodStatus(pod.container_id, tuple(self._status_of(it, pod, check)
                                                     for it in self.attachments(pod.container_id)))

    def watch(self, changed: Callable[[Readiness], None], interval_s: float | None = None) -> "Watch[Readiness]":
        """Call changed(readiness) now in this thread, and later in another thread whenever the readiness has changed.

        The readiness is determined again when the configuration directory changes, and every `interval_s` seconds
        (None: never), because a plugin's answer to STATUS may change while the files stay the same. The caller must
        close() the returned Watch.
        """
        from fastcni.runtime.watch import Watch  # imported here, because the import loads ctypes

        return Watch(self.directory, self.readiness, changed, interval_s)

    def readiness(self) -> Readiness:
        """Return whether pods can be set up. The directory must have a default network, and the network's plugins must
        exist. From CNI 1.1.0 on, each plugin must also answer STATUS with success."""
        try:
            listing = self.directory.listing()
        except ConfError as e:
            return Readiness(False, str(e))
        broken = tuple(error.msg for error in listing.broken)
        try:
            net = listing.default
        except ConfError as e:
            return Readiness(False, str(e), broken=broken)
        try:
            for plugin in net.plugins:
                self.cni.runner.find(plugin.type, self.cni.plugin_dirs)
            self.cni.status(net)
        except CniError as e:
            return Readiness(False, f"network {net.name}: {e}", net.name, broken)
        return Readiness(True, "", net.name, broken)

    # Which networks ---------------------------------------------------------------------------------

    def wanted(self, pod: Pod) -> list[Wanted]:
        """Return (network, arguments of its ADD) for each network that a pod asks for. Raises ConfError if a network
        does not exist."""
        listing = self.directory.listing()
        for error in listing.broken:
            self.warn(f"skipped a broken network configuration: {error.msg}")
        nets = [listing.named(it.name) for it in pod.networks] or [listing.default]
        asked = list(pod.networks) or [PodNetwork(nets[0].name)]
        found = []
        for index, (net, it) in enumerate(zip(nets, asked, strict=True)):
            capability_args = {**pod.capability_args(first=not index), **it.capability_args}
            found.append((net, RuntimeConf(pod.container_id, pod.netns, it.ifname or f"eth{index}",
                                           [*pod.cni_args(), *it.args], capability_args)))
        if len({rt.ifname for _, rt in found}) < len(found):
            raise CniError(errors.INVALID_ENVIRONMENT, f"pod {pod.container_id} asks for one interface name twice: "
                           f"{', '.join(f'{net.name} {rt.ifname}' for net, rt in found)}")
        return found

    def attached(self, pod: Pod) -> tuple[list[Wanted], list[CniError]]:
        """Return (networks that tear_down_pod() detaches, in the order of their ADD; errors of the networks without a
        usable configuration)."""
        cached = self.attachments(pod.container_id)
        found, lost = [], []
        for it in cached:
            try:
                found.append((self.network_of(it), it.runtime_conf(pod.netns or None)))
            except CniError as e:
                lost.append(CniError(e.code, f"network {it.network} {it.ifname}: {self.file_of(it)} has no usable "
                                     f"configuration, and {e.msg}", "add the configuration of the network and repeat "
                                     "this, or remove the file if the interface and its addresses no longer exist"))
        try:
            asked = self.wanted(pod)
        except CniError:            # the network's file was removed: delete only the cached attachments
            asked = []
        known = {(it.network, it.ifname) for it in cached}
        return [*found, *(it for it in asked if (it[0].name, it[1].ifname) not in known)], lost

    def attachments(self, container_id: str) -> list[Attachment]:
        """Return the cached attachments of a container, eth0 before eth1, without the loopback interface. Attachments
        of damaged files have no config. Raises CniError, also for an empty container_id."""
        check_container_id(container_id)            # for the cache, "" means all containers
        try:
            found = self.cni.attachments(container_id) + self.cni.cache.damaged(container_id)
        except OSError as e:
            raise CniError(errors.IO_FAILURE, f"list the result cache: {e}") from e
        return sorted((it for it in found if it.network != LOOPBACK.name), key=lambda it: (len(it.ifname), it.ifname))

    def network_of(self, attachment: Attachment) -> NetworkList:
        """Return an attachment's network: the configuration that its ADD used, with the plugins that the network's
        directory has now. Without a usable configuration in the cache, return the network that now has the attachment's
        network name. Raises ConfError."""
        try:
            return discover.with_directory(self.cni.conf_dir, parse_list(attachment.config))
        except CniError:
            return self.directory.listing().named(attachment.network)

    def file_of(self, attachment: Attachment) -> str:
        """Return the path of an attachment's file in the result cache."""
        return self.cni.cache.path(attachment.network, attachment.runtime_conf())

    # Steps ------------------------------------------------------------------------------------------

    def _attach(self, wanted: Sequence[Wanted]) -> None:
        """Run ADD of the first network, then of the other networks. Raises the first error; the other errors are its
        notes."""
        first, *others = wanted
        found = [attempt(self.cni.add, *first)]
        if not found[0] and others:
            from concurrent.futures import ThreadPoolExecutor

            with ThreadPoolExecutor(1 if self.serial else len(others), "fastcni-pod") as pool:
                found = list(pool.map(lambda it: attempt(self.cni.add, *it), others))
        failed = [error for error in found if error]
        for error in failed[1:]:
            failed[0].add_note(str(error))
        if failed:
            raise failed[0]

    def _roll_back(self, pod: Pod, wanted: Sequence[Wanted], error: BaseException) -> None:
        for one in self._detach([(LOOPBACK, loopback(pod)), *wanted])[1]:
            error.add_note(f"while undoing: {one}")

    def _detach(self, found: Sequence[Wanted]) -> tuple[list[Detached], list[CniError]]:
        done, failed = [], []
        for net, rt in reversed(found):
            try:
                done.append(Detached(net.name, rt.ifname, self.cni.delete(net, rt)))
            except CniError as e:
                failed.append(named(net, rt, e))
        return done, failed

    def _check(self, net: NetworkList, rt: RuntimeConf) -> str:
        """Run CHECK of an attachment. Return the error's text, "" if CHECK succeeds or the network's version has no
        CHECK."""
        error = attempt(self.cni.check, net, rt) if at_least(net.version, "0.4.0") else None
        return str(error.__cause__) if error else ""

    def _status_of(self, attachment: Attachment, pod: Pod, check: bool) -> PodInterface:
        """Return the PodInterface of a cached attachment. If the cache file is damaged, the `problem` names the
        file."""
        try:
            found = self.interface(self.network_of(attachment), attachment.runtime_conf(pod.netns or None), check)
        except CniError as e:
            return PodInterface(attachment.network, attachment.ifname, NO_RESULT,
                                f"{self.file_of(attachment)}: {e.msg}")
        missing = f"{self.file_of(attachment)}: {found.problem or 'no configuration of its ADD'}"
        return found if attachment.config else replace(found, problem=missing)

    def interface(self, net: NetworkList, rt: RuntimeConf, check: bool = False) -> PodInterface:
        """Return the PodInterface of an attachment, with its cached result. check: also run CHECK, whose error becomes
        the `problem`. Raises CniError if the cached result is damaged."""
        result = self.cni.cached_result(net, rt)
        problem = self._check(net, rt) if check else "" if result else "no result of its ADD is cached"
        return PodInterface(net.name, rt.ifname, result or NO_RESULT, problem)


def loopback(pod: Pod) -> RuntimeConf:
    return RuntimeConf(pod.container_id, pod.netns, LO_IFNAME, pod.cni_args())


def attempt(verb: Callable[..., Any], net: NetworkList, rt: RuntimeConf) -> CniError | None:
    """Call `verb`, a method of CNI. Return its CniError, which then names the network and interface; None for
    success."""
    try:
        verb(net, rt)
    except CniError as e:
        return named(net, rt, e)
    return None


def named(net: NetworkList, rt: RuntimeConf, error: CniError) -> CniError:
    """Return a copy of `error` whose text names the network and the interface."""
    renamed = CniError(error.code, f"network {net.name} {rt.ifname}: {error.msg}", error.details)
    renamed.__cause__ = error
    return renamed
