"""The command `fastcni explain`: say what an address, a port, a link, a chain or a container id belongs to."""

import click

from fastcni.cli.options import completion
from fastcni.cli.options.node import agent_folder_option, node_command
from fastcni.cli.text import inventory
from fastcni.cli.text.output import put_document
from fastcni.node.attachments import documents
from fastcni.node.attachments import explain as explanations
from fastcni.node.attachments.inspect import similar_to
from fastcni.node.attachments.inventory import Places
from fastcni.spec import errors
from fastcni.spec.errors import CniError


@click.command()
@click.argument("what", metavar="ADDRESS|PORT|LINK|CONTAINER|CHAIN", shell_complete=completion.pods)
@agent_folder_option
@node_command
def explain(places: Places, as_json: bool, what: str, agent_folder: str) -> None:
    """Say what an address, port, link or chain of this node belongs to.

    The output has the network, the plugins, the time of the ADD, files and rules.

    \b
    fastcni explain 10.88.0.2         an address
    fastcni explain 8080/tcp          a port of the node; or 8080, 192.0.2.1:8080
    fastcni explain veth1a2b3c4d      a link
    fastcni explain CNI-DN-0266adf... a chain of iptables or nftables, or a set
    fastcni explain 8e4f2a            a container id, or its beginning
    fastcni explain shop/web          Kubernetes' name of a pod

    The exit status is 1 if the command finds no explanation.
    """
    found, seen = explanations.explain(places, what, agent_folder=agent_folder)
    if not found:
        similar = similar_to(seen.attachments, what)
        unseen = f"; not seen: {'; '.join(seen.unseen)}" if seen.unseen else ""
        raise CniError(errors.INVALID_ENVIRONMENT, f"nothing on this node has the name or address {what}",
                       f"{similar or '`fastcni list` shows all attachments'}{unseen}")
    if not as_json:
        inventory.print_explanations(found, seen)
    else:
        put_document({"asked": what, "explanations": [explanations.document(it, documents.attachment) for it in found],
                      "unseen": list(seen.unseen)})
