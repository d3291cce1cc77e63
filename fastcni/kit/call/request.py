"""One CNI request as a value: what the variables and stdin say, and descriptors of what they name."""

import posix
from _thread import start_new_thread

from fastcni._system import close_file, reopen_namespace
from fastcni.kernel import netns
from fastcni.kit.call.host import Host
from fastcni.spec import errors, json
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError


class Request:
    """What a plugin function is given.

    plugin        the CNI type that was called
    command       "ADD", "DEL", "CHECK", "GC" or "STATUS"
    container_id, ifname, netns, args, path
                  CNI_CONTAINERID, CNI_IFNAME, CNI_NETNS, CNI_ARGS, CNI_PATH as text, "" where absent
    env           the whole environment, for delegates that are executed
    conf          a Section over the stdin object; stdin: its bytes as received
    name, version the network's name and its cniVersion ("0.1.0" where absent)
    fds           descriptors from the door: {"netns": fd} where CNI_NETNS is open already
    host          the caller's side: sockets, and what is known there
    opened        what is closed with the request besides: sockets in the pod's namespace
    warnings      lines for stderr, see warn()
    released      for GC: what was released, see release()
    defer         defer(fn, *args) runs what the answer need not wait for
    in_process    there are no launchers: delegates in fastcni's own table are called without looking in CNI_PATH
    """

    def __init__(self, *, plugin="", command="", container_id="", netns="", ifname="", args="", path="", env=None,
                 conf=None, stdin=b"{}", name="", version="0.1.0", fds=None, host=None, defer=None, in_process=False):
        self.plugin, self.command = plugin, command
        self.container_id, self.netns, self.ifname, self.args, self.path = container_id, netns, ifname, args, path
        self.env = env or {}
        self.conf = conf if isinstance(conf, Section) else Section(conf or {})
        self.stdin = stdin
        self.name, self.version = name, version
        self.fds = {} if fds is None else fds
        self.host, self.own_host = host or Host(), host is None
        self.opened = []
        self.warnings = []
        self.released = []
        self.defer = defer or start_new_thread_call
        self.in_process = in_process

    def delegate(self, plugin, conf=None):
        """The same request for another plugin type, as a delegate is called (spec section 4); with a configuration of
        its own, a dict, where it is not to see this one's."""
        other = Request.__new__(Request)
        other.__dict__ = self.__dict__.copy()
        other.plugin = plugin
        if conf is not None:
            other.conf, other.stdin, other.version = Section(conf), json.write(conf), conf.get("cniVersion", "0.1.0")
        return other

    def warn(self, text):
        """A line for stderr; the answer is not changed by it."""
        self.warnings.append(text)

    def release(self, what, of=""):
        """For GC: note that `what` was released, and which attachment had it, where that is known."""
        self.released.append({"plugin": self.plugin, "what": what, "of": of})

    @property
    def valid_attachments(self):
        """{(containerID, ifname)} of cni.dev/valid-attachments (spec 1.1.0, GC)."""
        found = set()
        for item in self.conf.sections("cni.dev/valid-attachments"):
            found.add((item.text("containerID"), item.text("ifname")))
        return found

    def open_netns(self):
        """The descriptor of CNI_NETNS, opened once and closed by the caller of the plugin. Raises CniError 8."""
        if "netns" not in self.fds:
            try:
                self.fds["netns"] = netns.open_path(self.netns)
            except netns.NotNamespace:
                raise CniError(errors.INVALID_NETNS, f'failed to open netns "{self.netns}": unknown FS magic on '
                               f'"{self.netns}": not a network namespace') from None
            except (OSError, ValueError) as e:
                why = posix.strerror(e.errno).lower() if isinstance(e, OSError) else str(e)
                raise CniError(errors.INVALID_NETNS, f'failed to open netns "{self.netns}": failed to Statfs '
                               f'"{self.netns}": {why}') from None
        return self.fds["netns"]

    def netns_gone(self):
        """For DEL: CNI_NETNS is empty, its path is missing, or only the empty mount point of it is left."""
        if "netns" in self.fds:
            return False
        if not self.netns:
            return True
        try:
            self.fds["netns"] = netns.open_path(self.netns)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except netns.NotNamespace:
            self.warn(f'"{self.netns}" is not a network namespace any more; taken as gone')
            return True
        except (OSError, ValueError):
            self.open_netns()       # raises, in the words that clients know
        return False

    def leave_mount(self):
        """Release the mount of CNI_NETNS before an ADD is answered. The caller may unmount it at once, and the kernel
        refuses that (EBUSY) while a descriptor opened by this mount is open. A rollback can still use the namespace."""
        if "netns" in self.fds:
            if not self.opened:                     # no step went into the pod
                close_file(self.fds.pop("netns"))
                return
            try:
                reopen_namespace(self.fds["netns"], self.opened[0].fileno())
            except OSError:
                return                              # this one has to do for the rollback

    def close(self):
        """Close what was opened; a descriptor keeps a dead pod's namespace alive. May be called again."""
        while self.opened:
            self.opened.pop().close()
        while self.fds:
            close_file(self.fds.popitem()[1])
        if self.own_host:
            self.host.close(self.defer)


def start_new_thread_call(fn, *args):
    """Defer fn to a thread, in a long-lived process. If no thread can be started, call it here."""
    try:
        start_new_thread(fn, args)
    except RuntimeError:
        fn(*args)
