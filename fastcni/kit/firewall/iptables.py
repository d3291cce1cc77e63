"""Read a table with one run of iptables-save, and change it with one run of iptables-restore.

Ask the kernel whether a table or a chain exists, without a program: over netlink for iptables-nft, by kernel/xtables.py
for iptables-legacy.
"""

from __future__ import annotations

import posix
from errno import ENOENT
from time import monotonic

from fastcni._netlink import Batch
from fastcni._system import read_file
from fastcni.kernel import nft, process, waiting, wire, xtables
from fastcni.kit.call import names
from fastcni.kit.firewall import rulesets
from fastcni.spec import errors
from fastcni.spec.errors import CniError
from fastcni.spec.json import quote

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from typing import Any

    from fastcni.kernel.process import Finished
    from fastcni.kit.call.request import Request

PROGRAMS = {4: "iptables", 16: "ip6tables"}            # keys: address length in bytes
LOCK_TIMEOUT_S = int(waiting.LOCK_TIMEOUT_S)            # seconds to wait for the xtables lock of legacy programs
RESOURCE_PROBLEM = 4                    # exit status of a program that did not get the lock
MAX_LINKS = 8                           # most symbolic links from a program's name to its file
RECENT_S = 1.0
MAX_TRIES = 5                           # attempts to change a table that other programs change at the same time
USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TABLES = ("nat", "filter")
# Files with the names of the legacy tables in the calling thread's namespace. /proc/self would show the first thread's.
LEGACY_TABLES = {4: "/proc/thread-self/net/ip_tables_names", 16: "/proc/thread-self/net/ip6_tables_names"}


def has_chain(req: Request, chain: str, table: str = "nat", *, legacy: bool = True, shared: bool = False,
              recent: bool = False) -> bool:
    """Return whether iptables-nft or iptables-legacy has a chain of this name. Asks the kernel and runs no program.

    legacy: also search the tables of iptables-legacy. shared, recent: see read_legacy().
    """
    for family in families(req, table):
        if has_nft_chain(req, family, table, chain):
            return True
    return legacy and any((found := read_legacy(req, length, table, shared=shared, recent=recent))
                          and found.has_chain(chain)
                          for length in LEGACY_TABLES)


def has_nft_chain(req: Request, family: int, table: str, chain: str) -> bool:
    """Return whether a table of nftables, or of iptables over nf_tables, has a chain of this name."""
    return rulesets.has(req.mode, ("nftables", table, family, "chain", chain),
                        lambda batch: nft.get_chain(batch, family, table, chain, "look up chain"))


def families(req: Request, table: str = "nat") -> list[int]:
    """Return the nftables families that have a table of this name. iptables-nft can only have rules in these
    families."""
    def ask() -> list[int]:
        return [family for family in (nft.NFPROTO_IPV4, nft.NFPROTO_IPV6)
                if wire.look_up(req.mode.firewall, nft.get_table(Batch(), family, table)) is not None]

    return req.mode.recall(("nftables", table, nft.NFPROTO_UNSPEC), ask)


def legacy(req: Request, table: str = "nat", *lengths: int) -> bool:
    """Return whether iptables-legacy has a table of this name, for addresses of these lengths, or of any length."""
    return any(table in _tables(req, LEGACY_TABLES[length]) for length in lengths or LEGACY_TABLES)


def read_legacy(req: Request, length: int, table: str = "nat", *, shared: bool,
                recent: bool = False) -> xtables.Table | None:
    """Return a table of the legacy iptables, None if there is no such table. Raises OSError.

    shared: the caller needs only the rules that all pods share, so a server may return its cached table if the kernel
    reports the same size and number of entries. A table with equally many rules of another pod has the same size, so
    callers that need a pod's own rules pass shared=False.
    recent: the server may return a table cached within the last RECENT_S seconds if the chain FORWARD still has the
    same length in bytes, which a flush would change. The cache saves 1 ms for a table with 1,500 rules. If only
    CNI-FORWARD has changed, the server's poll restores the missing rules.
    """
    if not legacy(req, table, length):          # reading a missing table would create it
        return None
    known: list[Any] = req.mode.recall(("legacy", table, length), lambda: [None, 0.0])     # [table, time of the read]
    found, read_at = known
    now = monotonic()
    try:
        if shared and found:
            info = xtables.get_info(length, table)
            if found.info == info or (recent and now - read_at < RECENT_S and xtables.forward_bytes(info)
                                      == xtables.forward_bytes(found.info)):
                return found
        known[:] = xtables.read_table(length, table), now
        return known[0]
    except OSError as e:
        if e.errno != ENOENT:
            raise
        return None


