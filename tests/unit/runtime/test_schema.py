"""`fastcni schema`: one JSON Schema for each plugin. It has the keys that the plugin's read() reads, with their
types."""

import ast
import copy
import itertools
import json
from pathlib import Path

import jsonschema
import pytest
from click.testing import CliRunner

import fastcni
from fastcni import plugins
from fastcni.cli.commands import cli
from fastcni.kit.call.request import Request
from fastcni.runtime.mode import InProcessMode
from fastcni.runtime.schema import EXAMPLES, merged, schema
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

ACCESSORS = {"text", "flag", "items", "section", "integer", "texts", "sections", "ip", "cidr"}      # of config.Section
OF_GC = {"cni.dev/valid-attachments", "containerID", "ifname"}
WRONG = {"string": 7, "boolean": "true", "integer": "7", "array": {"0": 1}, "object": [7]}
EXAMPLE_NET = Path(__file__).parents[3] / "examples" / "net.d"


def read(kind, values):
    """Pass the configuration to the plugin's read(), as ADD does. Return nothing, or raise the plugin's error."""
    conf = {"cniVersion": "1.1.0", "name": "net", "type": kind, **values}
    req = Request(InProcessMode(), plugin=kind, command="ADD", container_id="c", netns="/nonexistent", ifname="eth0",
                  conf=Section(conf), stdin=json.dumps(conf).encode(), name="net", version="1.1.0")
    try:
        plugins.load(kind).read(req)
    finally:
        req.close()


def examples(kind):
    first, *more = EXAMPLES.get(kind, [{}])
    return [first, *(merged(first, other) for other in more)]


def typed_keys(found, path=()):
    """Yield (path, JSON type) for each key whose type a schema has. A number in a path is an index of a list."""
    for key, value in found.get("properties", {}).items():
        if "type" in value:
            yield (*path, key), value["type"][0] if isinstance(value["type"], list) else value["type"]
        yield from typed_keys(value, (*path, key))
    if isinstance(found.get("items"), dict):
        yield from typed_keys(found["items"], (*path, 0))


def placed(values, path, value):
    """Return a copy of the configuration with this value at this path."""
    found = at = copy.deepcopy(values)
    for step, following in itertools.pairwise(path):
        if isinstance(step, int):
            while isinstance(at, list) and len(at) <= step:
                at.append([] if isinstance(following, int) else {})
        elif isinstance(at, dict):
            at.setdefault(step, [] if isinstance(following, int) else {})
        at = at[step]
    at[path[-1]] = value
    return found


@pytest.mark.parametrize("kind", plugins.BUILT_IN)
def test_add_refuses_each_type_that_the_schema_refuses(kind):
    """The test covers all keys, also in lists and objects. It omits the keys whose values the runtime adds to a
    configuration: libcni checks those."""
    found = schema(kind)
    taken = []
    for path, expected in typed_keys(found):
        if path[0] in ("cniVersion", "name", "capabilities", "prevResult"):
            continue
        refused = False
        for example in examples(kind):
            document = placed(example, path, WRONG[expected])
            assert not jsonschema.Draft202012Validator(found).is_valid({"type": kind, **document}), path
            try:
                read(kind, document)
            except CniError as e:
                refused = refused or e.code in (6, 7)
        if not refused:
            taken.append(path)
    assert taken == []


@pytest.mark.parametrize("kind", plugins.BUILT_IN)
def test_the_schema_is_one_and_takes_configurations_that_add_takes(kind):
    found = schema(kind)
    jsonschema.Draft202012Validator.check_schema(found)
    assert found["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    for example in examples(kind):
        if "clusterNetwork" in example:             # the directory must exist: the default is the node's own
            example = {**example, "clusterNetwork": str(EXAMPLE_NET)}
        document = {"type": kind, "unknown": 7, "args": {"x": {}}, "runtimeConfig": {"other": 1}, **example}
        jsonschema.validate(document, found)
        if kind not in ("bandwidth", "chain"):          # their read() also checks the values
            read(kind, example)


def test_the_schemas_have_each_key_that_the_code_asks_for():
    """A new key of a plugin is in its schema without further work if the configurations in EXAMPLES lead read() to the
    key."""
    known = {path[-1] for kind in plugins.BUILT_IN for path, _ in typed_keys(schema(kind))}
    asked = set()
    for part in ("plugins", "kit"):
        for path in (Path(fastcni.__file__).parent / part).rglob("*.py"):
            # These files read other files, annotations or podman's documents, not a plugin's configuration
            if any(path.match(own) for own in ("kit/networks/s*.py", "kit/podman/*.py", "plugins/netavark.py")):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ACCESSORS:
                    asked |= {arg.value for arg in node.args[:1]
                              if isinstance(arg, ast.Constant) and isinstance(arg.value, str)}
    assert asked - known - OF_GC == set()


@pytest.mark.parametrize("path", sorted(EXAMPLE_NET.rglob("*.conflist")), ids=lambda path: path.name)
def test_the_schemas_take_the_examples(path):
    for plugin in json.loads(path.read_text())["plugins"]:
        if plugin["type"] in plugins.BUILT_IN:
            jsonschema.validate(plugin, schema(plugin["type"]))


def test_the_command_prints_one_document_also_in_a_pipe():
    done = CliRunner().invoke(cli, ["schema", "bridge"])
    assert done.exit_code == 0 and json.loads(done.stdout) == schema("bridge")


def test_an_unknown_type_is_an_error_with_a_similar_name():
    done = CliRunner().invoke(cli, ["schema", "brigde"])
    assert isinstance(done.exception, CniError) and done.exception.details == 'did you mean "bridge"?'
