"""The public object: networks are loaded and containers attached to them, with the Go library's semantics."""

import os
from collections.abc import Iterable, Sequence
from typing import Any

from fastcni.kit.call import invoke
from fastcni.runtime import collect, discover, inject
from fastcni.runtime.cache import Cache
from fastcni.runtime.call import NOBODY, Call, Interface, to_pair
from fastcni.runtime.errors import ManyErrors, PluginError
from fastcni.runtime.exec import Exec, Runner
from fastcni.runtime.parse import read_version
from fastcni.runtime.records import Attachment, NetworkList, PluginConf, RuntimeConf
from fastcni.runtime.report import GcReport, Report
from fastcni.runtime.trace import Trace
from fastcni.spec import errors, json, version
from fastcni.spec.config import check_container_id, check_ifname, check_network_name
from fastcni.spec.errors import CniError

DEFAULT_CONF_DIR = "/etc/cni/net.d"

Result = dict[str, Any]


class CNI:
    """A runtime.

    plugin_dirs: where plugins are looked for, in order. conf_dir: where load() looks. cache_dir: where
    results are remembered, /var/lib/cni when empty. runner: how plugins are called, Exec() when None.
    timeout: seconds for one call of one plugin, None for no limit.

    Nothing is kept here between calls, and any number of threads may use one object. Two calls for
    one container, or GC beside anything else on its network, are the caller's to keep apart.

    What goes wrong is a CniError: code, msg and details; a PluginError when a plugin of a list said
    so, with the plugin's code and details. `trace` of each call is handed on to the plugins.
    """

    def __init__(self, plugin_dirs: Sequence[str | os.PathLike[str]],
                 conf_dir: str | os.PathLike[str] = DEFAULT_CONF_DIR,
                 cache_dir: str | os.PathLike[str] = "",
                 runner: Runner | None = None, timeout: float | None = None):
        self.plugin_dirs = [os.fspath(where) for where in plugin_dirs]
        self.conf_dir = os.fspath(conf_dir)
        self.cache = Cache(cache_dir)
        self.runner: Runner = runner or Exec()
        self.timeout = timeout

    def load(self, name: str, warn: discover.Warn = discover.log_warning) -> NetworkList:
        """Load a network by name. ConfError, also as NoConfigsFound or NotFound: see load_network()."""
        return discover.load_network(self.conf_dir, name, warn)

    # Networks -----------------------------------------------------------------------------------

    def add(self, net: NetworkList, rt: RuntimeConf, *, rollback: bool = False,
            trace: Trace | None = None) -> Result | None:
        """Attach: ADD of each plugin in order; return the last one's result, in that result's own version.

        The result is remembered in the cache. After a failure the network may be half there: the caller
        has to delete(), or asks with `rollback` that the plugins that were started are DELeted in reverse
        before the error is raised; what goes wrong with that is added to it as notes. None: no plugins.
        """
        started: list[PluginConf] = []
        result = None
        try:
            for plugin in net.plugins:
                try:
                    result = self._add_one(net, plugin, rt, result, trace, started)
                except CniError as e:
                    raise PluginError(plugin, "add", e) from e
            self._remember(net, rt, result)
        except BaseException as e:
            if rollback:
                self._roll_back(net, rt, trace, started, e)
            raise
        return result

    def check(self, net: NetworkList, rt: RuntimeConf, *, trace: Trace | None = None) -> Report:
        """Verify: CHECK of each plugin in order with the remembered result; the first error is raised."""
        self._require_check(net.version)
        if net.disable_check:
            return Report(skipped="disableCheck is true")
        result = self._cached_for_check(net, rt)
        for index, plugin in enumerate(net.plugins):
            try:
                self.call(Call("CHECK", rt, trace, self.path), plugin,
                          inject.for_attachment(net.name, net.version, plugin, rt, result))
            except CniError as e:
                error = PluginError(plugin, "check", e, net.plugins[:index])
                if not result:
                    error.add_note(self._nothing_remembered(net, rt))
                raise error from e
        return Report(net.plugins, unknown="" if result else self._nothing_remembered(net, rt))

    def delete(self, net: NetworkList, rt: RuntimeConf, *, trace: Trace | None = None) -> Report:
        """Detach: DEL of each plugin in reverse with the remembered result, which is forgotten in the end.

        The first failure stops it and the result is kept, so that it can be tried again. A remembered
        result that cannot be used is forgotten at once and does not stop it.
        """
        result, unknown = self._cached_for_delete(net, rt)
        called = tuple(reversed(net.plugins))
        for index, plugin in enumerate(called):
            try:
                self._delete_one(net, plugin, rt, result, trace)
            except CniError as e:
                raise PluginError(plugin, "delete", e, called[:index]) from e
        self.cache.remove(net.name, rt)
        return Report(called, unknown=unknown)

    def gc(self, net: NetworkList, valid_attachments: Iterable[tuple[str, str] | Interface] | None, *,
           trace: Trace | None = None) -> GcReport:
        """Release whatever belongs to no valid attachment.

        valid_attachments: (container id, interface name) pairs, or records that have both. Remembered
        attachments of this network that are not among them are deleted, with the args they were added
        with; then each plugin gets GC: below 1.1.0 only those of fastcni's own. None, or an empty list, means that
        **every** remembered attachment goes; with None the plugins are not told a list either. collect.make_plan()
        keeps those whose network namespace exists.
        ManyErrors: all that went wrong; nothing stops at a failure.
        """
        if net.disable_gc:
            return GcReport(skipped="disableGC is true")
        valid = None if valid_attachments is None else [to_pair(it) for it in valid_attachments]
        try:
            remembered = self.cache.attachments()
        except OSError as e:
            # The Go library says nothing and does nothing. Nothing is done here either, but it is said.
            why = f"list the result cache: {e}"
            discover.log_warning(f"GC of network {net.name} was not run: {why}")
            return GcReport(skipped=why)
        plan = collect.make_plan(remembered, net.name, valid or (), everything=True)
        report = GcReport(plan.kept, collect.delete_stale(self, net, plan, trace),
                          collect.gc_plugins(self, net, valid, trace))
        if report.errors:
            raise ManyErrors("\n".join(str(e) for e in report.errors), report.errors)
        return report

    def status(self, net: NetworkList, *, trace: Trace | None = None) -> Report:
        """Ask each plugin whether ADD can be served; the first error is raised with its code (50, 51).

        Nothing is asked below 1.1.0.
        """
        if not collect.at_least(net.version, "1.1.0"):
            return Report(skipped=collect.below(net, "STATUS", "1.1.0"))
        for index, plugin in enumerate(net.plugins):
            try:
                self.call(Call("STATUS", NOBODY, trace, self.path), plugin,
                          inject.for_status(net.name, net.version, plugin))
            except CniError as e:
                raise PluginError(plugin, "status", e, net.plugins[:index]) from e
        return Report(net.plugins)

    def validate(self, net: NetworkList, *, trace: Trace | None = None) -> set[str]:
        """Return the capabilities that any plugin declares. ManyErrors: plugins missing or too old."""
        found, capabilities = [], set()
        for plugin in net.plugins:
            try:
                capabilities |= self.validate_plugin(plugin, net.version, trace=trace)
            except CniError as e:
                found.append(e)
        if found:
            raise ManyErrors(f"[{' '.join(str(e) for e in found)}]", found)
        return capabilities

    # Single plugins, by the name and version of their own configuration ---------------------------

    def add_plugin(self, plugin: PluginConf, rt: RuntimeConf, *, trace: Trace | None = None) -> Result | None:
        """ADD of one plugin that stands alone; the result is remembered. Its error is raised as it is."""
        result = self._add_one(plugin, plugin, rt, None, trace, [])
        self._remember(plugin, rt, result)
        return result

    def check_plugin(self, plugin: PluginConf, rt: RuntimeConf, *, trace: Trace | None = None) -> None:
        """CHECK of one plugin that stands alone, with the remembered result."""
        self._require_check(plugin.version)
        result = self._cached_for_check(plugin, rt)
        self.call(Call("CHECK", rt, trace, self.path), plugin,
                   inject.for_attachment(plugin.name, plugin.version, plugin, rt, result))

    def delete_plugin(self, plugin: PluginConf, rt: RuntimeConf, *, trace: Trace | None = None) -> None:
        """DEL of one plugin that stands alone; what is remembered is used, then forgotten."""
        self._delete_one(plugin, plugin, rt, self._cached_for_delete(plugin, rt)[0], trace)
        self.cache.remove(plugin.name, rt)

    def validate_plugin(self, plugin: PluginConf, wanted: str | None = None, *,
                        trace: Trace | None = None) -> set[str]:
        """Return the capabilities that a plugin declares. CniError: it is missing or lacks the version.

        wanted: the version to look for, the configuration's own when None.
        """
        wanted = (plugin.version if wanted is None else wanted) or "0.1.0"
        if wanted not in self.version_info(plugin.type, trace=trace):
            raise CniError(errors.INCOMPATIBLE_VERSION,
                           f'plugin {plugin.type} does not support config version "{wanted}"')
        return {name for name, on in plugin.capabilities.items() if on}

    # What is known --------------------------------------------------------------------------------

    def version_info(self, plugin: str, *, trace: Trace | None = None) -> list[str]:
        """The spec versions that a plugin type supports, as it says itself."""
        where = self.runner.find(plugin, self.plugin_dirs)
        env = Call("VERSION", RuntimeConf("", "dummy", "dummy"), trace, "dummy").env()
        stdin = json.write({"cniVersion": version.CURRENT})
        try:
            return version.read_version_reply(self.runner.run(where, env, stdin, self.timeout))
        except ValueError as e:
            raise CniError(errors.DECODING_FAILURE, str(e)) from None
        except CniError as e:
            if str(e) == "unknown CNI_COMMAND: VERSION":       # older than the command
                return ["0.1.0"]
            raise

    def cached_result(self, net: NetworkList | PluginConf, rt: RuntimeConf) -> Result | None:
        """The result of ADD in the network's version; None: nothing remembered. CniError: it is damaged."""
        return self.cache.read_result(net.name, net.version, rt)

    def cached_config(self, net: NetworkList | PluginConf,
                      rt: RuntimeConf) -> tuple[bytes, RuntimeConf] | None:
        """The bytes of the configuration that ADD used, and `rt` with the args it used; None as above."""
        return self.cache.read_config(net.name, rt)

    def attachments(self, container_id: str = "") -> list[Attachment]:
        """What the cache remembers, of one container or of all. OSError: it cannot be listed."""
        return self.cache.attachments(container_id)

    # Steps ----------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """CNI_PATH."""
        return os.pathsep.join(self.plugin_dirs)

    def call(self, call: Call, plugin: PluginConf, stdin: bytes) -> bytes:
        """Call a plugin and return its stdout. CniError: it is missing, or has failed."""
        where = self.runner.find(plugin.type, self.plugin_dirs)
        return self.runner.run(where, call.env(), stdin, self.timeout)

    def is_own(self, plugin: PluginConf) -> bool:
        """Is the plugin that would be called one of fastcni's? A runner that does not say has none of them."""
        is_own = getattr(self.runner, "is_own", None)
        try:
            return bool(is_own and is_own(self.runner.find(plugin.type, self.plugin_dirs)))
        except CniError:
            return False

    def _add_one(self, net: NetworkList | PluginConf, plugin: PluginConf, rt: RuntimeConf,
                 prev_result: Result | None, trace: Trace | None, started: list[PluginConf]) -> Result:
        where = self.runner.find(plugin.type, self.plugin_dirs)
        check_container_id(rt.container_id)
        check_network_name(net.name)
        check_ifname(rt.ifname)
        stdin = inject.for_attachment(net.name, net.version, plugin, rt, prev_result)
        started.append(plugin)
        stdout = self.runner.run(where, Call("ADD", rt, trace, self.path).env(), stdin, self.timeout)
        return invoke.read_add_output(stdout, net.version)

    def _delete_one(self, net: NetworkList | PluginConf, plugin: PluginConf, rt: RuntimeConf,
                    result: Result | None, trace: Trace | None) -> None:
        stdin = inject.for_attachment(net.name, net.version, plugin, rt, result)
        self.call(Call("DEL", rt, trace, self.path), plugin, stdin)

    def _roll_back(self, net: NetworkList, rt: RuntimeConf, trace: Trace | None,
                   started: Sequence[PluginConf], error: BaseException) -> None:
        """DEL as a later delete() would do it, but going on after a failure."""
        for plugin in reversed(started):
            try:
                self._delete_one(net, plugin, rt, None, trace)
            except CniError as e:
                error.add_note(f"while undoing: {PluginError(plugin, 'delete', e)}")
        self.cache.remove(net.name, rt)

    def _remember(self, net: NetworkList | PluginConf, rt: RuntimeConf, result: Result | None) -> None:
        try:
            self.cache.write(net.name, net.raw, rt, result)
        except (OSError, CniError) as e:
            raise CniError(errors.IO_FAILURE,
                           f"failed to set network {json.quote(net.name)} cached result: {e}") from e

    def _require_check(self, wanted: str) -> None:
        if read_version(wanted) < (0, 4, 0):
            raise CniError(errors.INCOMPATIBLE_VERSION, f"configuration version {json.quote(wanted)} does "
                                                        f"not support the CHECK command")

    def _cached_for_check(self, net: NetworkList | PluginConf, rt: RuntimeConf) -> Result | None:
        try:
            return self.cached_result(net, rt)
        except CniError as e:
            raise reworded(f"failed to get network {json.quote(net.name)} cached result", e) from e

    def _cached_for_delete(self, net: NetworkList | PluginConf, rt: RuntimeConf) -> tuple[Result | None, str]:
        """(the remembered result, what is not known and why)"""
        if read_version(net.version) < (0, 4, 0):
            return None, ""
        try:
            result = self.cached_result(net, rt)
        except CniError as e:
            self.cache.remove(net.name, rt)
            return None, f"the cached result of its ADD could not be used: {e}"
        return result, "" if result else self._nothing_remembered(net, rt)

    def _nothing_remembered(self, net: NetworkList, rt: RuntimeConf) -> str:
        return f"no result of its ADD is cached in {self.cache.results(rt)}"


def reworded(what: str, error: CniError) -> CniError:
    """The same error with what was being done in front of its text."""
    return CniError(error.code, f"{what}: {error.msg}", error.details)
