"""chain: runs the plugins of a network list in one request, where a runtime would start a program for each.

    {"type": "chain", "capabilities": {"portMappings": true}, "plugins": [
        {"type": "bridge", "isGateway": true, "ipam": {"type": "host-local", "subnet": "10.22.0.0/16"}},
        {"type": "portmap", "capabilities": {"portMappings": true}}]}

Each nested plugin gets what libcni would give it: name, cniVersion, its part of runtimeConfig, and prevResult. In ADD
prevResult is the result of the previous plugin, otherwise the result of the whole ADD. `fastcni fuse` writes this
configuration.
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
# Keys of a request that libcni adds to the configuration of each plugin
GIVEN = ("prevResult", VALID_ATTACHMENTS, "cni.dev/attachments")
# fastcni's runtime sets it: all plugins are fastcni's, and an error document names one by errors.FAILED_AT
FROM_RUNTIME = "fastcni/list"


class Nested:
    """A nested plugin: its type, its index, and its configuration, which pods share."""

    __slots__ = ("kind", "index", "conf")

    def __init__(self, kind: str, index: int, conf: Section) -> None:
        self.kind, self.index, self.conf = kind, index, conf


class Failing:
    """A context manager, `with Failing(nested, req, "add"):`. Its errors name the plugin, see NestedError."""

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
    """Return the nested plugins. Each reads its own keys when it runs, because most need prevResult for that."""
    found = read_once(req, read_plugins)
    if req.command == "ADD":            # check all versions before anything is changed
        for nested in found:
            with Failing(nested, req, "add"):
                delegate.check_version(req.version, nested.kind)
    return found


def read_plugins(conf: Section) -> list[Nested]:
    """Read the key `plugins`. Raises CniError 7."""
    found = []
    asked, first = conf.section("runtimeConfig").values, given_args(conf)
    for index, keys in enumerate(conf.sections("plugins")):
        kind = keys.text("type")
        if not kind:
            raise conf.wrong(f"plugins[{index}]", "missing 'type'")
        if kind == KIND:
            raise conf.wrong(f"plugins[{index}]", "a chain inside a chain; move its plugins into the outer one")
        values = {**keys.values, **first, "name": conf.text("name"), "cniVersion": conf.text("cniVersion")}
        taken = {name: asked[name] for name, on in keys.section("capabilities").values.items() if on and name in asked}
        if taken:                       # otherwise a runtimeConfig in the file stays, as in libcni
            values["runtimeConfig"] = taken
        found.append(Nested(kind, index, Section(values)))
        first = {}
    if not found:
        raise conf.wrong("plugins", "no plugins")
    return found


def given_args(conf: Section) -> dict[str, Any]:
    """Return {"args": ...} if a program such as Multus has written that key into the list's first plugin, the chain.
    The key is meant for the first nested plugin. Otherwise return {}."""
    return {"args": conf.section("args").values} if conf.has("args") else {}


def sub_request(req: Request, nested: Nested, given: dict[str, Any]) -> Request:
    """Return the request for a nested plugin. given: keys of only this request."""
    conf = Section({**nested.conf.values, **given}, common=nested.conf) if given else nested.conf
    found = req.delegate(nested.kind, conf)
    found.found_own = req.conf.raw(FROM_RUNTIME) is True
    return found


def given_keys(req: Request) -> dict[str, Any]:
    """Return the keys that the runtime gave the chain for this request."""
    return {key: req.conf.raw(key) for key in GIVEN if req.conf.has(key)}


def add(req: Request, conf: list[Nested], undo: Undo) -> dict[str, Any]:
    """Run ADD of each plugin in order. If one fails, the rollback also undoes the plugins before it, so that nothing is
    left for the runtime's DEL."""
    given, result = given_keys(req), {}
    for nested in conf:
        with Failing(nested, req, "add"):
            result = delegate.add(sub_request(req, nested, given), undo)
            shaped = results.to_version({"cniVersion": version.CURRENT, **result}, req.version)
            given = {"prevResult": results.printed(shaped)}
    return result


def run(req: Request, nested: Nested, doing: str = "") -> None:
    """Run one plugin's part of the request's command. doing: the command in an error, as libcni names it."""
    with Failing(nested, req, doing or req.command.lower()):
        delegate.check_version(req.version, nested.kind)
        delegate.run(sub_request(req, nested, given_keys(req)), req.command)


def delete(req: Request, conf: list[Nested]) -> None:
    """Run DEL of each plugin in reverse order. The first error ends the DEL, as in libcni: while a port mapping exists,
    its address must stay allocated."""
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
    """Run GC of each plugin, even after an error."""
    every(*((run, req, nested) for nested in conf))


def status(req: Request, conf: list[Nested]) -> None:
    for nested in conf:
        run(req, nested)


def restore(req: Request, conf: list[Nested]) -> None:
    """Restore the rules and elements of the nested plugins in the host's firewall."""
    for nested in conf:
        with Failing(nested, req, "restore"):
            delegate.restore(sub_request(req, nested, given_keys(req)))
