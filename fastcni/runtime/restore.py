"""Put back what the remembered attachments have in the host's firewall, after somebody has flushed it.

No pod, no link and no address is touched. What is there already stays.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fastcni import plugins
from fastcni.handle import restore as restore_one
from fastcni.kernel import netns
from fastcni.kit.firewall.iptables_together import Together, carry_out
from fastcni.kit.host import Host
from fastcni.kit.request import Request
from fastcni.runtime import inject
from fastcni.runtime.cache import Cache
from fastcni.runtime.call import Call
from fastcni.runtime.exec import NOWHERE
from fastcni.runtime.parse import list_of_plugin, parse_list, parse_plugin
from fastcni.runtime.records import Attachment, NetworkList, PluginConf, RuntimeConf
from fastcni.spec.errors import CniError


@dataclass(frozen=True, slots=True)
class Failure:
    """plugin: the type, "" where it did not come to one."""

    attachment: Attachment
    plugin: str
    error: CniError

    def __str__(self) -> str:
        it = self.attachment
        what = f"{self.plugin} of {it.ifname}" if self.plugin else it.ifname
        return f"{what} of container {it.container_id} in network {it.network}: {self.error}"


@dataclass(frozen=True, slots=True)
class Restored:
    """attachments: those that have something there. plugins: calls of their plugins, also those that failed. gone:
    attachments that have no network namespace any more, and were left out."""

    attachments: int
    plugins: int
    gone: int
    failed: tuple[Failure, ...]


def restore(cache: Cache, environ: Mapping[str, str] | None = None) -> Restored:
    """Work through the cache, in the calling thread's network namespace; a failure does not stop it.

    environ: for programs (iptables), this process's own when None. OSError: the cache cannot be listed.
    """
    environ = os.environ if environ is None else environ
    host = Host()
    try:
        host.together = Together()
        done = walk(cache, environ, host)
        try:
            carry_out(Request(env=environ, host=host))
        except CniError:                # of one or another: by themselves it shows of which
            done = walk(cache, environ, host)
    finally:
        host.close(lambda close: close())
    return done


def walk(cache: Cache, environ: Mapping[str, str], host: Host) -> Restored:
    """Each plugin of each attachment in turn."""
    attachments = calls = gone = 0
    failed: list[Failure] = []
    for it in cache.attachments():
        if not has_netns(it):
            gone += 1
            continue
        try:
            todo = list(inputs(cache, it))
        except CniError as e:
            failed.append(Failure(it, "", e))
            continue
        attachments, calls = attachments + bool(todo), calls + len(todo)
        for kind, stdin in todo:
            try:
                restore_one(kind, {**environ, **variables(it)}, stdin, host=host)
            except CniError as e:
                failed.append(Failure(it, kind, e))
    return Restored(attachments, calls, gone, tuple(failed))


def has_netns(it: Attachment) -> bool:
    try:
        os.close(netns.open_path(it.netns))
    except PermissionError:             # somebody else's, but there
        return True
    except (OSError, ValueError):
        return False
    return True


def inputs(cache: Cache, it: Attachment) -> Iterable[tuple[str, bytes]]:
    """(type, stdin of CHECK) for each plugin of the attachment that has something there. CniError: see Cache."""
    net = network_of(it)
    found = [plugin for plugin in net.plugins if restores(plugin)]
    if found:
        rt = runtime_conf(it)
        result = cache.read_result(it.network, net.version, rt)
        for plugin in found:
            yield plugin.type, inject.for_attachment(it.network, net.version, plugin, rt, result)


def network_of(it: Attachment) -> NetworkList:
    """The network as it was at ADD; of add_plugin() it is a plugin that stands alone."""
    net = parse_list(it.config)
    return net if net.plugins else list_of_plugin(parse_plugin(it.config))


def restores(plugin: PluginConf) -> bool:
    return plugin.type in plugins.TABLE and hasattr(plugins.load(plugin.type), "restore")


def runtime_conf(it: Attachment) -> RuntimeConf:
    return RuntimeConf(it.container_id, it.netns, it.ifname, it.args, it.capability_args)


def variables(it: Attachment) -> dict[str, Any]:
    return Call("CHECK", runtime_conf(it), None, NOWHERE).env()
