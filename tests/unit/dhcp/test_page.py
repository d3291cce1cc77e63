"""docs/dhcp.md names only keys, options, flags and log events that exist."""

import re
from pathlib import Path

from fastcni.dhcp.flags import USAGE, Flags
from fastcni.kit.dhcp import dhcp_conf

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "dhcp.md").read_text(encoding="utf-8")


def first_column(header):
    """Return the names in the first column of the table whose header is `header`."""
    rows = PAGE.partition(f"| {header} |")[2].partition("\n\n")[0].splitlines()[2:]
    return {name for row in rows for name in re.findall(r"`-?(\w+)[^`]*`", row.split("|")[1])}


def test_the_page_has_each_flag_and_its_default():
    flags = vars(Flags())
    assert first_column("flag") == set(flags) == set(re.findall(r"^  -(\w+)", USAGE, re.MULTILINE))
    assert flags["socketpath"] in PAGE and flags["statedir"] in PAGE


def test_the_page_has_each_key_and_option_name():
    assert first_column("key") == {"daemonSocketPath", "request", "provide", "priority"}
    assert [name for name in dhcp_conf.OPTION_NAMES if f"`{name}`" not in PAGE] == []


def test_the_page_has_each_event_of_the_log():
    sources = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "fastcni/dhcp").glob("*.py"))
    logged = set(re.findall(r'log\.(?:info|warning|error|exception)\(\s*"(\w+)"', sources)) | {"lease_acquired",
                                                                                             "lease_renewed"}
    assert first_column("event") == logged
