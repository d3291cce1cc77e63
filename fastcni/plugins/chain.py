"""chain: runs all plugins of a network list in one request; otherwise a runtime starts a program for each plugin.

    {"type": "chain", "capabilities": {"portMappings": true}, "plugins": [
        {"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.22.0.0/16"}},
        {"type": "portmap", "capabilities": {"portMappings": true}}]}

Each nested plugin gets the keys that libcni would give it: name, cniVersion, its part of runtimeConfig, and prevResult.
In ADD, prevResult is the previous plugin's result; in other commands, the result of the whole ADD. `fastcni fuse`
writes such a configuration.
"""

from __future__ import annotations

from fastcni.kit.call import delegate
from fastcni.kit.call.conf import read_once
from fastcni.kit.call.undo import every
from fastcni.spec import result as results
from fastcni.spec import version
from fastcni.spec.config import VALID_ATTACHMENTS, Section
from fastcni.spec.errors import NestedError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from fastcni.kit.call.request import Request
    from fastcni.kit.call.undo import Undo

KIND = "chain"
# Keys that libcni adds to each plugin's configuration for one request
GIVEN = ("prevResult", VALID_ATTACHMENTS, "cni.dev/attachments")
# A key that fastcni's runtime sets if all plugins are fastcni's. An error then has the failed plugin's index in the key
# errors.FAILED_AT.
FROM_RUNTIME = "fastcni/list"


class Nested:
    """A nested plugin: its CNI type, its index in the chain, and its configuration, which all pods of the network
    share."""

    __slots__ = ("kind", "index", "conf")

    def __init__(self, kind: str, index: int, conf: Section) -> None:
        self.kind, self.index, self.conf = kind, index, conf


class Failing:
    """A context manager, `with Failing(nested, req, "add"):`, which raises an exception of its body as a NestedError
    that names the plugin."""

    __slots__ = ("nested", "req", "doing")

    def __init__(self, nested: Nested, req: Request, doing: str) -> None:
        self.nested, self.req, self.doing = nested, req, doing

    def __enter__(self) -> None:
        return

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if isinstance(error, Exception | SystemExit):
            raise NestedError(self.nested.kind, self.nested.index, self.doing,
                              self.req.conf.raw(FROM_RUNTIME) is True) from error


def read(req: Request) -> list[Nested]:
    """Return the nested plugins. A nested plugin reads its keys only when it runs, because most plugins need prevResult
    to read them."""
    found = read_once(req, read_plugins)
    if req.command == "ADD":            # check all versions before the first plugin changes anything
        for nested in found:
            with Failing(nested, req, "add"):
                delegate.check_version(req.version, nested.kind)
    return found


def read_plugins(conf: Section) -> list[Nested]:
    """Return the nested plugins of the key `plugins`. Raises CniError 7."""
    found = []
    asked = conf.section("runtimeConfig").values
    # A program such as Multus writes `args` into a list's first plugin, here the chain.
    first = {"args": conf.section("args").values} if conf.has("args") else {}
    for index, keys in enumerate(conf.sections("plugins")):
        kind = keys.text("type")
        if not kind:
            raise conf.wrong(f"plugins[{index}]", "missing 'type'")
        if kind == KIND:
            raise conf.wrong(f"plugins[{index}]", "a chain inside a chain; move its plugins into the outer chain")
        values = {**keys.values, **first, "name": conf.text("name"), "cniVersion": conf.text("cniVersion")}
        taken = {name: asked[name] for name, on in keys.section("capabilities").values.items() if on and name in asked}
        if taken:                       # if no capability applies, the file's own runtimeConfig stays, as in libcni
            values["runtimeConfig"] = taken
        found.append(Nested(kind, index, Section(values)))
        first = {}
    if not found:
        raise conf.wrong("plugins", "no plugins")
    return found


def sub_request(req: Request, nested: Nested, given: dict[str, Any]) -> Request:
    """Return the request for a nested plugin. given: configuration keys that apply only to this request."""
    conf = Section({**nested.conf.values, **given}, common=nested.conf) if given else nested.conf
    found = req.delegate(nested.kind, conf)
    found.found_own = req.conf.raw(FROM_RUNTIME) is True
    return found


def given_keys(req: Request) -> dict[str, Any]:
    """Return the keys of GIVEN that the runtime has added to the chain's configuration for this request."""
    return {key: req.conf.raw(key) for key in GIVEN if req.conf.has(key)}


def add(req: Request, conf: list[Nested], undo: Undo) -> dict[str, Any]:
    """Run ADD of each plugin in order. If a plugin fails, the rollback also undoes the previous plugins, so that the
    runtime's DEL finds nothing to delete."""
    given, result = given_keys(req), {}
    for nested in conf:
        with Failing(nested, req, "add"):
            result = delegate.add(sub_request(req, nested, given), undo)
            shaped = results.to_version({"cniVersion": version.CURRENT, **result}, req.version)
            given = {"prevResult": results.printed(shaped)}
    return result


def run(req: Request, nested: Nested, doing: str = "") -> None:
    """Run the request's command for one nested plugin. doing: the name of the command in an error, as libcni writes
    it."""
    with Failing(nested, req, doing or req.command.lower()):
        delegate.check_version(req.version, nested.kind)
        delegate.run(sub_request(req, nested, given_keys(req)), req.command)


def delete(req: Request, conf: list[Nested]) -> None:
    """Run DEL of each plugin in reverse order. As in libcni, the first error ends the DEL: while a port mapping exists,
    the pod's address must stay allocated."""
    req.links = []
    try:
        for nested in reversed(conf):
            run(req, nested, "delete")
    finally:
        if left := req.take_links():
            req.mode.delete_links(*left)


def check(req: Request, conf: list[Nested]) -> None:
    for nested in conf:
        run(req, nested)


def gc(req: Request, conf: list[Nested]) -> None:
    """Run GC of each plugin. Continue after errors."""
    every(*((run, req, nested) for nested in conf))


status = check                  # run() runs the request's command


def restore(req: Request, conf: list[Nested]) -> None:
    """Restore the firewall rules and set elements of the nested plugins on the host."""
    for nested in conf:
        with Failing(nested, req, "restore"):
            delegate.restore(sub_request(req, nested, given_keys(req)))
