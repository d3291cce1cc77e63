"""The command `fastcni policy convert`: convert policies of other projects to documents that the agent enforces."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

import click

from fastcni.cli.exit_status import Question
from fastcni.cli.text.output import printable
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from collections.abc import Iterator

NOT_CONVERTED = 1               # the exit status if a part of the documents is not converted


@click.command(cls=Question)
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
def convert(files: tuple[str, ...]) -> None:
    """Convert policies of Calico, AdminNetworkPolicies and BaselineAdminNetworkPolicies.

    \b
    fastcni policy convert calico.yaml > /etc/fastcni/policies/calico.yaml
    kubectl get adminnetworkpolicies -o yaml | fastcni policy convert -

    The command prints ClusterNetworkPolicies and NetworkPolicies in YAML. Give all policies of a cluster in one call.
    The command reports each part that it cannot convert on stderr, with document and key: check that the converted
    policies do not allow more than the originals. Lines that begin with "note:" name differences in meaning.

    \b
    Exit status:
      0   all is converted
      1   a part is not converted, see stderr
      2   an argument is wrong, or a file cannot be read
    """
    from fastcni.agent.policy.convert import convert as convert_all
    from fastcni.agent.policy.sources.parse import ParseError, parse

    unparsed: list[str] = []

    def documents() -> Iterator[tuple[str, Any]]:
        for name in files:
            for where, document in parse(name, read(name)):
                place = f"{name}: {where}" if where else name
                if isinstance(document, ParseError):
                    unparsed.append(f"{place}: {document}")
                else:
                    yield place, document

    found = convert_all(documents())
    if found.documents:
        click.echo(yaml_text(found.documents), nl=False)
    for text in found.notes:
        click.echo(f"note: {printable(text)}", err=True)
    for text in (*unparsed, *found.errors):
        click.echo(f"not converted: {printable(text)}", err=True)
    sys.exit(NOT_CONVERTED if unparsed or found.errors else 0)


def read(name: str) -> bytes:
    """Return the bytes of the file `name`, or of stdin for "-". Raises CniError."""
    try:
        with click.open_file(name, "rb") as file:
            data: bytes = file.read()
            return data
    except OSError as e:
        raise CniError(errors.IO_FAILURE, f"{name} cannot be read: {e.strerror or e}") from None


def yaml_text(documents: list[dict[str, Any]]) -> str:
    """Return the documents as YAML text. Raises CniError without PyYAML."""
    try:
        import yaml
    except ImportError:
        raise CniError(errors.INVALID_ENVIRONMENT, "writing YAML needs PyYAML",
                       "install fastcni[cluster], or Debian's python3-yaml") from None
    separate = json.loads(json.dumps(documents))        # else a repeated object becomes a YAML alias
    text: str = yaml.safe_dump_all(separate, sort_keys=False, default_flow_style=False, width=120, explicit_start=True)
    return text
