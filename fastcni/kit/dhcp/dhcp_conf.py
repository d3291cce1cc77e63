"""Read the keys of the plugin `dhcp`: which DHCP options the daemon sends and requests. Changes nothing."""

from __future__ import annotations

from fastcni.kit.dhcp.rpc import SOCKET_PATH
from fastcni.spec import ipam as ipam_conf
from fastcni.spec import json
from fastcni.spec.errors import INVALID_CONFIG, INVALID_ENVIRONMENT, CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.spec.config import Section

# Option codes of RFC 2132, RFC 3397 and RFC 3442
SUBNET_MASK, ROUTERS, DNS_SERVERS, HOST_NAME, DOMAIN_NAME, MTU = 1, 3, 6, 12, 15, 26
STATIC_ROUTES, CLIENT_ID, DOMAIN_SEARCH, CLASSLESS_ROUTES = 33, 61, 119, 121
# The reference plugin knows only the first six names
OPTION_NAMES = {
    "dhcp-client-identifier": CLIENT_ID, "subnet-mask": SUBNET_MASK, "routers": ROUTERS, "host-name": HOST_NAME,
    "user-class": 77, "vendor-class-identifier": 60, "domain-name-servers": DNS_SERVERS, "domain-name": DOMAIN_NAME,
    "domain-search": DOMAIN_SEARCH, "interface-mtu": MTU, "static-routes": STATIC_ROUTES,
    "classless-static-routes": CLASSLESS_ROUTES,
}
DEFAULT_REQUEST = (ROUTERS, SUBNET_MASK)
MAX_OPTION_BYTES = 255
MAX_CLIENT_ID_BYTES = 254
MAX_PRIORITY = 0xFFFFFFFF


class Keys:
    """The keys of a network. socket_path: the daemon's socket. provide: [(code, text, name in CNI_ARGS)] of the options
    to send. request: the codes to request. priority: the metric of each route, 0: the kernel's default."""

    __slots__ = ("priority", "provide", "request", "socket_path")
    socket_path: str
    provide: list[tuple[int, str, str]]
    request: tuple[int, ...]
    priority: int


def read_keys(conf: Section) -> Keys:
    """Read all keys. Raises CniError 7."""
    ipam = ipam_conf.ipam_section(conf)
    keys = Keys()
    keys.socket_path = read_socket_path(conf)
    keys.priority = ipam.integer("priority", low=0, high=MAX_PRIORITY)
    keys.provide = [(read_option(one), one.text("value"), one.text("fromArg")) for one in ipam.sections("provide")]
    for code, text, _ in keys.provide:
        check_length(code, text, "")
    requested = [(read_option(one), one.flag("skipDefault")) for one in ipam.sections("request")]
    codes = [code for code, _ in requested]
    if not any(skip for _, skip in requested):
        codes += DEFAULT_REQUEST
    keys.request = tuple(dict.fromkeys(codes))
    return keys


def read_socket_path(conf: Section) -> str:
    """Return the key daemonSocketPath. DEL and GC read only this key."""
    return conf.section("ipam").text("daemonSocketPath") or SOCKET_PATH


def read_option(option: Section) -> int:
    """Return the code in the key `option`: a name, or a number from 0 to 255 as text. Raises CniError 7."""
    name = option.text("option")
    if name in OPTION_NAMES:
        return OPTION_NAMES[name]
    digits = name.isascii() and name.isdigit()
    if digits and len(name.lstrip("0")) <= 3 and int(name) <= 255:
        return int(name)
    why = "value out of range" if digits else "invalid syntax"
    quoted = json.quote(name[:80])
    raise CniError(INVALID_CONFIG, f"Can not parse option {quoted}: Can not parse option: strconv.ParseUint: "
                   f"parsing {quoted}: {why}", f"a number, or one of {', '.join(OPTION_NAMES)}")


def provided(keys: Keys, cni_args: str) -> dict[int, bytes]:
    """Return the options to send, {code: content}. A value in CNI_ARGS has precedence over the key `value`. Ignore
    parts of CNI_ARGS without "=". Raises CniError 4 and 7."""
    args = dict(pair.partition("=")[::2] for pair in cni_args.split(";") if "=" in pair)
    found = {}
    for code, text, name in keys.provide:
        if name in args:
            check_length(code, args[name], f" from CNI_ARGS {json.quote(name)}", INVALID_ENVIRONMENT)
            found[code] = encoded(args[name])
        elif text:
            found[code] = encoded(text)
    return found


def check_length(code: int, text: str, source: str, error: int = INVALID_CONFIG) -> None:
    if len(encoded(text)) > MAX_OPTION_BYTES:
        raise CniError(error, f'value too long for option "{code}"{source}: {json.quote(text[:80])}',
                       f"at most {MAX_OPTION_BYTES} bytes")


def encoded(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def client_id(container_id: str, network: str, ifname: str) -> bytes:
    """Return the content of option 61, a 0 byte and the text that the reference plugin sends. It is also the key of the
    lease."""
    return b"\0" + encoded(f"{container_id}/{network}/{ifname}")[:MAX_CLIENT_ID_BYTES]
