"""Read, convert and encode results of ADD in each version of the spec.

A result is a plain dict in the shape of its cniVersion. There are three shapes, or families:

    0.1.0 0.2.0         ip4, ip6, dns; routes are members of ip4 and ip6
    0.3.0 0.3.1 0.4.0   interfaces, ips (with their IP version), routes, dns
    1.0.0 1.1.0         the same members; ips without their IP version, interfaces with mtu, socketPath, pciID

Plugins read and return only the newest shape.
"""

from __future__ import annotations

from fastcni.spec import address, json
from fastcni.spec.config import INT64, shown
from fastcni.spec.errors import DECODING_FAILURE, INTERNAL, CniError
from fastcni.spec.version import CURRENT, OLDEST

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from fastcni.spec.config import Section

    Result = dict[str, Any]

UNSET_CIDR = "<nil>"            # Go's text for an absent address


def ips_of(result: Result) -> list[tuple[bytes, int]]:
    """Return [(packed, prefix length)] of the addresses of a result in the newest shape."""
    return [address.read_cidr(ip["address"]) for ip in result.get("ips", ())]


def packed_ips(result: Result) -> list[bytes]:
    """Return the packed addresses of a result in the newest shape."""
    return [packed for packed, _ in ips_of(result)]


def host_interfaces(result: Mapping[str, Any]) -> list[str]:
    """Return the names of a result's interfaces on the host, in the result's order."""
    return [entry["name"] for entry in result.get("interfaces", ()) if not entry.get("sandbox")]


# The kinds of values. Each function returns the canonical form, or raises TypeError for a wrong JSON type, ValueError
# for a bad value.

def text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError(f"expected a string, got {shown(value)}")
    return value


def integer(value: Any) -> int:
    if type(value) is not int or not -INT64 <= value < INT64:
        raise TypeError(f"expected an integer, got {shown(value)}")
    return value


def index(value: Any) -> int:
    """Check an integer that encode() prints even if it is 0."""
    return integer(value)


def real(value: Any) -> int:
    """Check an integer. The reference decodes it into a generic map, so encode() prints it as a float64."""
    return integer(value)


def real_index(value: Any) -> int:
    """Check an integer that encode() prints even if it is 0, and as a float64, like real()."""
    return integer(value)


def cidr(value: Any) -> str:
    # null is an error only for this kind; for other kinds, read() treats null as an absent key
    if value is None:
        raise ValueError("invalid CIDR address: ")
    return address.cidr_text(*address.read_cidr(text(value)))


def ip(value: Any) -> str:
    return address.ip_text(address.read_ip(value)) if text(value) else ""


class Shape:
    """The members of an object, as rows of (key, kind, the value that is printed if the key is unset; None: nothing).
    The same table validates, orders and prints. As a kind, a Shape stands for an object, [kind] for a list.

    rows    {key: row}, in the order of printing
    folded  {key in lower case: row}, because keys are case-insensitive
    unset   {key: the value that is printed if the key is unset}
    """

    __slots__ = ("folded", "rows", "unset")

    def __init__(self, *rows: Any) -> None:
        self.rows = {row[0]: row for row in rows}
        self.folded = {row[0].lower(): row for row in rows}
        self.unset = {key: unset for key, _, unset in rows if unset is not None}


UNKNOWN = "", None, None       # the row for keys that a shape does not have
ZERO_COUNTS, REALS = (index, real_index), (real, real_index)
DNS = Shape(("nameservers", [text], None), ("domain", text, None), ("search", [text], None), ("options", [text], None))
DNS_SORTED = Shape(*sorted(DNS.rows.values()))
ROUTE = Shape(("dst", cidr, UNSET_CIDR), ("gw", ip, None), ("mtu", integer, None), ("advmss", integer, None),
              ("priority", integer, None), ("table", index, None), ("scope", index, None))

IP_OF_A = Shape(("ip", cidr, UNSET_CIDR), ("gateway", ip, None), ("routes", [ROUTE], None))
SHAPE_A = Shape(("cniVersion", text, None), ("ip4", IP_OF_A, None), ("ip6", IP_OF_A, None), ("dns", DNS, {}))

INTERFACE_B = Shape(("name", text, ""), ("mac", text, None), ("sandbox", text, None))
IP_OF_B = Shape(("version", text, ""), ("interface", index, None), ("address", cidr, UNSET_CIDR), ("gateway", ip, None))
SHAPE_B = Shape(("cniVersion", text, None), ("interfaces", [INTERFACE_B], None), ("ips", [IP_OF_B], None),
                ("routes", [ROUTE], None), ("dns", DNS, {}))

INTERFACE_C = Shape(("mac", text, None), ("mtu", real, None), ("name", text, ""), ("pciID", text, None),
                    ("sandbox", text, None), ("socketPath", text, None))
