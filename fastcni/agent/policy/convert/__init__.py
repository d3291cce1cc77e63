"""Convert policies of other APIs to ClusterNetworkPolicy and NetworkPolicy.

    found = convert([("all.yaml: document 1", document)])
    found.documents                     # for the API server, or for a file of --policies
    found.errors, found.notes           # the keys that are not converted; the keys whose effect changes

convert() reports each part that the new documents cannot express in `errors`, so no denied connection becomes allowed
without an error. If such a part is an allowing rule, convert() leaves out the rule. If it is a denying rule, convert()
leaves out all rules of the direction.

    admin         AdminNetworkPolicy and BaselineAdminNetworkPolicy
    calico        Calico's policies
    calico_rules  the rules of Calico's policies
    selectors     Calico's selectors
    conversion    Conversion: the new documents, errors and notes
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from fastcni.agent.policy.cluster_policies import ADMIN, GROUP, read_cluster_policy
from fastcni.agent.policy.convert import admin, calico
from fastcni.agent.policy.convert.conversion import Conversion
from fastcni.agent.policy.objects import PolicyError, read_policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

CALICO = ("projectcalico.org/", "crd.projectcalico.org/")
CONVERTERS: dict[tuple[str, str], Callable[[dict[str, Any]], Conversion]] = {
    **{(group, kind): calico.convert for group in CALICO for kind in ("GlobalNetworkPolicy", "NetworkPolicy")},
    (GROUP, "AdminNetworkPolicy"): admin.convert,
    (GROUP, "BaselineAdminNetworkPolicy"): admin.convert}
OWN = {("networking.k8s.io/", "NetworkPolicy"), (GROUP, "ClusterNetworkPolicy")}        # kinds that need no conversion
HARMLESS = ("IPPool", "IPReservation", "IPAMBlock", "IPAMHandle", "IPAMConfig", "BlockAffinity", "BGPPeer", "BGPFilter",
            "BGPConfiguration", "ClusterInformation", "FelixConfiguration", "CalicoNodeStatus",
            "KubeControllersConfiguration", "StagedNetworkPolicy", "StagedGlobalNetworkPolicy",
            "StagedKubernetesNetworkPolicy")            # Calico's kinds without effect on connections


def convert(documents: Iterable[tuple[str, Any]]) -> Conversion:
    """Convert the policies in these documents; ignore other documents, such as Deployments.

    documents: (where, document). where: the file and the document's number, for errors. Pass all documents of a cluster
    in one call: convert() checks that AdminNetworkPolicies come before all policies of Calico, and that names differ.
    """
    total, last_admin, of_calico = Conversion(), -1, []
    documents = list(documents)
    taken = {identity_of(document) for _, document in documents if is_own(document)}
    for where, document in documents:
        try:
            found = convert_one(document)
        except PolicyError as e:
            found = Conversion(errors=[f"{e}; the document is not converted"])
        if found.is_calico:
            of_calico.append((where, found))
            continue
        last_admin = max([last_admin, *admin_priorities(found)])
        total.add(unless_taken(found, taken), where)
    for where, found in of_calico:
        if early := [priority for priority in admin_priorities(found) if priority <= last_admin]:
            found = Conversion(errors=[
                f"{found.what}: spec.order: priority {early[0]} does not come after the AdminNetworkPolicies, the last "
                f"of which has {last_admin}; the document is not converted"])
        total.add(unless_taken(found, taken), where)
    return total


def is_own(document: Any) -> bool:
    """Return whether a document is a NetworkPolicy or ClusterNetworkPolicy, which need no conversion."""
    return isinstance(document, dict) and (f"{str(document.get('apiVersion')).rpartition('/')[0]}/",
                                           document.get("kind")) in OWN


def identity_of(document: dict[str, Any]) -> tuple[str, str, str]:
    """Return (kind, namespace, name) of a document. The API server has at most one document with this identity."""
    metadata = document.get("metadata")
    names = metadata if isinstance(metadata, dict) else {}
    return (str(document["kind"]), *(str(names.get(key) or default) for key, default in (     # type: ignore[return-value]
        ("namespace", "default" if document["kind"] == "NetworkPolicy" else ""), ("name", ""))))


def unless_taken(found: Conversion, taken: set[tuple[str, str, str]]) -> Conversion:
    """Return `found`, or a Conversion with an error if a document of `found` would replace another document. taken: the
    identities of all other documents; the function adds the identities of `found`."""
    names = {identity_of(each) for each in found.documents}
    if clash := sorted(names & taken):
        kind, namespace, name = clash[0]
        return Conversion(errors=[f"{found.what}: metadata.name: {kind} {'/'.join(filter(None, (namespace, name)))} "
                                  "exists already; the document is not converted"])
    taken |= names
    return found


def convert_one(document: Any) -> Conversion:
    """Convert one document, and check the result by reading it as the agent does. Raises PolicyError."""
    kind, version = (str(document.get(key) or "") for key in ("kind", "apiVersion"))
    group = f"{version.rpartition('/')[0]}/"
    if converter := CONVERTERS.get((group, kind)):
        found = converter(document)
        for each in found.documents:
            if each["kind"] == "NetworkPolicy":
                read_policy(each)
            else:
                found.notes += read_cluster_policy(each).notes()
        return found
    if (group, kind) in OWN or kind in HARMLESS or not (group in CALICO or kind.endswith("NetworkPolicy")):
        return Conversion()
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else ""
    raise PolicyError(f"{kind} {name or ''}: apiVersion: no conversion for {version or 'a document without one'}")


def admin_priorities(found: Conversion) -> list[int]:
    return [each["spec"]["priority"] for each in found.documents if each["spec"].get("tier") == ADMIN]
