"""Decide by names to which program a table or chain of the firewall belongs, and how that program allows a connection.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

HAND_WRITTEN, OWN = "hand-written", "fastcni"

# (owner, table, chain), for nftables and iptables; table and chain are regular expressions of complete names
PATTERNS = (
    (OWN, r"fastcni.*|cni_hostport|cni_plugins_masquerade", r".*"),
    (OWN, r".*", r"fastcni.*|CNI-.*"),
    ("kube-proxy", r"kube-proxy", r".*"),
    ("kube-proxy", r".*", r"KUBE-(?!ROUTER|NWPLCY|POD).*"),
    ("kubelet", r".*", r"KUBE-KUBELET-.*"),
    ("kube-router", r".*", r"KUBE-(ROUTER|NWPLCY|POD).*"),
    ("calico", r"calico", r".*"),
    ("calico", r".*", r"cali-.*"),
    ("cilium", r".*", r"(OLD_)?CILIUM_.*"),
    ("flannel", r"flannel-.*", r".*"),
    ("flannel", r".*", r"FLANNEL-.*"),
    ("firewalld", r"firewalld", r".*"),
    ("ufw", r".*", r"ufw6?-.*"),
    ("docker", r"docker-bridges.*", r".*"),
    ("docker", r".*", r"DOCKER(?!-USER).*"),
    ("libvirt", r"libvirt_network", r".*"),
    ("libvirt", r".*", r"LIBVIRT_.*"),
    ("netavark", r"netavark", r".*"),
    ("netavark", r".*", r"NETAVARK.*"),
    ("istio", r".*", r"ISTIO_.*"),
)
# (program that sets the policy of iptables' chains, how names of its other chains in the table begin)
BY_OTHER_CHAINS = (("ufw", "ufw-"), ("docker", "DOCKER"), ("firewalld", "FORWARD_direct"))


def owner_of(table: str, chain: str) -> str:
    """Return the owner of a chain; HAND_WRITTEN if no known program uses these names."""
    for owner, tables, chains in PATTERNS:
        if re.fullmatch(tables, table) and re.fullmatch(chains, chain):
            return owner
    return HAND_WRITTEN


def owner_of_policy(table: str, chain: str, chains: Iterable[str]) -> str:
    """Return the owner of a base chain's policy. chains: the names of all chains in the table."""
    found = owner_of(table, chain)
    if found != HAND_WRITTEN:
        return found
    names = list(chains)
    return next((owner for owner, begins in BY_OTHER_CHAINS if any(name.startswith(begins) for name in names)), found)


def allow(owner: str, hook: str, source: str, destination: str, protocol: str, port: int) -> str:
    """Return the command by which a chain's owner allows a connection; "" if the owner has no such command."""
    if owner == "ufw" and hook == "forward":
        return f"ufw route allow from {source} to {destination}"
    if owner == "ufw":
        direction = "out" if hook == "output" else "in"
        return f"ufw allow {direction} from {source} to {destination} port {port} proto {protocol}"
    if owner == "firewalld":
        return f"firewall-cmd --zone=trusted --add-source={source}"
    if owner == "docker" and hook == "forward":
        program = "ip6tables" if ":" in source else "iptables"
        return (f"{program} -I DOCKER-USER -s {source} -d {destination} -j ACCEPT && "
                f"{program} -I DOCKER-USER -s {destination} -d {source} -j ACCEPT")
    return ""
