"""Define CNI, a runtime: it loads networks and attaches containers to them, as the Go library does."""

import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fastcni.kit.call import invoke
from fastcni.kit.networks.keys import CNI_DIR
from fastcni.runtime import collect, discover, inject, served
from fastcni.runtime.cache import Cache
from fastcni.runtime.call import NO_CONTAINER, Call, Interface, to_pair
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
# The plugin directories of most runtimes, of Debian, and of Fedora
DEFAULT_PLUGIN_DIRS = ("/opt/cni/bin", "/usr/lib/cni", "/usr/libexec/cni")

Result = dict[str, Any]


class CNI:
    """A runtime.

    plugin_dirs: the directories in which plugins are searched, in order. conf_dir: the directory that load() reads.
    cache_dir: the directory of the result cache, /var/lib/cni if empty. runner: the Runner that calls the plugins;
    None: Exec(). timeout: the limit of one plugin call in seconds, None for no limit.

    add(), check() and delete() send the whole list to the fastcni server in one request if all its plugins are
    fastcni's, the server answers and no timeout is set. Separate plugin calls would give the same results and errors.

    The object keeps no state between calls, and any number of threads may use it. The caller must make the calls for
    one container one after another. During gc() of a network, the caller must make no other call for that network.

    Methods raise CniError (code, msg, details). If a plugin of a list fails, they raise PluginError, a CniError with
    the plugin's code and details. trace: a trace context, which the plugins get in their environment.
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
        """Load the network called `name` from conf_dir. Raises ConfError, NoConfigsFound or NotFound, see
        load_network()."""
        return discover.load_network(self.conf_dir, name, warn)

    # Networks -----------------------------------------------------------------------------------

    def add(self, net: NetworkList, rt: RuntimeConf, *, rollback: bool = False,
            trace: Trace | None = None) -> Result | None:
        """Run ADD of each plugin in order. Return the last plugin's result, in that result's own version; None: no
        plugins.

        add() writes the result to the cache. After an error some plugins may have succeeded, so the caller must call
        delete(). With `rollback`, add() runs DEL of the started plugins in reverse order and then raises the error;
        errors of these DELs become notes of that error.
        """
        started: list[PluginConf] = []
        result = None
        try:
            stdout = self._ask_server("ADD", "add", net, net.plugins, rt, None, trace, started)
            if stdout is not None:
                result = read_result(net, stdout)
            for plugin in net.plugins if stdout is None else ():
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
        """Run CHECK of each plugin in order, with the cached result as prevResult. Raises the first error."""
        self._require_check(net.version)
        if net.disable_check:
            return Report(skipped="disableCheck is true")
        result = self._cached_for_check(net, rt)
        try:
            if self._ask_server("CHECK", "check", net, net.plugins, rt, result, trace) is None:
                each(net.plugins, "check", lambda plugin: self._call("CHECK", net, plugin, rt, result, trace))
        except PluginError as e:
            if not result:
                e.add_note(self._nothing_cached(net, rt))
            raise
        return Report(net.plugins, unknown="" if result else self._nothing_cached(net, rt))

    def delete(self, net: NetworkList, rt: RuntimeConf, *, trace: Trace | None = None) -> Report:
        """Run DEL of each plugin in reverse order, with the cached result as prevResult. Then remove the cached result.

        The first error stops delete(), and the cache file stays, so that the caller can try again. If the cached result
        is damaged, the plugins get no prevResult. After an error the damaged file stays, too: tear_down_pod() needs its
        name to find the network.
        """
        result, unknown = self._cached_for_delete(net, rt)
        called = tuple(reversed(net.plugins))
        if self._ask_server("DEL", "delete", net, called, rt, result, trace) is None:
            each(called, "delete", lambda plugin: self._call("DEL", net, plugin, rt, result, trace))
        self.cache.remove(net.name, rt)
        return Report(called, unknown=unknown)

    def gc(self, net: NetworkList, valid_attachments: Iterable[tuple[str, str] | Interface] | None, *,
           trace: Trace | None = None) -> GcReport:
        """Release the resources of attachments that are not valid.

        valid_attachments: (container id, interface name) pairs, or records that have both. gc() first runs DEL of each
        cached attachment of this network that is not in the list, with the args of its ADD. gc() then runs GC of each
        plugin; in a network below CNI 1.1.0, only of fastcni's own plugins. With None or an empty list, gc() deletes
        **every** cached attachment; with None the plugins get no list. A caller that wants to keep all attachments
        whose network namespace exists uses collect.make_plan() and collect.run(). The plugins' list also has the pods
        that multus has attached to this network, if their namespaces exist and their results are in the default
        `cniDir`. Only a GC of multus's own network deletes the attachments of these pods. gc() continues after errors.
        Raises ManyErrors with all errors.
        """
        if net.disable_gc:
            return GcReport(skipped="disableGC is true")
        valid = None if valid_attachments is None else [to_pair(it) for it in valid_attachments]
        try:
            remembered, others = self.cache.attachments(), collect.find_others(self, net, (CNI_DIR,))
        except (OSError, CniError) as e:
            # The Go library skips GC without a message; fastcni skips GC and warns.
            why = f"list the result cache: {e}"
            discover.log_warning(f"GC of network {net.name} was not run: {why}")
            return GcReport(skipped=why)
        plan = collect.make_plan(remembered, net.name, valid or (), everything=True)
        if valid is not None:
            valid += [to_pair(it.attachment) for it in others if to_pair(it.attachment) not in valid]
        report = GcReport((*plan.kept, *others), collect.delete_stale(self, net, plan, trace),
                          collect.gc_plugins(self, net, valid, trace))
        if report.errors:
            raise ManyErrors("\n".join(str(e) for e in report.errors), report.errors)
        return report

    def status(self, net: NetworkList, *, trace: Trace | None = None) -> Report:
        """Run STATUS of each plugin, which answers whether it can serve ADD. Raises the first error; code 50 or 51
        means that the plugin cannot.

        In a network below CNI 1.1.0, status() calls no plugin.
        """
        if not collect.at_least(net.version, "1.1.0"):
            return Report(skipped=collect.below(net, "STATUS", "1.1.0"))
        call = Call("STATUS", NO_CONTAINER, trace, self.path)
        each(net.plugins, "status",
             lambda plugin: self.call(call, plugin, inject.for_status(net.name, net.version, plugin)))
        return Report(net.plugins)

    def validate(self, net: NetworkList, *, trace: Trace | None = None) -> set[str]:
        """Return the capabilities that the plugins' configurations declare. Raises ManyErrors if plugins are missing or
        do not support the network's version."""
        found, capabilities = [], set()
        for plugin in net.plugins:
            try:
                capabilities |= self.validate_plugin(plugin, net.version, trace=trace)
            except CniError as e:
                found.append(e)
        if found:
            raise ManyErrors(f"[{' '.join(str(e) for e in found)}]", found)
        return capabilities

    # Single plugins; their own configuration has the network's name and version -------------------

    def add_plugin(self, plugin: PluginConf, rt: RuntimeConf, *, trace: Trace | None = None) -> Result | None:
        """Run ADD of a single plugin, and write the result to the cache. Raises the plugin's own CniError, no
        PluginError."""
        result = self._add_one(plugin, plugin, rt, None, trace, [])
        self._remember(plugin, rt, result)
        return result

    def check_plugin(self, plugin: PluginConf, rt: RuntimeConf, *, trace: Trace | None = None) -> None:
        """Run CHECK of a single plugin, with the cached result as prevResult. Raises the plugin's own CniError."""
        self._require_check(plugin.version)
        self._call("CHECK", plugin, plugin, rt, self._cached_for_check(plugin, rt), trace)

    def delete_plugin(self, plugin: PluginConf, rt: RuntimeConf, *, trace: Trace | None = None) -> None:
        """Run DEL of a single plugin, with the cached result as prevResult, then remove the cached result. Raises the
        plugin's own CniError."""
        self._call("DEL", plugin, plugin, rt, self._cached_for_delete(plugin, rt)[0], trace)
        self.cache.remove(plugin.name, rt)

    def validate_plugin(self, plugin: PluginConf, wanted: str | None = None, *,
                        trace: Trace | None = None) -> set[str]:
        """Return the capabilities that a plugin's configuration declares. Raises CniError if the plugin is missing or
        does not support the version.

        wanted: the version that the plugin must support; None: the configuration's version.
        """
        wanted = (plugin.version if wanted is None else wanted) or "0.1.0"
        if wanted not in self.version_info(plugin.type, trace=trace):
            raise CniError(errors.INCOMPATIBLE_VERSION,
                           f'plugin {plugin.type} does not support config version "{wanted}"')
        return {name for name, on in plugin.capabilities.items() if on}

    # Information -------------------------------------------------------------------------------------

    def version_info(self, plugin: str, *, trace: Trace | None = None) -> list[str]:
        """Return the CNI versions that the plugin `plugin`, a type, names in its answer to VERSION: ["0.4.0",
        "1.0.0"]."""
        where = self.runner.find(plugin, self.plugin_dirs)
        env = Call("VERSION", RuntimeConf("", "dummy", "dummy"), trace, "dummy").env()
        stdin = json.write({"cniVersion": version.CURRENT})
        try:
            return version.read_version_reply(self.runner.run(where, env, stdin, self.timeout))
        except ValueError as e:
            raise CniError(errors.DECODING_FAILURE, str(e)) from None
        except CniError as e:
            if str(e) == "unknown CNI_COMMAND: VERSION":       # the plugin is older than the command VERSION
                return ["0.1.0"]
            raise

    def cached_result(self, net: NetworkList | PluginConf, rt: RuntimeConf) -> Result | None:
        """Return the cached result of ADD in the network's version, None without a cached result. Raises CniError if
        the cached result is damaged."""
        return self.cache.read_result(net.name, net.version, rt)

    def cached_config(self, net: NetworkList | PluginConf,
                      rt: RuntimeConf) -> tuple[bytes, RuntimeConf] | None:
        """Return the bytes of the configuration that ADD used, and `rt` with the args of ADD; None without a cached
        result."""
        return self.cache.read_config(net.name, rt)

    def attachments(self, container_id: str = "") -> list[Attachment]:
        """Return the cached attachments of one container, or of all containers for "". Raises OSError if the cache
        cannot be listed."""
        return self.cache.attachments(container_id)

    # Steps ----------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """Return the value of CNI_PATH, the plugin directories joined with ":"."""
        return os.pathsep.join(self.plugin_dirs)

    def call(self, call: Call, plugin: PluginConf, stdin: bytes) -> bytes:
        """Call a plugin and return its stdout. Raises CniError if the plugin is missing or fails."""
        where = self.runner.find(plugin.type, self.plugin_dirs)
        return self.runner.run(where, call.env(), stdin, self.timeout)

    def is_own(self, plugin: PluginConf) -> bool:
        """Return whether the runner finds one of fastcni's own plugins. False also if the runner has no is_own()."""
        is_own = getattr(self.runner, "is_own", None)
        try:
            return bool(is_own and is_own(self.runner.find(plugin.type, self.plugin_dirs)))
        except CniError:
            return False

    def _ask_server(self, command: str, doing: str, net: NetworkList, called: Sequence[PluginConf], rt: RuntimeConf,
                    result: Result | None, trace: Trace | None,
                    started: list[PluginConf] | None = None) -> bytes | None:
        """Send the whole list to the server in one request, and return the stdout of the reply. None: no server has
        answered, or the request can be repeated; the caller must call the plugins one by one.

        called: the plugins in the order of the calls. started: a list, to which the plugins whose DEL a rollback must
        run are appended. Raises PluginError for the failed plugin, as separate calls would.
        """
        ask = getattr(self.runner, "ask_server", None)
        if not ask or self.timeout is not None or not self._is_for_server(net, rt, command):
            return None
        stdin = inject.for_attachment(net.name, net.version, served.as_chain(net.plugins), rt, result)
        if started is not None:
            started += net.plugins
        try:
            answer: bytes | None = ask(Call(command, rt, trace, self.path).env(), stdin)
        except served.Failed as e:
            if started is not None and e.rolled_back:
                started.clear()
            failed = called[0] if e.index is None else net.plugins[e.index]
            done = () if command == "ADD" else called[:list(called).index(failed)]
            raise PluginError(failed, doing, e.error, done) from e.error
        if answer is None and started is not None:
            started.clear()
        return answer

    def _is_for_server(self, net: NetworkList, rt: RuntimeConf, command: str) -> bool:
        """Return whether the server can run the list: each plugin is fastcni's and, for ADD, the names of the
        container, network and interface are valid."""
        try:
            if command == "ADD":
                check_container_id(rt.container_id)
                check_network_name(net.name)
                check_ifname(rt.ifname)
        except CniError:
            return False
        return bool(net.plugins) and all(served.takes(plugin) and self.is_own(plugin) for plugin in net.plugins)

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

    def _call(self, command: str, net: NetworkList | PluginConf, plugin: PluginConf, rt: RuntimeConf,
              result: Result | None, trace: Trace | None) -> None:
        """Run CHECK or DEL of a plugin. net: the network, or the plugin's own configuration."""
        stdin = inject.for_attachment(net.name, net.version, plugin, rt, result)
        self.call(Call(command, rt, trace, self.path), plugin, stdin)

    def _roll_back(self, net: NetworkList, rt: RuntimeConf, trace: Trace | None,
                   started: Sequence[PluginConf], error: BaseException) -> None:
        """Run DEL of the started plugins in reverse order. An error of a DEL becomes a note of `error`."""
        for plugin in reversed(started):
            try:
                self._call("DEL", net, plugin, rt, None, trace)
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
        """Return (cached result or None, why the plugins get no result or ""). Below CNI 0.4.0, DEL has no result:
        (None, "")."""
        if read_version(net.version) < (0, 4, 0):
            return None, ""
        try:
            result = self.cached_result(net, rt)
        except CniError as e:
            return None, f"the cached result of its ADD could not be used: {e}"
        return result, "" if result else self._nothing_cached(net, rt)

    def _nothing_cached(self, net: NetworkList | PluginConf, rt: RuntimeConf) -> str:
        return f"no result of its ADD is cached in {self.cache.results(rt)}"


def each(plugins: Sequence[PluginConf], doing: str, call: Callable[[PluginConf], object]) -> None:
    """Call call(plugin) for each plugin in order. Raises PluginError for the first plugin that fails."""
    for index, plugin in enumerate(plugins):
        try:
            call(plugin)
        except CniError as e:
            raise PluginError(plugin, doing, e, plugins[:index]) from e


def read_result(net: NetworkList, stdout: bytes) -> Result:
    """Decode `stdout`, the result of the whole list. Raises PluginError for the last plugin, because that plugin has
    printed the result."""
    try:
        return invoke.read_add_output(stdout, net.version)
    except CniError as e:
        raise PluginError(net.plugins[-1], "add", e) from e


def reworded(what: str, error: CniError) -> CniError:
    """Return a copy of `error` whose text begins with `what`, the attempted action."""
    return CniError(error.code, f"{what}: {error.msg}", error.details)
