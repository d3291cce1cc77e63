"""The capability portMappings: which ports of the host go to which ports of the pod."""

from fastcni.spec import address as addresses
from fastcni.spec import errors
from fastcni.spec.errors import CniError

PROTOCOLS = {"tcp": 6, "udp": 17, "sctp": 132}         # IPPROTO_*
MOST = 65536                    # mappings of one pod


class Mapping:
    """protocol (a key of PROTOCOLS), host_port, container_port, host_ip (packed; b"" for every address of the host),
    lengths (of the addresses that it is for: 4, 16 or both)."""

    __slots__ = ("protocol", "host_port", "container_port", "host_ip", "lengths")

    def __init__(self, protocol, host_port, container_port, host_ip, lengths):
        self.protocol, self.host_port, self.container_port = protocol, host_port, container_port
        self.host_ip, self.lengths = host_ip, lengths

    def __str__(self):
        if not self.host_ip:
            return f"{self.host_port}/{self.protocol}"
        text = addresses.ip_text(self.host_ip)
        return f"{f'[{text}]' if ':' in text else text}:{self.host_port}/{self.protocol}"


def read(conf):
    """[Mapping] of runtimeConfig.portMappings; a range is as many of them as it has ports. Raises CniError 7."""
    found = []
    for section in conf.section("runtimeConfig").sections("portMappings"):
        container_port, host_port = (read_port(section, key) for key in ("containerPort", "hostPort"))
        count = section.integer("range", default=1, low=1, high=65536 - max(container_port, host_port))
        if len(found) + count > MOST:
            raise CniError(errors.INVALID_CONFIG, f"runtimeConfig.portMappings: more than {MOST} ports")
        protocol, (host_ip, lengths) = read_protocol(section), read_host_ip(section)
        found += [Mapping(protocol, host_port + n, container_port + n, host_ip, lengths) for n in range(count)]
    check_distinct(found)
    return found


def read_port(section, key):
    port = section.integer(key)
    if not 0 < port < 65536:
        words = {"hostPort": "host port", "containerPort": "container port"}[key]
        raise CniError(errors.INVALID_CONFIG, f"Invalid {words} number: {port}",
                       f"{section.path(key)} is from 1 to 65535")
    return port


def read_protocol(section):
    text = section.text("protocol")
    if text.lower() not in PROTOCOLS:
        raise section.wrong("protocol", f'unknown protocol "{text[:80]}"; there are {", ".join(PROTOCOLS)}')
    return text.lower()


def read_host_ip(section):
    """(packed, lengths): 0.0.0.0 and :: say which family, and stand for each of its addresses."""
    packed = section.ip("hostIP")
    if packed is None:
        return b"", (4, 16)
    return packed if any(packed) else b"", (len(packed),)


def check_distinct(mappings):
    """As bind(2): a port of one address is also one of every address. Raises CniError 7."""
    taken = {}
    for mapping in mappings:
        for length in mapping.lengths:
            others = taken.setdefault((mapping.protocol, mapping.host_port, length), {})
            other = others.get(mapping.host_ip) or others.get(b"") or (not mapping.host_ip and first(others))
            if other:
                raise CniError(errors.INVALID_CONFIG, f"host port {mapping} is mapped twice",
                               f"runtimeConfig.portMappings has {other} too")
            others[mapping.host_ip] = mapping


def first(found):
    return next(iter(found.values()), None)
