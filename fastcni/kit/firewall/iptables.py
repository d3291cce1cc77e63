"""iptables by its own programs: a table read in one run of iptables-save, changed in one of iptables-restore."""

import posix

from fastcni.kernel import nft, process, waiting
from fastcni.kit.call import names
from fastcni.kit.firewall import elements
from fastcni.spec import errors
from fastcni.spec.errors import CniError
from fastcni.spec.json import quote

PROGRAMS = {4: "iptables", 16: "ip6tables"}            # by length of an address
LOCK_TIMEOUT_S = int(waiting.LOCK_TIMEOUT_S)            # for the xtables lock, which the legacy programs take
RESOURCE_PROBLEM = 4                    # their exit status then
TRIES = 5                               # when others change the table between a look and a change
USUAL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
TABLES = ("nat", "filter")
LEGACY_TABLES = {4: "/proc/self/net/ip_tables_names", 16: "/proc/self/net/ip6_tables_names"}


def has_chain(req, chain, table="nat", *, hidden=True):
    """May iptables hold a chain of this name? Asked of the kernel, without starting a program.

    iptables over nf_tables keeps its chains where netlink shows them. The legacy kind does not: where its table is
    loaded at all, the answer is `hidden`.
    """
    for family in families(req, table):
        def look_up(batch, family=family):
            return nft.get_chain(batch, family, table, chain, "look up chain")

        if elements.has(req.mode, ("nftables", table, family, "chain", chain), look_up):
            return True
    return hidden and legacy(req, table)


def families(req, table="nat"):
    """Those that have such a table, which is where iptables over nf_tables would have put something."""
    return [family for family in (nft.NFPROTO_IPV4, nft.NFPROTO_IPV6) if elements.has_table(req.mode, family, table)]


def legacy(req, table="nat", *lengths):
    """Has the legacy iptables such a table, for addresses of these lengths, or of any?"""
    return any(table in _tables(req, LEGACY_TABLES[length]) for length in lengths or LEGACY_TABLES)


def _tables(req, path):
    try:
        fd = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    except FileNotFoundError:
        return []                       # the legacy modules are not loaded
    except PermissionError:
        # Of a network namespace that was made together with its user namespace, the kernel's root owns this file. There
        # may be rules if the node's iptables is the legacy one.
        program = PROGRAMS[4]
        return TABLES if find(req, program) and b"legacy" in _run(req, program, ("--version",), b"").stdout else []
    try:
        return posix.read(fd, 4096).decode().split()
    finally:
        posix.close(fd)


def read(req, program, table="nat"):
    """The lines of a table as iptables-save prints them. Raises CniError."""
    return req.mode.read_iptables(program, table, lambda: _read(req, program, table))


def _read(req, program, table):
    saved = _run(req, program + "-save", ("-t", table), b"")
    if saved.status:
        raise failed(program + "-save", saved)
    return saved.stdout.decode("utf-8", "replace").splitlines()


def read_if_there(req, program, table="nat"):
    """The same, but no lines on a host without this family's program: it has no rules of ours in it."""
    return read(req, program, table) if find(req, program + "-save") else []


def change(req, program, commands, table="nat"):
    """Commands like "-A CHAIN ...", all of them or none. Raises CniError."""
    done = attempt(req, program, commands, table)
    if done.status:
        raise failed(program + "-restore", done)


def attempt(req, program, commands, table="nat"):
    """The same, for those who try again: a process.Finished."""
    return req.mode.change_iptables(program, table, commands, lambda: _attempt(req, program, commands, table))


def _attempt(req, program, commands, table):
    text = "\n".join([f"*{table}", *commands, "COMMIT", ""])
    done = _run(req, program + "-restore", ("--noflush", f"--wait={LOCK_TIMEOUT_S}"), text.encode())
    if done.status == RESOURCE_PROBLEM and b"xtables lock" in done.stderr:
        raise CniError(errors.TRY_AGAIN_LATER, f"{program}-restore: the xtables lock was not free within "
                       f"{LOCK_TIMEOUT_S} s", "`fuser -v /run/xtables.lock` shows which process holds it")
    return done


def settle(req, program, table, wanted):
    """Run the commands wanted(lines), where `lines` is what read() reads; again where somebody else changes the table
    in between. Raises CniError."""
    for left in reversed(range(TRIES)):
        lines = read(req, program, table)
        commands = [*wanted(lines)]
        done = attempt(req, program, commands, table) if commands else None
        if not done or not done.status:
            return
        if not left or read(req, program, table) == lines:      # not because of a change by somebody else
            raise failed(program + "-restore", done)


def remove(req, program, lines, rules, chains=(), table="nat"):
    """Delete rules as read() has them, and chains that are among the lines. Raises CniError."""
    commands = ["-D" + rule[2:] for rule in rules]
    for chain in chains:
        if has_line(lines, chain):
            commands += [f"-F {chain}", f"-X {chain}"]
    if commands:
        change(req, program, commands, table)


def remove_chains(req, program, lines, shared, chains):
    """Delete chains of table nat, and the rules of a chain that pods share that lead there. Raises CniError."""
    remove(req, program, lines, [line for line in lines if line.startswith(f"-A {shared} ") and target(line) in chains],
           chains)


def gc(req, shared, prefix, words):
    """Delete the chains in table nat, by their prefix, of containers of this network none of whose attachments is valid
    any more. The rules of `shared` that lead there have the comment <words>name: "<network>" id: "<container>"."""
    if not families(req) and not legacy(req):
        return
    valid = {names.container_chain(prefix, req.name, container_id) for container_id, _ in req.valid_attachments}
    network = quote(f"{words}name: {quote(req.name)} id: ")[:-1]
    for program in PROGRAMS.values():
        lines = read_if_there(req, program)
        found = {target(line) for line in lines if line.startswith(f"-A {shared} ") and network in line}
        gone = {chain for chain in found - valid if chain.startswith(prefix)}
        remove_chains(req, program, lines, shared, gone)
        for chain in gone:
            req.release(f"{program} chain {chain}")


def need_one(req, table="nat"):
    """For STATUS: raises CniError 50 where neither family's programs work."""
    why = []
    for program in PROGRAMS.values():
        try:
            read(req, program, table)
            return
        except CniError as e:
            why.append(f"({program}) {e.msg}")
    raise CniError(errors.PLUGIN_NOT_AVAILABLE, f"neither iptables nor ip6tables is usable, {', '.join(why)}",
                   "install iptables, or leave backend out to use nftables, which needs no program")


def has_line(lines, chain):
    """Is the chain among what read() has read?"""
    return any(line.startswith(f":{chain} ") for line in lines)


def target(rule):
    return behind("-j", rule)


def behind(option, rule):
    """The word behind an option of a rule, "" where it has none."""
    words = rule.split()
    return words[words.index(option) + 1] if option in words else ""


def find(req, program):
    """The path of a program, "" where it is not installed."""
    for folder in (req.env.get("PATH") or USUAL_PATH).split(":"):
        path = f"{folder}/{program}"
        if posix.access(path, posix.X_OK):
            return path
    return ""


def _run(req, program, arguments, stdin):
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
                       "does it hang by hand, too? `fuser -v /run/xtables.lock` shows which process holds its lock")
    return done


def failed(program, done):
    said = done.stderr.decode("utf-8", "replace").strip()
    return CniError(errors.INTERNAL, f"running {program}: {done.cause}: {said}")
