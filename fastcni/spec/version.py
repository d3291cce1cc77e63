"""Versions of the CNI spec: which there are, their order, and what a plugin says it supports."""

from fastcni.spec import json
from fastcni.spec.errors import INCOMPATIBLE_VERSION, CniError

ALL = ("0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0")
CURRENT = ALL[-1]
OLDEST = ALL[0]             # what a document without a version means

PARTS = ("major", "minor", "micro")
DIGITS = 18                 # more of them, and Go's int may overflow


def parse(text):
    """The version as (major, minor, micro); parts left out are 0, and "" is 0.1.0. Raises ValueError."""
    parts = (text or OLDEST).split(".")
    if len(parts) > len(PARTS):
        raise ValueError(f"invalid version {json.quote(text)}: too many parts")
    numbers = [0, 0, 0]
    for i, part in enumerate(parts):
        digits = part[1:] if part[:1] in ("+", "-") else part
        if not (digits.isascii() and digits.isdigit()) or len(digits) > DIGITS:
            why = "value out of range" if digits.isascii() and digits.isdigit() else "invalid syntax"
            shown = json.quote(part)
            raise ValueError(f"failed to convert {PARTS[i]} version part {shown}: "
                             f"strconv.Atoi: parsing {shown}: {why}")
        numbers[i] = int(part)
    return tuple(numbers)


def at_least(version, since):
    """Whether `version` is `since` or later. Raises ValueError where one of them is no version."""
    if version in ALL and since in ALL:
        return ALL.index(version) >= ALL.index(since)
    return parse(version) >= parse(since)


def starting_from(version):
    """The known versions from this one on. Raises ValueError for one that is not known."""
    return ALL[ALL.index(version):]


def check_supported(version, supported):
    """Raises CniError 1 unless the plugin lists exactly this version."""
    if version not in supported:
        listed = " ".join(map(json.quote, supported))
        raise CniError(INCOMPATIBLE_VERSION, "incompatible CNI versions",
                       f"config is {json.quote(version)}, plugin supports [{listed}]")


def version_reply(supported):
    """What VERSION prints, a line of JSON."""
    return json.write({"cniVersion": CURRENT, "supportedVersions": supported}) + b"\n"


def read_version_reply(data):
    """The versions that a plugin's answer to VERSION lists, unchecked. Raises ValueError."""
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
