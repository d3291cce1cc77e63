"""The command `fastcni schema`: print the JSON Schema of a plugin's configuration."""

from __future__ import annotations

import click

from fastcni import plugins, third_party
from fastcni.cli.options import completion
from fastcni.cli.text.output import put_document
from fastcni.kit.call.similar import meant
from fastcni.runtime.schema import schema as schema_of
from fastcni.spec import errors
from fastcni.spec.errors import CniError


@click.command()
@click.argument("kind", metavar="TYPE", shell_complete=completion.plugin_types)
def schema(kind: str) -> None:
    """Print the JSON Schema of the configuration of the plugin TYPE.

    The output is one JSON Schema 2020-12 document, for an editor or a check before a configuration is rolled out. The
    schema rejects values of a type that ADD rejects, and allows unknown keys. `fastcni netconf --strict` finds unknown
    keys, and values that exclude each other.
    """
    third_party.register()
    if kind not in plugins.TABLE:
        raise CniError(errors.INVALID_ENVIRONMENT, f'unknown plugin type "{kind}"', meant(kind, plugins.TABLE))
    put_document(schema_of(kind))
