"""Define the errors of the runtime library. Each is a subclass of CniError, which has code, msg and details."""

from collections.abc import Sequence

from fastcni.kit.call.similar import meant
from fastcni.runtime.records import PluginConf
from fastcni.spec import errors, json
from fastcni.spec.errors import CniError


class ConfError(CniError):
    """The error of an invalid network configuration. No plugin was called."""

    def __init__(self, msg: str, code: int = errors.INVALID_CONFIG):
        super().__init__(code, msg)


class NoConfigsFound(ConfError):
    """The error of a configuration directory that has no configuration files, or does not exist."""

    def __init__(self, conf_dir: str):
        super().__init__(f"no net configurations found in {conf_dir}")


class NotFound(ConfError):
    """The error of a name that no network configuration in the directory has. broken: files that could not be read.
    known: names of the networks that exist."""

    def __init__(self, conf_dir: str, name: str, broken: Sequence[str] = (), known: Sequence[str] = ()):
        super().__init__(f'no net configuration with name "{name}" in {conf_dir}')
        skipped = f"broken files were skipped: {', '.join(broken)}" if broken else ""
        self.details = "; ".join(filter(None, [meant(name, known), skipped]))


class PluginError(CniError):
    """The error of a plugin of a list. The error has the plugin's code and details; its msg names the plugin and the
    command.

    plugin: the configuration of the failed plugin. done: the plugins that had succeeded before. The plugin's error is
    `__cause__`.
    """

    def __init__(self, plugin: PluginConf, doing: str, error: CniError, done: Sequence[PluginConf] = ()):
        super().__init__(error.code, f"{describe(plugin)} failed ({doing}): {error.msg}", error.details)
        self.plugin, self.done = plugin, tuple(done)


def describe(plugin: PluginConf) -> str:
    """Return a plugin of a list as text: plugin type="bridge" (index 0 in /etc/cni/net.d/10-net.conflist)."""
    name = f" name={json.quote(plugin.name)}" if plugin.name else ""
    place = "" if plugin.index is None else f" (index {plugin.index}{f' in {plugin.file}' if plugin.file else ''})"
    return f"plugin type={json.quote(plugin.type)}{name}{place}"


class ManyErrors(CniError):
    """The errors of several steps. Each step ran, even after an error. errors: the steps' errors in order. code: the
    first error's code."""

    def __init__(self, msg: str, found: Sequence[CniError]):
        super().__init__(found[0].code, msg)
        self.errors = tuple(found)
