"""Execute a plugin: make its environment, run it, and read its result or error.

The rules and the error texts are those of the Go library, because runtimes and scripts match these texts.
"""

from __future__ import annotations

import posix
import time
from errno import EFBIG, EINVAL, ETXTBSY

from fastcni.kernel import process, waiting
from fastcni.spec import errors, json, result
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

# While a program is being written, exec fails (ETXTBSY). fastcni tries six times in five seconds. The first pauses are
# short, because a file that is renamed into place is busy for less than a second.
BUSY_PAUSES_S = (0.05, 0.45, 1.0, 1.5, 2.0)
MAX_SHOWN = 8192                # most bytes of a failed plugin's output that an error repeats


def child_env(base_env: Mapping[str, str], command: str, **cni: str) -> dict[str, str]:
    """Return a copy of `base_env` for a plugin, with CNI_COMMAND and the keyword arguments as variables.

    child_env(env, "ADD") is for a delegate, which inherits all other CNI variables. A runtime sets every CNI variable,
    so that the plugin inherits none: child_env(env, "ADD", CNI_CONTAINERID=..., CNI_NETNS="", ...).
    """
    return {**base_env, "CNI_COMMAND": command, **cni}


class Late(CniError):
    """The error for a plugin that fastcni has killed at the end of its timeout."""


def execute(path: str, env: Mapping[str, str], stdin: bytes, timeout: float | None = None) -> tuple[bytes, bytes]:
    """Run the plugin at `path`; return (stdout, stderr) if it exits with status 0.

    timeout: seconds for all attempts together; None: no limit. If the plugin fails, raises CniError with the plugin's
    own error document. If the plugin printed no document, the CniError has code 0 and tells how the plugin ended.
    Raises Late at the end of the timeout.
    """
    deadline = None if timeout is None else time.monotonic() + timeout
    pauses = list(BUSY_PAUSES_S)
    while True:
        left = None if deadline is None else deadline - time.monotonic()
        if left is not None and left <= 0:
            raise Late(0, read_failure(b"", b"", "context deadline exceeded").msg)
        try:
            ended = process.run(path, env, stdin, timeout=left, phase=waiting.DELEGATE)
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


def start_cause(path: str, error: OSError | ValueError) -> str:
    """Return the error text for a program that could not be started."""
    if isinstance(error, ValueError):          # a NUL byte in the path or the environment
        return f"fork/exec {path}: {posix.strerror(EINVAL).lower()}"
    if error.errno == EFBIG:
        return error.strerror or ""
    return f"fork/exec {path}: {posix.strerror(error.errno or 0).lower()}"


def read_failure(stdout: bytes, stderr: bytes, cause: str) -> CniError:
    """Return the CniError of a failed plugin. cause: how the plugin ended, the text in process.Finished."""
    if stdout:
        return read_error_document(stdout)
    if stderr:
        return CniError(0, f"netplugin failed: {quote_output(stderr)}: {cause}")
    return CniError(0, f"netplugin failed with no error message: {cause}")


def read_error_document(stdout: bytes) -> CniError:
    """Return the error document in `stdout` as a CniError. If the document is damaged, use the members that can be
    read."""
    try:
        document = json.read(stdout)
    except json.JsonError as e:
        return undecodable(stdout, e)
    if document is None:
        return CniError(0, "")
    if not isinstance(document, dict):
        return undecodable(
            stdout, f"json: cannot unmarshal {go_kind(document)} into Go value of type types.Error")
    found: dict[str, Any] = {"code": 0, "msg": "", "details": ""}
    wrong = ""
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


def undecodable(stdout: bytes, why: object, code: int = 0, details: str = "") -> CniError:
    return CniError(code, f"netplugin failed but error parsing its diagnostic message "
                          f"{quote_output(stdout)}: {why}", details)


def quote_output(data: bytes) -> str:
    """Return a plugin's output in quotes for an error text: at most MAX_SHOWN bytes, then the number of bytes left
    out."""
    text = json.quote(data[:MAX_SHOWN].decode("utf-8", "surrogateescape"))
    return text if len(data) <= MAX_SHOWN else f"{text} ({len(data) - MAX_SHOWN} bytes more)"


def is_code(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def go_kind(value: object) -> str:
    """Return the name that Go's JSON decoder prints for the type of a value."""
    if isinstance(value, bool):
        return "bool"
    for kind, word in ((str, "string"), (int, f"number {value}"), (float, "number"), (list, "array")):
        if isinstance(value, kind):
            return word
    return "object"


def read_add_output(stdout: bytes, config_version: str) -> dict[str, Any]:
    """Return the result that an ADD printed, as a dict in the shape of the result's own cniVersion.

    config_version: the configuration's cniVersion, "" for 0.1.0. The result's cniVersion may differ. Raises CniError 6,
    see result.create().
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
        # Only the exact spelling "cniVersion" counts here; create() would also read "CNIVersion".
        version = config_version or "0.1.0"
        document = {key: value for key, value in document.items() if key.lower() != "cniversion"}
        document["cniVersion"] = version
    return result.create(version, document)