IP_OF_C = Shape(("address", cidr, UNSET_CIDR), ("gateway", ip, None), ("interface", real_index, None))
ROUTE_C = Shape(("advmss", real, None), ("dst", cidr, UNSET_CIDR), ("gw", ip, None), ("mtu", real, None),
                ("priority", real, None), ("scope", real_index, None), ("table", real_index, None))
SHAPE_C = Shape(("cniVersion", text, None), ("dns", DNS_SORTED, None), ("interfaces", [INTERFACE_C], None),
                ("ips", [IP_OF_C], None), ("routes", [ROUTE_C], None))

SHAPES = (SHAPE_A, SHAPE_B, SHAPE_C)
VERSIONS = (("", "0.1.0", "0.2.0"), ("0.3.0", "0.3.1", "0.4.0"), ("1.0.0", "1.1.0"))
FAMILY = {version: number for number, versions in enumerate(VERSIONS) for version in versions}


def create(version: str, document: Any) -> Result:
    """Check a decoded result and return its canonical form. Keys are case-insensitive; unknown keys are dropped.

    version: the configuration's version. The document's own version must be of the same family. Raises CniError 6.
    """
    if version not in FAMILY:
        raise CniError(DECODING_FAILURE, f"unsupported CNI result version {json.quote(version)}")
    family = FAMILY[version]
    result = read({} if document is None else document, SHAPES[family])
    own = result.get("cniVersion", "")
    if own not in VERSIONS[family]:
        listed = " ".join(VERSIONS[family])
        raise CniError(DECODING_FAILURE,
                       f"result type supports [{listed}] but unmarshalled CNIVersion is {json.quote(own)}")
    return arrange({**result, "cniVersion": own or OLDEST}, SHAPES[family])


def create_any(document: Any) -> Result:
    """Do create() with the version that the document names, or 0.1.0 for a document without a version."""
    try:
        version = read({} if document is None else document, Shape(SHAPE_A.rows["cniVersion"])).get("cniVersion", "")
    except CniError as e:
        raise CniError(e.code, f"decoding version from network config: {e}") from None
    return create(version or OLDEST, document)


def read(value: Any, kind: Any, where: str = "result") -> Any:
    """Check a value against its kind, and return the canonical form. An object keeps only the members that the rows of
    its shape name. Raises CniError 6."""
    try:
        if type(kind) is Shape:
            return read_object(value, kind, where)
        if type(kind) is list:
            return read_list(value, kind[0], where)
        return kind(value)
    except TypeError as e:
        raise CniError(DECODING_FAILURE, f"{where}: {e}") from None
    except ValueError as e:         # the ValueError has the reference's text
        raise CniError(DECODING_FAILURE, str(e), where) from None


def read_object(value: Any, shape: Shape, where: str) -> Result:
    if type(value) is not dict:
        raise TypeError(f"expected an object, got {shown(value)}")
    found = {}
    for key, item in value.items():
        name, kind, _ = shape.folded.get(key.lower(), UNKNOWN)
        if kind and (item is not None or kind is cidr):
            found[name] = read(item, kind, f"{where}.{name}")
    return found


def read_list(value: Any, kind: Any, where: str) -> list[Any]:
    if type(value) is not list:
        raise TypeError(f"expected a list, got {shown(value)}")
    return [read("" if item is None and kind is text else item, kind, f"{where}[{i}]")
            for i, item in enumerate(value)]


def arrange(values: Result, shape: Shape, printed: bool = False) -> Result:
    """Return a result, or a part of a result, with its keys in order. Unset members are left out or have the shape's
    value. printed: convert the numbers that are printed as floats."""
    found, rows, unset = {}, shape.rows, shape.unset
    for key in rows:
        if key in values:
            value = values[key]
            if not value or type(value) is not str:
                value = arrange_value(value, rows[key], printed)
                if value is None:
                    continue
            found[key] = value
        elif key in unset:
            found[key] = unset[key]
    return found


def arrange_value(value: Any, row: Any, printed: bool) -> Any:
    """Do arrange() for one member, given its row. None: the member is left out."""
    _, kind, unset = row
    if not value:
        return value if value is not None and kind in ZERO_COUNTS else unset
    if type(kind) is Shape:
        return arrange(value, kind, printed) or unset
    if type(kind) is list and type(shape := kind[0]) is Shape:
        found = []
        for item in value:      # for so few items a comprehension takes longer
            found.append(arrange(item, shape, printed))
        return found
    return json.normalize(value) if printed and kind in REALS else value


def encode(result: Result, indent: int = 4) -> bytes:
    """Encode the result as a plugin prints it: keys in the order of its family, no newline at the end."""
    return json.write(printed(result), indent)


