"""Call a plugin that is an executable: find it, give it its environment, understand how it ended.

The rules and the error texts are those of the Go library, since runtimes and people match on them.
"""

import posix
import time
from errno import EFBIG, EINVAL, ETXTBSY

from fastcni._system import read_file
from fastcni.kernel import process, waiting
from fastcni.spec import errors, json, result
from fastcni.spec.errors import CniError

MARK = b"fastcni"          # in the padding of our launchers' ELF header, bytes 9 to 15 (elf(5), EI_PAD)

# A program that is being written cannot be started. Six attempts in five seconds; the first come
# soon, since a file that is renamed into place is busy for a moment only.
BUSY_SLEEPS = (0.05, 0.45, 1.0, 1.5, 2.0)

SHOWN = 8192               # bytes of a failed plugin's output that an error message repeats


def find(name, dirs):
    """Return the path of the plugin `name` in the first of `dirs` that has it as a regular file.

    CniError otherwise. Whether it may be executed is not looked at: the refusal of exec says more
    than "not found" would.
    """
    if not name:
        raise CniError(errors.INVALID_CONFIG, "no plugin name provided")
    if "/" in name:
        raise CniError(errors.INVALID_CONFIG, f"invalid plugin name: {name}")
    if not dirs:
        raise CniError(errors.INVALID_ENVIRONMENT, "no paths provided")
    for where in dirs:
        # An empty directory is the current one; "./" keeps exec from meaning anything else.
        path = clean(f"{where}/{name}") if where else f"./{name}"
        if is_file(path):
            return path
    raise CniError(errors.INTERNAL, f"failed to find plugin {json.quote(name)} in path [{' '.join(dirs)}]")


def clean(path):
    """The path as Go's filepath.Join leaves it. Most are clean already; importing os.path costs 0.9 ms."""
    if "//" not in path and "/." not in path:
        return path
    from posixpath import normpath

    return normpath(path)


def is_file(path):
    try:
        return posix.stat(path).st_mode & 0o170000 == 0o100000      # stat(2): S_IFMT, S_IFREG
    except (OSError, ValueError):
        return False


def is_ours(path):
    """Whether the file is one of fastcni's launchers. False for a missing file, a folder, or a file
    that this process may not read. Raises CniError if it cannot be known: fastcni's launcher is no foreign plugin."""
    try:
        return read_file(path, posix.O_RDONLY | posix.O_NONBLOCK, 16)[9:] == MARK
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError, PermissionError):
        return False
    except OSError as e:
        raise CniError(errors.of_errno(e.errno),
                       f"read plugin {path}: {posix.strerror(e.errno)} (errno {e.errno})") from None


def child_env(base_env, command, **cni):
    """Return a copy of `base_env` for a plugin: CNI_COMMAND set, and the variables given by name.

    A delegate inherits all the others: child_env(env, "ADD"). A runtime sets every one, so that
    nothing leaks in: child_env(env, "ADD", CNI_CONTAINERID=..., CNI_NETNS="", ...).
    """
    return {**base_env, "CNI_COMMAND": command, **cni}


class Late(CniError):
    """The plugin was killed, because it took longer than its timeout."""


