"""Read attachments from the iptables rules that the reference plugins or fastcni's iptables backends add, as
iptables-save prints them.

Both implementations add the same rules, so a rule does not show which of them added it.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterable, Iterator, Mapping

from fastcni.kernel import process
from fastcni.kit.firewall.iptables import USUAL_PATH, behind, target
from fastcni.node.attachments.attachment import RULE, HostPort, Sighting

PROGRAMS = ("iptables-save", "ip6tables-save")
VARIANTS = ("iptables-nft-save", "iptables-legacy-save", "ip6tables-nft-save", "ip6tables-legacy-save")
SHARED = {"CNI-HOSTPORT-DNAT": "portmap", "POSTROUTING": "ipMasq", "CNI-FORWARD": "firewall"}
TIMEOUT_S = 20.0


class Unusable(Exception):
    """A program could not run, or failed. The text is for the operator."""


def installed(names: Iterable[str], path: str = "") -> list[str]:
    """Return the paths of the installed programs among `names`."""
    directories = (path or USUAL_PATH).split(":")
    found = []
    for name in names:
        paths = [f"{directory}/{name}" for directory in directories if os.access(f"{directory}/{name}", os.X_OK)]
        found += paths[:1]
    return found


def save(program: str) -> list[str]:
    """Return the lines of all loaded tables, as iptables-save(8) prints them. Raises Unusable."""
    try:
        done = process.run(program, {"PATH": USUAL_PATH}, b"", timeout=TIMEOUT_S)
    except OSError as e:
        raise Unusable(f"{program}: {e.strerror}") from None
    if done.status:
        text = done.stderr.decode("utf-8", "replace").strip()
        raise Unusable(f"{program}: {text.partition(chr(10))[0] or done.cause}")
    return done.stdout.decode("utf-8", "replace").splitlines()


def read_lines(family: str, lines: Iterable[str]) -> Iterator[Sighting]:
    """Yield a Sighting for each chain and rule of an attachment. family: "iptables" or "ip6tables"."""
    lines, table = list(lines), ""
    ports = mapped(lines)
    for line in lines:
        if line.startswith("*"):
            table = line[1:]
        chain = behind("-A", line)
        if chain not in SHARED:
            continue
        place = f"{family} {table} {chain}"
        if chain == "CNI-FORWARD":
            if ip := single_address(line):
                yield Sighting(RULE, place, f"firewall {ip}", addresses=(ip,))
            continue
        network, container_id = read_comment(comment_of(line))
        if container_id:
            own = target(line)
            ip = single_address(line)
            yield Sighting(RULE, f"{place} {own}", SHARED[chain], network, container_id, addresses=(ip,) if ip else (),
                           ports=tuple(ports.get(own, ())))


def comment_of(line: str) -> str:
    """Return the comment of a rule; "" if the rule has no comment."""
    try:
        words = shlex.split(line)
    except ValueError:
        return ""
    return words[words.index("--comment") + 1] if "--comment" in words[:-1] else ""


def read_comment(comment: str) -> tuple[str, str]:
    """Return (network, container id) from a comment of the reference plugins; ("", "") from other comments.

        name: "net1" id: "c1"            dnat name: "net1" id: "c1"
    """
    text = comment.removeprefix("dnat ")
    if not text.startswith('name: "') or '" id: "' not in text:
        return "", ""
    network, _, container_id = text.removeprefix('name: "').partition('" id: "')
    return network, container_id.removesuffix('"').removesuffix("...")


def single_address(line: str) -> str:
    """Return the address that a rule compares with source or destination; "" without an address, or for a network."""
    for option in ("-s", "-d"):
        ip, _, prefix = behind(option, line).partition("/")
        if ip and "!" not in line and prefix in ("", "128" if ":" in ip else "32"):
            return ip
    return ""


def mapped(lines: Iterable[str]) -> Mapping[str, list[HostPort]]:
    """Return {chain of a pod: the host ports that its rules map to the pod}."""
    found: dict[str, list[HostPort]] = {}
    for line in lines:
        chain, to = behind("-A", line), behind("--to-destination", line)
        port = behind("--dport", line)
        if chain.startswith("CNI-DN-") and to and port.isdecimal():
            ip, _, to_port = to.rpartition(":")
            host_ip = behind("-d", line).partition("/")[0]
            found.setdefault(chain, []).append(HostPort(int(port), behind("-p", line), host_ip, ip.strip("[]"),
                                                        int(to_port) if to_port.isdecimal() else 0))
    return found
