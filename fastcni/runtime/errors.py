"""What the runtime library raises: CNI errors all, so that code, msg and details can always be reached."""

from collections.abc import Sequence

from fastcni.runtime.records import PluginConf
from fastcni.spec import errors, json
from fastcni.spec.errors import CniError


class ConfError(CniError):
    """A network configuration that cannot be used; nothing was called."""

    def __init__(self, msg: str, code: int = errors.INVALID_CONFIG):
        super().__init__(code, msg)


class NoConfigsFound(ConfError):
    """The configuration directory has no network configuration at all, or does not exist."""

    def __init__(self, conf_dir: str):
        super().__init__(f"no net configurations found in {conf_dir}")


class NotFound(ConfError):
    """There are configurations, and none of them has the name that was asked for. broken: files without one."""

    def __init__(self, conf_dir: str, name: str, broken: Sequence[str] = ()):
        super().__init__(f'no net configuration with name "{name}" in {conf_dir}')
        if broken:
            self.details = f"broken files were skipped: {', '.join(broken)}"


class PluginError(CniError):
    """A plugin of a list failed: its own code and details, and a msg that says which one and at what.

    plugin: the configuration of the one that failed. done: those that were called before it, and succeeded. The error
    itself is `__cause__`.
    """

    def __init__(self, plugin: PluginConf, doing: str, error: CniError, done: Sequence[PluginConf] = ()):
        super().__init__(error.code, f"{describe(plugin)} failed ({doing}): {error.msg}", error.details)
        self.plugin, self.done = plugin, tuple(done)


def describe(plugin: PluginConf) -> str:
    """A plugin of a list in words: plugin type="bridge" (index 0 in /etc/cni/net.d/10-net.conflist)."""
    name = f" name={json.quote(plugin.name)}" if plugin.name else ""
    place = "" if plugin.index is None else f" (index {plugin.index}{f' in {plugin.file}' if plugin.file else ''})"
    return f"plugin type={json.quote(plugin.type)}{name}{place}"


class ManyErrors(CniError):
    """Several things failed and none stopped the others: `errors`, in order. code is the first one's."""

    def __init__(self, msg: str, found: Sequence[CniError]):
        super().__init__(found[0].code, msg)
        self.errors = tuple(found)
