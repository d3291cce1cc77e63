"""A pod with rules in the host's firewall, and readers of its state, for tests of restore and replay."""

from lab.node import elements, rules, run

LONG_ENOUGH = 0.3               # seconds: an unwanted event would have happened by then


class Log:
    """The lines of a logger, as a list of (event, values)."""

    def __init__(self):
        self.lines = []

    def warning(self, event, **values):
        self.lines.append((event, values))

    info = error = exception = warning


def ruleset():
    """Return all items of the ruleset, sorted."""
    return sorted(map(str, rules()))


def nft(args):
    run("nft", *args.split())


def restored(server):
    return server.lines("event=rules_restored")


def add(server, net, pod, *mappings):
    """Add a pod by both plugins. Return portmap's configuration, for DEL."""
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