def _tables(req: Request, path: str) -> Collection[str]:
    try:
        return read_file(path, posix.O_RDONLY, 4096).decode().split()
    except FileNotFoundError:
        return []                       # the legacy modules are not loaded
    except PermissionError:
        # The initial user namespace's root owns this file if the network namespace was created together with a user
        # namespace. Such a namespace may have legacy rules if the node's iptables is iptables-legacy.
        program = PROGRAMS[4]
        return TABLES if find(req, program) and b"legacy" in _run(req, program, ("--version",), b"").stdout else []


def read(req: Request, program: str, table: str = "nat") -> list[str]:
    """Return the lines of a table as iptables-save prints them. Raises CniError."""
    return req.mode.read_iptables(program, table, lambda: _read(req, program, table))


def _read(req: Request, program: str, table: str) -> list[str]:
    saved = _run(req, program + "-save", ("-t", table), b"")
    if saved.status:
        raise failed(program + "-save", saved)
    return saved.stdout.decode("utf-8", "replace").splitlines()


def read_if_there(req: Request, program: str, table: str = "nat") -> list[str]:
    """Return read(), or [] if the host lacks this family's program: such a host has no rules of this family."""
    return read(req, program, table) if find(req, program + "-save") else []


def change(req: Request, program: str, commands: Sequence[str], table: str = "nat") -> None:
    """Run commands like "-A CHAIN ...", all of them or none. Raises CniError."""
    done = attempt(req, program, commands, table)
    if done.status:
        raise failed(program + "-restore", done)


def attempt(req: Request, program: str, commands: Sequence[str], table: str = "nat") -> Finished:
    """Run commands like change(), but return the program's exit status and output. Raises CniError 11 if another
    program held the xtables lock."""
    return req.mode.change_iptables(program, table, [*commands], lambda: _attempt(req, program, commands, table))


def _attempt(req: Request, program: str, commands: Sequence[str], table: str) -> Finished:
    text = "\n".join([f"*{table}", *commands, "COMMIT", ""])
    done = _run(req, program + "-restore", ("--noflush", f"--wait={LOCK_TIMEOUT_S}"), text.encode())
    if done.status == RESOURCE_PROBLEM and b"xtables lock" in done.stderr:
        raise CniError(errors.TRY_AGAIN_LATER, f"{program}-restore: the xtables lock was not free within "
                       f"{LOCK_TIMEOUT_S} s", "`fuser -v /run/xtables.lock` shows which process holds it")
    return done


def retry(req: Request, program: str, table: str, wanted: Callable[[list[str]], Iterable[str]]) -> None:
    """Read the table, and run the commands that wanted(lines) returns. Retry if another program changes the table in
    between. Raises CniError."""
    for left in reversed(range(MAX_TRIES)):
        lines = read(req, program, table)
        commands = [*wanted(lines)]
        done = attempt(req, program, commands, table) if commands else None
        if not done or not done.status:
            return
        if not left or read(req, program, table) == lines:      # no other program has changed the table
            raise failed(program + "-restore", done)


def remove(req: Request, program: str, lines: list[str], rules: Iterable[str], chains: Iterable[str] = (),
           table: str = "nat") -> None:
    """Delete `rules`, in the form of read(), and the chains in `chains` that exist. lines: the result of read(), which
    shows the existing chains. Raises CniError."""
    commands = ["-D" + rule[2:] for rule in rules]
    for chain in chains:
        if has_line(lines, chain):
            commands += [f"-F {chain}", f"-X {chain}"]
    if commands:
        change(req, program, commands, table)


def remove_chains(req: Request, program: str, lines: list[str], shared: str, chains: Collection[str]) -> None:
    """Delete chains of table nat, and the jumps to them in the chain `shared`, which all pods use. Raises CniError."""
    remove(req, program, lines, [line for line in lines if line.startswith(f"-A {shared} ") and target(line) in chains],
           chains)


