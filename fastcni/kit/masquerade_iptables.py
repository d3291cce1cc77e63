"""The iptables backend of ipMasq, with the reference plugins' chains: one run of iptables-restore a change.

    -A POSTROUTING -s 10.22.0.5 -j CNI-e8f6f419596f7f47b3468487
    -A CNI-e8f6f419596f7f47b3468487 -d 10.22.0.0/16 -j ACCEPT
    -A CNI-e8f6f419596f7f47b3468487 ! -d 224.0.0.0/4 -j MASQUERADE

each with the comment  name: "<network>" id: "<container>".
"""

import posix
from errno import ENOENT

from fastcni._netlink import Batch
from fastcni.kernel import nft, process, wire
from fastcni.kit import names
from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError
from fastcni.spec.json import quote

# By length of an address: the program's name and its multicast prefix.
PROGRAMS = {4: ("iptables", "224.0.0.0/4"), 16: ("ip6tables", "ff00::/8")}
USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
LEGACY_TABLES = {4: "/proc/self/net/ip_tables_names", 16: "/proc/self/net/ip6_tables_names"}


def chain_of(req):
    return names.chain("CNI-", req)


def comment_of(req):
    return f"name: {quote(req.name)} id: {quote(req.container_id)}"


def add(req, ips):
    """Masquerade [(packed, prefix)]. Raises CniError with what iptables said."""
    chain, comment = chain_of(req), quote(comment_of(req))
    for length, (program, multicast) in PROGRAMS.items():
        mine = [(packed, prefix) for packed, prefix in ips if len(packed) == length]
        if not mine:
            continue
        rules = []
        for packed, prefix in mine:
            network = addresses.cidr_text(addresses.network(packed, prefix), prefix)
            rules.append(f"-A {chain} -d {network} -j ACCEPT -m comment --comment {comment}")
            rules.append(f"-A {chain} ! -d {multicast} -j MASQUERADE -m comment --comment {comment}")
            rules.append(f"-A POSTROUTING -s {addresses.ip_text(packed)} -j {chain} -m comment --comment {comment}")
        # Another interface of this container on this network has the same chain: then -N is refused, and with it
        # the whole run; the chain is only added to.
        if _restore(req, program, [f"-N {chain}", *rules]).status:
            done = _restore(req, program, rules)
            if done.status:
                raise _failed(program + "-restore", done)


def delete(req, known):
    """Delete our jumps and, with the last of them, the chain; in both families. Gone is fine.

    `known` are packed addresses; jumps of other addresses, which are those of another interface of the container,
    stay. With nothing known every jump to the chain goes.
    """
    chain = chain_of(req)
    sources = {addresses.ip_text(packed) for packed in known}
    for program, _ in PROGRAMS.values():
        try:
            saved = _run(req, program + "-save", ("-t", "nat"), b"")
        except CniError:
            continue                    # a host without this family's program has no rules of ours in it
        if saved.status:
            raise _failed(program + "-save", saved)
        lines = saved.stdout.decode("utf-8", "replace").splitlines()
        jumps = [line for line in lines if f" -j {chain}" in line and line.startswith("-A ")]
        ours = [line for line in jumps if not sources or _source(line) in sources] or jumps
        commands = ["-D" + line[2:] for line in ours]
        if len(ours) == len(jumps) and any(line.startswith(f":{chain} ") for line in lines):
            commands += [f"-F {chain}", f"-X {chain}"]
        if commands:
            done = _restore(req, program, commands)
            if done.status:
                raise _failed(program + "-restore", done)


def _source(rule):
    words = rule.split()
    return words[words.index("-s") + 1].split("/")[0] if "-s" in words else ""


def present(req):
    """May iptables hold a chain of this attachment? Asked of the kernel, without starting a program.

    iptables over nf_tables keeps its chains where netlink shows them. The legacy kind does not: where its nat table
    is loaded at all, the answer is yes.
    """
    sock = req.host.firewall
    for family in (nft.NFPROTO_IPV4, nft.NFPROTO_IPV6):
        if not req.host.recall(("nftables", "nat", family), lambda: has_nat(sock, family)):     # noqa: B023
            continue
        _, refused = wire.attempt(sock, nft.get_chain(Batch(), family, "nat", chain_of(req), "look up chain"))
        if not refused:
            return True
        if refused[0].errno != ENOENT:
            raise refused[0]
    return any("nat" in _lines(path) for path in LEGACY_TABLES.values())


def has_nat(sock, family):
    _, refused = wire.attempt(sock, nft.get_table(Batch(), family, "nat"))
    if refused and refused[0].errno != ENOENT:
        raise refused[0]
    return not refused


def _lines(path):
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except FileNotFoundError:
        return []                       # the legacy modules are not loaded
    try:
        return posix.read(fd, 4096).decode().split()
    finally:
        posix.close(fd)


def _restore(req, program, commands):
    text = "\n".join(["*nat", *commands, "COMMIT", ""])
    return _run(req, program + "-restore", ("--noflush", "--wait"), text.encode())


def _run(req, program, arguments, stdin):
    for folder in (req.env.get("PATH") or USUAL_PATH).split(":"):
        path = f"{folder}/{program}"
        if posix.access(path, posix.X_OK):
            return process.run(path, req.env, stdin, (program, *arguments))
    raise CniError(errors.INTERNAL, f'failed to locate iptables: exec: "{program}": executable file not found in $PATH',
                   "install iptables, or leave ipMasqBackend out to use nftables, which needs no program")


def _failed(program, done):
    said = done.stderr.decode("utf-8", "replace").strip()
    return CniError(errors.INTERNAL, f"running {program}: {done.cause}: {said}")
