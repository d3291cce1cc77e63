"""Announce routes by FRR (frrouting.org): `vtysh` passes the agent's part of the configuration to bgpd.

The agent's part is the BGP view `fastcni` and the route map `fastcni-none`. A view has its own peers and routes, and
adds no routes to the kernel. The agent changes no other part, and does not save FRR's configuration: after a restart of
FRR, the agent passes its part again.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from fastcni.agent.bgp.settings import BgpError
from fastcni.agent.files import write

if TYPE_CHECKING:
    from collections.abc import Collection

    from fastcni.agent.bgp.settings import Settings
    from fastcni.agent.contract import Prefix

ANSWER_S = 10.0
CHECK_S = 5.0                   # seconds between two checks whether bgpd has the view; a restarted bgpd has no view
VIEW = "view fastcni"
FILTER = "fastcni-none"         # the route map that denies all routes of peers


def text(settings: Settings, router_id: str, prefixes: Collection[Prefix]) -> str:
    """Return the configuration of the view. FRR does not interrupt BGP sessions if it already has these lines."""
    lines = [f"route-map {FILTER} deny 10", "exit", f"router bgp {settings.asn} {VIEW}", f" bgp router-id {router_id}",
             " no bgp ebgp-requires-policy", " no bgp network import-check", " no bgp default ipv4-unicast"]
    for peer in settings.peers:
        name = f"neighbor {peer.address}"
        lines.append(f" {name} remote-as {peer.asn}")
        lines.append(f" {name} password {peer.password}" if peer.password else f" no {name} password")
        if peer.asn != settings.asn:            # sessions within an AS (iBGP) may always have several hops
            lines.append(f" {name} ebgp-multihop {peer.multihop}" if peer.multihop else f" no {name} ebgp-multihop")
    for family in (4, 6):
        lines.append(f" address-family ipv{family} unicast")
        lines += [f"  network {it}" for it in sorted(it for it in prefixes if it.version == family)]
        for peer in settings.peers:
            if peer.address.version == family:
                lines += [f"  neighbor {peer.address} {it}" for it in (f"route-map {FILTER} in", "activate")]
        lines.append(" exit-address-family")
    return "\n".join([*lines, "exit"]) + "\n"


def apply(settings: Settings, configuration: str) -> None:
    """Add the lines of `configuration` to bgpd, and remove the view's other networks and peers. Raises BgpError,
    OSError."""
    write(Path(settings.config), removals(view_of(settings), configuration) + configuration, 0o600)
    run(settings, "-f", settings.config)


def is_applied(settings: Settings) -> bool:
    """Return whether bgpd has the view. Raises BgpError."""
    return bool(view_of(settings))


def view_of(settings: Settings) -> list[str]:
    """Return the lines of the view in bgpd's `show running-config`; [] if bgpd does not have the view."""
    found: list[str] = []
    for line in run(settings, "-c", "show running-config").splitlines():
        if found and line == "exit":
            break
        if found or (line.startswith("router bgp ") and line.endswith(f" {VIEW}")):
            found.append(line)
    return found


def removals(present: list[str], configuration: str) -> str:
    """Return the commands that remove the view's networks and peers that are not in `configuration`. If the AS number
    has changed, return the command that removes the view. present: the lines of view_of()."""
    wanted = configuration.splitlines()
    if not present:
        return ""
    if present[0] not in wanted:
        return f"no {present[0]}\n"
    lines, family = [present[0]], ""
    for line in present[1:]:
        words = line.split()
        if words[:1] == ["address-family"]:
            family = line
        elif words[:1] == ["network"] and line not in wanted:
            lines += [family, f"  no {line.strip()}", " exit-address-family"]
    peers = {line.split()[1] for line in present if line.startswith(" neighbor ")}
    lines += [f" no neighbor {it}" for it in sorted(peers) if not any(w.startswith(f" neighbor {it} ") for w in wanted)]
    return "\n".join([*lines, "exit"]) + "\n"


def run(settings: Settings, *words: str) -> str:
    """Run vtysh for the daemon bgpd with the arguments `words`, and return its output. Raises BgpError with FRR's error
    text."""
    command = ["vtysh", "--vty_socket", settings.socket, "-d", "bgpd", *words]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=ANSWER_S,
                              check=False)
    except (OSError, subprocess.TimeoutExpired) as e:
        raise BgpError(f"vtysh: {e}; is FRR installed, and does bgpd answer?") from None
    output = done.stdout + done.stderr
    if "failed to connect" in output:
        raise BgpError(f"{settings.socket}: {output.strip()} Does FRR's bgpd run (/etc/frr/daemons)?")
    if done.returncode:
        raise BgpError(f"FRR refuses its configuration: {output.strip()}")
    return done.stdout