def execute(path, env, stdin, timeout=None):
    """Run the plugin at `path`; return (stdout, stderr) as bytes when it exits with status 0.

    A failure is a CniError: the plugin's own error document, or, where it gave none, code 0 with
    a text that says how it ended. timeout is in seconds, for all attempts together, None: no limit; at its end
    Late is raised.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pauses = list(BUSY_SLEEPS)
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise Late(0, read_failure(b"", b"", "context deadline exceeded").msg)
        try:
            ended = process.run(path, env, stdin, timeout=left)
        except (OSError, ValueError) as e:
            if not pauses or not (isinstance(e, OSError) and e.errno == ETXTBSY):
                raise read_failure(b"", b"", start_cause(path, e)) from e
            waiting.readable(-1, pauses.pop(0) if left is None else min(pauses.pop(0), left), waiting.PROGRAM)
            continue
        if ended.late:
            raise Late(0, read_failure(b"", b"", ended.cause).msg)
        if ended.status:
            raise read_failure(ended.stdout, ended.stderr, ended.cause)
        return ended.stdout, ended.stderr


def start_cause(path, error):
    """The words for a program that could not be started."""
    if isinstance(error, ValueError):          # a NUL in the path or the environment
        return f"fork/exec {path}: {posix.strerror(EINVAL).lower()}"
    if error.errno == EFBIG:
        return error.strerror
    return f"fork/exec {path}: {posix.strerror(error.errno).lower()}"


def read_failure(stdout, stderr, cause):
    """Return the CniError that a failed plugin's output means.

    cause: how it ended, as process.Finished has it.
    """
    if stdout:
        return read_error_document(stdout)
    if stderr:
        return CniError(0, f"netplugin failed: {quote_output(stderr)}: {cause}")
    return CniError(0, f"netplugin failed with no error message: {cause}")


def read_error_document(stdout):
    """Return the CniError written in `stdout`; what could be read of a damaged one is kept."""
    try:
        document = json.read(stdout)
    except json.JsonError as e:
        return undecodable(stdout, e)
    if document is None:
        return CniError(0, "")
    if not isinstance(document, dict):
        return undecodable(
            stdout, f"json: cannot unmarshal {go_kind(document)} into Go value of type types.Error")
    found, wrong = {"code": 0, "msg": "", "details": ""}, ""
    for key, value in document.items():
        key = key.lower()
        if key not in found or value is None:
            continue
        if not is_code(value) if key == "code" else not isinstance(value, str):
            wanted = "uint" if key == "code" else "string"
            wrong = wrong or (f"json: cannot unmarshal {go_kind(value)} into Go struct field "
                              f"Error.{key} of type {wanted}")
            continue
        found[key] = value
    if wrong:
        return undecodable(stdout, wrong, found["code"], found["details"])
    return CniError(found["code"], found["msg"], found["details"])


def undecodable(stdout, why, code=0, details=""):
    return CniError(code, f"netplugin failed but error parsing its diagnostic message "
                          f"{quote_output(stdout)}: {why}", details)


def quote_output(data):
    """The bytes a plugin wrote, in quotes for a message; what does not fit is counted."""
    text = json.quote(data[:SHOWN].decode("utf-8", "surrogateescape"))
    return text if len(data) <= SHOWN else f"{text} ({len(data) - SHOWN} bytes more)"


def is_code(value):
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def go_kind(value):
    """The decoder's word for a JSON value, as peers write it in messages."""
    if isinstance(value, bool):
        return "bool"
    for kind, word in ((str, "string"), (int, f"number {value}"), (float, "number"), (list, "array")):
        if isinstance(value, kind):
            return word
    return "object"


def read_add_output(stdout, config_version):
    """Return the result (a dict in the shape of its own version) that an ADD printed.

    config_version is the cniVersion of the configuration, "" meaning 0.1.0. The result's version may
    be another one than the configuration's. CniError 6 where it cannot be decoded; see result.create.
    """
    try:
        document = json.read(stdout)
    except json.JsonError as e:
        raise CniError(errors.DECODING_FAILURE, f"failed to unmarshal raw result: {e}") from None
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise CniError(errors.DECODING_FAILURE, f"failed to unmarshal raw result: json: cannot unmarshal "
                       f"{go_kind(document)} into Go value of type map[string]interface {{}}")
    version = document.get("cniVersion")
    if not (version and isinstance(version, str)):
        # Only the exact spelling counts here; a differently cased one must not win later on.
        version = config_version or "0.1.0"
        document = {key: value for key, value in document.items() if key.lower() != "cniversion"}
        document["cniVersion"] = version
    return result.create(version, document)
