"""What pods of a network have in common: their configuration, decoded and read by their plugins once."""

import orjson

from fastcni.handle import check_conf, decode_conf, read_name_and_version
from fastcni.spec.config import Section

MOST = 256                      # configurations; the oldest is forgotten
LONGEST = 16 << 10              # bytes of one


class Configurations:
    """For handle(): stdin as a Section. Of one with a prevResult, which is the pod's own, the rest is shared."""

    def __init__(self):
        self.known = {}                 # stdin, or a configuration without its prevResult -> Section; the oldest first

    def __call__(self, stdin):
        if found := self.known.get(stdin):
            return found
        section = Section(decode_conf(stdin))
        if len(stdin) > LONGEST:
            return check_conf(section)
        if "prevResult" not in section.values:
            return self._keep(stdin, check_conf(section))
        rest = section.values.copy()
        del rest["prevResult"]
        try:
            key = orjson.dumps(rest)
        except TypeError:               # a number or a text that orjson does not print
            return check_conf(section)
        section.common = self.known.get(key) or self._keep(key, check_conf(Section(rest)))
        return section

    def read(self, stdin):
        """(the network's name, decode). decode(stdin) is for handle(): it returns what is decoded here, or raises what
        is wrong with it; then the name is ""."""
        try:
            section = self(stdin)
        except Exception as e:          # handle() makes the answer of it, in its order of checks
            return "", raising(e)
        return section.once(read_name_and_version)[0], lambda stdin: section

    def _keep(self, key, section):
        self.known[key] = section
        if len(self.known) > MOST:
            self.known.pop(next(iter(self.known)), None)
        return section


def raising(error):
    """A function that raises `error`, whatever it is given."""
    def decode(stdin):
        raise error
    return decode
