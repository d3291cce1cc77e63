"""The command `fastcni netconf`: show what each plugin of a network would get, and validate the network's
configuration."""

from dataclasses import asdict

import click

from fastcni.cli import plan
from fastcni.cli.options.settings import Settings, network_command
from fastcni.cli.text import show
from fastcni.cli.text.output import cni_as_text, put_document
from fastcni.runtime.validate import Finding, validate


@click.command()
@network_command(netns_required=False)
@click.option("--command", type=click.Choice(["ADD", "CHECK", "DEL", "GC", "STATUS"], case_sensitive=False),
              default="ADD", show_default=True, help="The CNI command to show.")
@click.option("--strict", is_flag=True, help="Validate the configuration instead: exit status 1 for unknown keys, "
              "wrong values, missing plugins and unused capabilities.")
def netconf(settings: Settings, command: str, strict: bool) -> int:
    """Show what a command would send to each plugin of NET. No plugin is called.

    CHECK and DEL show the cached result of NETNS as prevResult. ADD shows no prevResult: each plugin would get the
    result of the previous plugin.
    """
    if strict:
        return put_findings(settings, validate(settings.net, settings.cni.plugin_dirs))
    steps = plan.make_plan(settings.cni, settings.net, settings.rt, command.upper())
    if cni_as_text(settings.as_json):
        show.plan(steps)
    else:
        put_document([step.as_document() for step in steps])
    return 0


def put_findings(settings: Settings, findings: list[Finding]) -> int:
    """Print the findings, and return the command's exit status."""
    if cni_as_text(settings.as_json):
        show.findings(settings.net.name, findings)
    else:
        put_document([asdict(finding) for finding in findings])
    return int(bool(findings))