def printed(result: Result) -> Result:
    """Return the result as encode() prints it, with keys in the order of its family; see arrange()."""
    return arrange(result, SHAPES[FAMILY[result.get("cniVersion") or CURRENT]], printed=True)


def to_version(result: Result, version: str) -> Result:
    """Convert a result to the shape of another version. Return the same object if the result has that version.

    Raises CniError 999 for an unknown version, and for a result without addresses if `version` is 0.2.0 or older,
    because that shape cannot hold such a result.
    """
    own, version = result.get("cniVersion") or CURRENT, version or OLDEST
    if own == version:
        return result
    if own not in FAMILY or version not in FAMILY:
        raise CniError(INTERNAL, f"no converter for CNI result version {own} to {version}")
    if (have := FAMILY[own]) != (want := FAMILY[version]):
        for step in UP[have:want] + DOWN[want:have][::-1]:
            result = step(result)
    return {**result, "cniVersion": version}


def split_ip4_and_ip6(result: Result) -> Result:
    """Convert 0.2.0 to 0.3.0: addresses and routes become lists."""
    ips: list[Result] = []
    routes: list[Result] = []
    for key, number in (("ip4", "4"), ("ip6", "6")):
        if result.get(key):
            one = dict(result[key])
            routes += one.pop("routes", ())
            ips.append({"version": number, "address": one.pop("ip", UNSET_CIDR), **one})
    return {"ips": ips, "routes": routes, "dns": result.get("dns", {})}


def drop_ip_version(result: Result) -> Result:
    """Convert 0.4.0 to 1.0.0."""
    ips = [{key: value for key, value in one.items() if key != "version"} for one in result.get("ips", ())]
    return {**result, "ips": ips}


def add_ip_version(result: Result) -> Result:
    """Convert 1.0.0 to 0.4.0. Drop the members of interfaces that 1.1.0 added, and keep the members of routes that
    1.1.0 added."""
    ips = [{**one, "version": "4" if is_ip4(one["address"]) else "6"} for one in result.get("ips", ())]
    interfaces = [{key: one[key] for key in INTERFACE_B.rows if key in one}
                  for one in result.get("interfaces", ())]
    return {**result, "ips": ips, "interfaces": interfaces}


def fold_into_ip4_and_ip6(result: Result) -> Result:
    """Convert 0.3.0 to 0.2.0: keep the first address of each family, and the routes of families that have an
    address."""
    found: Result = {}
    for one in result.get("ips", ()):
        key = {"4": "ip4", "6": "ip6"}.get(one.get("version"))
        if key and key not in found:
            found[key] = {"ip": one["address"], "gateway": one.get("gateway", ""), "routes": []}
    if not found:
        raise CniError(INTERNAL, "cannot convert: no valid IP addresses")
    for route in result.get("routes", ()):
        key = "ip4" if is_ip4(route["dst"]) else "ip6"
        if key in found:
            found[key]["routes"].append({key: route[key] for key in ("dst", "gw") if key in route})
    return {**found, "dns": result.get("dns", {})}


def is_ip4(cidr_text: str) -> bool:
    """Return whether a CIDR in canonical form is IPv4. UNSET_CIDR is treated as IPv6, as in the reference."""
    return "." in cidr_text and ":" not in cidr_text


# UP converts from each family to the next newer family, DOWN to the next older family.
UP = (split_ip4_and_ip6, drop_ip_version)
DOWN = (fold_into_ip4_and_ip6, add_ip_version)


def check_set(result: Result) -> Result:
    """Check and return a result in the newest shape. Raises CniError 6 for an entry of ips without an address, or an
    entry of routes without a destination."""
    for key, member in (("ips", "address"), ("routes", "dst")):
        for i, entry in enumerate(result.get(key, ())):
            if entry.get(member, UNSET_CIDR) == UNSET_CIDR:
                raise CniError(DECODING_FAILURE, f"result.{key}[{i}] has no {member}")
    return result


def read_prev_result(section: Section, config_version: str) -> Result | None:
    """Return the prevResult of a configuration in the 1.1.0 shape, None if the key is absent.

    A prevResult without a version has the configuration's version. Raises CniError 6, also for a version of another
    family, and CniError 7 if prevResult is not an object.
    """
    if not section.has("prevResult"):
        return None
    values = {"CNIVersion": config_version, **section.section("prevResult").values}
    try:
        # Sort the keys like the reference's map, so that cniVersion comes after CNIVersion and overrides its value.
        return check_set(to_version(create(config_version, dict(sorted(values.items()))), CURRENT))
    except CniError as e:
        raise CniError(e.code, f"could not parse prevResult: {e.msg}", e.details) from None
