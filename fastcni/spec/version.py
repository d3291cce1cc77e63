"""List and compare the versions of the CNI spec, and answer the VERSION command."""

from __future__ import annotations

from fastcni.spec import json
from fastcni.spec.errors import INCOMPATIBLE_VERSION, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

ALL = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
CURRENT = ALL[-1]
OLDEST = ALL[0]             # the version of a document without cniVersion

PARTS = ("major", "minor", "micro")
MAX_DIGITS = 18             # digits of a number; with more digits, Go's int may overflow


def parse(text: str) -> tuple[int, int, int]:
    """Return the version as (major, minor, micro). Missing parts are 0, and "" is 0.1.0. Raises ValueError."""
    parts = (text or OLDEST).split(".")
    if len(parts) > len(PARTS):
        raise ValueError(f"invalid version {json.quote(text)}: too many parts")
    numbers = [0, 0, 0]
    for i, part in enumerate(parts):
        digits = part[1:] if part[:1] in ("+", "-") else part
        if not (digits.isascii() and digits.isdigit()) or len(digits) > MAX_DIGITS:
            why = "value out of range" if digits.isascii() and digits.isdigit() else "invalid syntax"
            shown = json.quote(part)
            raise ValueError(f"failed to convert {PARTS[i]} version part {shown}: "
                             f"strconv.Atoi: parsing {shown}: {why}")
        numbers[i] = int(part)
    major, minor, micro = numbers
    return major, minor, micro


def at_least(version: str, since: str) -> bool:
    """Return whether `version` is equal to `since` or later. Raises ValueError if one of them is not a version."""
    if version in ALL and since in ALL:
        return ALL.index(version) >= ALL.index(since)
    return parse(version) >= parse(since)


def starting_from(version: str) -> tuple[str, ...]:
    """Return the known versions from `version` on. Raises ValueError for an unknown version."""
    return ALL[ALL.index(version):]


def check_supported(version: str, supported: Sequence[str]) -> None:
    """Raise CniError 1 unless the plugin supports this version."""
    if version not in supported:
        listed = " ".join(map(json.quote, supported))
        raise CniError(INCOMPATIBLE_VERSION, "incompatible CNI versions",
                       f"config is {json.quote(version)}, plugin supports [{listed}]")


def version_reply(supported: Sequence[str]) -> bytes:
    """Return the answer to VERSION: a line of JSON."""
    return json.write({"cniVersion": CURRENT, "supportedVersions": supported}) + b"\n"


def read_version_reply(data: bytes) -> list[str]:
    """Return the versions in a plugin's answer to VERSION. The function does not check them. Raises ValueError."""
    try:
        document = json.read(data)
    except json.JsonError as e:
        raise ValueError(f"decoding version info: {e}") from None
    if type(document) not in (dict, type(None)):
        raise ValueError("decoding version info: expected an object")
    reply = {key.lower(): value for key, value in (document or {}).items() if value is not None}
    version, supported = reply.get("cniversion", ""), reply.get("supportedversions", [])
    if type(version) is not str:
        raise ValueError("decoding version info: cniVersion: expected a string")
    if type(supported) is not list or not all(type(item) is str for item in supported):
        raise ValueError("decoding version info: supportedVersions: expected a list of strings")
    if not version:
        raise ValueError("decoding version info: missing field cniVersion")
    if not supported:
        if version != "0.2.0":
            raise ValueError("decoding version info: missing field supportedVersions")
        return list(ALL[:2])
    return supported