def gc(req: Request, shared: str, prefix: str, text: str) -> None:
    """Delete chains in table nat whose names begin with `prefix`, if they belong to containers of this network without
    a valid attachment.

    The jumps to these chains, in the chain `shared`, have the comment <text>name: "<network>" id: "<container>". Raises
    CniError.
    """
    if not families(req) and not legacy(req):
        return
    valid = {names.container_chain(prefix, req.name, container_id) for container_id, _ in req.valid_attachments}
    network = quote(f"{text}name: {quote(req.name)} id: ")[:-1]
    for program in PROGRAMS.values():
        lines = read_if_there(req, program)
        found = {target(line) for line in lines if line.startswith(f"-A {shared} ") and network in line}
        gone = {chain for chain in found - valid if chain.startswith(prefix)}
        remove_chains(req, program, lines, shared, gone)
        for chain in gone:
            req.release(f"{program} chain {chain}")


def need_one(req: Request, table: str = "nat") -> None:
    """For STATUS: raise CniError 50 if neither iptables nor ip6tables works."""
    why = []
    for program in PROGRAMS.values():
        try:
            read(req, program, table)
            return
        except CniError as e:
            why.append(f"({program}) {e.msg}")
    raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"neither iptables nor ip6tables is usable, {', '.join(why)}",
                   "install iptables, or leave backend out to use nftables, which needs no program")


def has_line(lines: list[str], chain: str) -> bool:
    """Return whether a chain exists. lines: the result of read()."""
    return any(line.startswith(f":{chain} ") for line in lines)


def target(rule: str) -> str:
    return behind("-j", rule)


def behind(option: str, rule: str) -> str:
    """Return the word that follows `option` in a rule, "" if the rule does not have the option."""
    words = rule.split()
    return words[words.index(option) + 1] if option in words else ""


def find(req: Request, program: str) -> str:
    """Return the path of a program, "" if it is not installed."""
    for directory in (req.env.get("PATH") or USUAL_PATH).split(":"):
        path = f"{directory}/{program}"
        if posix.access(path, posix.X_OK):
            return path
    return ""


def program_of_kind(req: Request, length: int, kind: str) -> str:
    """Return the name of the program that changes the tables of `kind`, "nft" or "legacy"; "" if the host has no such
    program.

    The program is "iptables", unless the symbolic link of this name shows that iptables is of the other kind: on Debian
    the link leads to xtables-nft-multi or xtables-legacy-multi.
    """
    plain = PROGRAMS[length]
    other = {"nft": "legacy", "legacy": "nft"}[kind]
    if f"-{other}-" not in _linked(find(req, f"{plain}-restore")):
        return plain
    special = f"{plain}-{kind}"
    return special if find(req, f"{special}-restore") else ""


def _linked(path: str) -> str:
    """Follow symbolic links from `path`, and return the target of the last link; "" if `path` is no link."""
    text = ""
    for _ in range(MAX_LINKS):
        try:
            target = posix.readlink(path)
        except OSError:                 # not a symbolic link, or no such file
            break
        text = target
        path = target if target.startswith("/") else f"{path.rpartition('/')[0]}/{target}"
    return text


def _run(req: Request, program: str, arguments: tuple[str, ...], stdin: bytes) -> Finished:
    path = find(req, program)
    if not path:
        raise CniError(errors.INTERNAL,
                       f'failed to locate iptables: exec: "{program}": executable file not found in $PATH',
                       "install iptables, or leave ipMasqBackend (of portmap: backend) out to use nftables, without a "
                       "program")
    waiting.admit(waiting.PROGRAM)
    done = process.run(path, req.env, stdin, (program, *arguments), timeout=waiting.PROGRAM_TIMEOUT_S)
    if done.late:
        seconds = waiting.limit(waiting.PROGRAM_TIMEOUT_S)
        raise CniError(errors.TRY_AGAIN_LATER, f"{path} did not end within {seconds:g} s, and was killed",
                       "does the program also hang by hand? `fuser -v /run/xtables.lock` shows which process holds the "
                       "lock")
    return done


def failed(program: str, done: Finished) -> CniError:
    message = done.stderr.decode("utf-8", "replace").strip()
    return CniError(errors.INTERNAL, f"running {program}: {done.cause}: {message}")
