"""A pod with rules in the host's firewall, and functions that read its state. The tests of restored rules and of the
replay use them."""

from lab.node import elements, rules, run

LONG_ENOUGH = 0.3               # seconds, in which an unwanted event would have happened


class Log:
    """A logger that keeps its lines as a list of (event, values), and the events of the level error."""

    def __init__(self):
        self.lines, self.errors = [], []

    def warning(self, event, **values):
        self.lines.append((event, values))

    info = exception = warning

    def error(self, event, **values):
        self.errors.append(event)
        self.warning(event, **values)


def ruleset():
    """Return all items of the ruleset, sorted."""
    return sorted(map(str, rules()))


def nft(args):
    run("nft", *args.split())


def restored(server):
    return server.lines("event=rules_restored")


def add(server, net, pod, *mappings):
    """Make a pod's ADD with both plugins of the chain. Return portmap's configuration, for the DEL."""
    conf = net.portmap(*mappings, prevResult=server.ok("ADD", net.first, pod))
    server.ok("ADD", conf, pod)
    return conf


def delete(server, net, pod, conf):
    server.ok("DEL", conf, pod)
    server.ok("DEL", {**net.first, "prevResult": conf["prevResult"]}, pod)


def all_elements():
    return [each for family, names in (("inet", ("pods4", "pods6", "hostports4", "hostports6", "hairpins4",
                                                 "hairpins6", "hostport-pods")),
                                       ("bridge", ("guarded", "allowed", "bound", "bound4", "bound6")))
            for name in names for each in elements(name, family)]
