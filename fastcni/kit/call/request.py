"""Define Request: the variables and the stdin of a CNI request, and descriptors of its network namespaces. Define
Reply, the answer."""

from __future__ import annotations

from fastcni._system import close_file, namespace_of
from fastcni.kernel import netns
from fastcni.spec import config, errors, json, version
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from fastcni.kernel.wire import Socket
    from fastcni.kit.call.mode import Mode

MAX_STDIN_BYTES = 32 << 20      # enough for a GC that names 200,000 valid attachments
# The limit of the values in a configuration. A list or an object takes 60 bytes of memory or more, but only two bytes
# of text
MAX_VALUES = 1 << 20


class Reply:
    """The answer to a request: the exit status, the bytes for stdout, the bytes for stderr."""

    __slots__ = ("status", "stdout", "stderr")

    def __init__(self, status: int, stdout: bytes = b"", stderr: bytes = b"") -> None:
        self.status, self.stdout, self.stderr = status, stdout, stderr


class Request:
    """A CNI request, the argument of a plugin's functions.

    mode          the Mode: sockets and cached state of the caller's namespace, see kit.call.mode
    plugin        the CNI type that was called
    command       "ADD", "DEL", "CHECK", "GC" or "STATUS"
    container_id, ifname, netns, args, path
                  CNI_CONTAINERID, CNI_IFNAME, CNI_NETNS, CNI_ARGS, CNI_PATH as text, "" where absent
    env           the whole environment, for delegates that are executed
    conf          a Section over the object in stdin; stdin: the bytes as received
    name, version the network's name and its cniVersion ("0.1.0" where absent)
    fds           the open descriptors that close() closes: "netns" of CNI_NETNS, "home" of the caller's namespace
    opened        sockets in the pod's namespace, closed with the request
    warnings      lines for stderr, see warn()
    links         links (index, name) of the host to be deleted, see delete_links(); None: delete_links() deletes them
                  immediately
    released      for GC: the objects that GC released, see release()
    found_own     whether the caller has already found fastcni's launcher for `plugin` in CNI_PATH
    caller_listens  whether the caller listens on the host ports of portMappings, so that no other process can do so
    prefers_own   whether a delegate named like a plugin of fastcni runs fastcni's code, even if CNI_PATH has another
                  file of that name
    """

    links: list[tuple[int, str]] | None = None
    found_own = prefers_own = caller_listens = False
    _hashes = ""

    def __init__(self, mode: Mode, *, plugin: str = "", command: str = "", container_id: str = "", netns: str = "",
                 ifname: str = "", args: str = "", path: str = "", env: Mapping[str, str] | None = None,
                 conf: Section | dict[str, Any] | None = None, stdin: bytes = b"{}", name: str = "",
                 version: str = "0.1.0") -> None:
        self.mode = mode
        self.plugin, self.command = plugin, command
        self.container_id, self.netns, self.ifname, self.args, self.path = container_id, netns, ifname, args, path
        self.env: Mapping[str, str] = env or {}
        self.conf = conf if isinstance(conf, Section) else Section(conf or {})
        self._stdin: bytes | None = stdin
        self.name, self.version = name, version
        self.fds: dict[str, int] = {}
        self.opened: list[Socket] = []
        self.warnings: list[str] = []
        self.released: list[dict[str, str]] = []

    @property
    def stdin(self) -> bytes:
        """Return the configuration's bytes as received. For a delegate, encode its configuration as the Go library
        does."""
        if self._stdin is None:
            self._stdin = json.write_members({key: json.write(json.normalize(value), sort=key != "prevResult")
                                              for key, value in self.conf.values.items()})
        return self._stdin

    def delegate(self, plugin: str, conf: dict[str, Any] | Section | None = None) -> Request:
        """Return the request of a delegate (spec section 4): a copy of this request for another plugin type. conf: the
        delegate's configuration, if it differs from this request's."""
        other = Request.__new__(Request)
        other.__dict__ = self.__dict__.copy()
        other.plugin, other.found_own = plugin, False
        if conf is not None:
            other.conf = conf if isinstance(conf, Section) else Section(conf)
            other._stdin, other.version = None, other.conf.values.get("cniVersion", "0.1.0")
        return other

    def for_network(self, plugin: str, conf: Section, name: str, ifname: str, args: str, path: str) -> Request:
        """Return a request of the same pod for another network, that is, for another attachment. plugin: a type of
        fastcni."""
        other = self.delegate(plugin, conf)
        other.name, other.ifname, other.args, other.path = name, ifname, args, path
        other.env = {**self.env, "CNI_CONTAINERID": self.container_id, "CNI_NETNS": self.netns, "CNI_IFNAME": ifname,
                     "CNI_ARGS": args, "CNI_PATH": path}
        other.found_own, other._hashes = True, ""
        return other

    def warn(self, text: str) -> None:
        """Add a warning line for stderr. The answer on stdout stays the same."""
        self.warnings.append(text)

    def release(self, what: str, of: str = "") -> None:
        """For GC: record that `what` was released. of: the attachment that had this object, "" if unknown."""
        self.released.append({"plugin": self.plugin, "what": what, "of": of})

    def delete_links(self, *links: tuple[int, str]) -> None:
        """Delete links of the host that no other step of this DEL needs. A plugin in a chain only stores the links in
        `links`: the chain deletes them together with the pod's link, because the kernel takes as long for several links
        as for one. Other plugins delete the links immediately. Raises the errors of Mode.delete_links()."""
        if self.links is None:
            if links:
                self.mode.delete_links(*links)
        else:
            self.links += links

    def take_links(self) -> list[tuple[int, str]]:
        """Return the links that delete_links() has stored for later, and forget them."""
        if not self.links:
            return []
        links = self.links.copy()
        self.links.clear()
        return links

    @property
    def hashes(self) -> str:
        """Return names.hashes() of the attachment, computed once."""
        if not self._hashes:
            from fastcni.kit.call import names

            self._hashes = names.hashes(self.name, self.container_id, self.ifname)
        return self._hashes

    @property
    def valid_attachments(self) -> set[tuple[str, str]]:
        """Return {(containerID, ifname)} of cni.dev/valid-attachments (spec 1.1.0, GC)."""
        return config.valid_attachments(self.conf)

    def open_netns(self) -> int:
        """Return the descriptor of CNI_NETNS. The first call opens it, close() or leave_mount() closes it. Raises
        CniError 8."""
        if "netns" in self.fds:
            return self.fds["netns"]
        try:
            # If a socket is open, leave_mount() has closed the first descriptor
            fd = namespace_of(self.opened[0].fileno()) if self.opened else self.mode.open_netns(self.netns)
        except netns.NotNamespace:
            raise CniError(errors.INVALID_NETNS, f'failed to open netns "{self.netns}": unknown FS magic on '
                           f'"{self.netns}": not a network namespace') from None
        except (OSError, ValueError) as e:
            why = (e.strerror or "").lower() if isinstance(e, OSError) else str(e)
            raise CniError(errors.INVALID_NETNS, f'failed to open netns "{self.netns}": failed to Statfs '
                           f'"{self.netns}": {why}') from None
        self.fds["netns"] = fd
        return fd

    def netns_gone(self) -> bool:
        """For DEL: return whether the pod's namespace no longer exists: CNI_NETNS is empty, its path is missing, or the
        path is a mount point without a mount."""
        if "netns" in self.fds or self.opened:
            return False
        if not self.netns:
            return True
        try:
            self.fds["netns"] = self.mode.open_netns(self.netns)
        except (FileNotFoundError, NotADirectoryError):
            return True
        except netns.NotNamespace:
            self.warn(f'"{self.netns}" is not a network namespace any more: the pod counts as deleted')
            return True
        except (OSError, ValueError):
            self.open_netns()       # raises the error with the text that runtimes expect
        return False

    def leave_mount(self) -> None:
        """Close the descriptors of CNI_NETNS before an ADD is answered. The caller may unmount CNI_NETNS immediately,
        and umount(2) fails with EBUSY while a descriptor of this mount is open. A rollback can still use the namespace:
        a socket in the pod keeps the namespace, and open_netns() gets a descriptor of it from that socket."""
        if "netns" in self.fds:
            close_file(self.fds.pop("netns"))

    def close(self) -> None:
        """Close all descriptors and sockets, because an open descriptor keeps the namespace of a deleted pod. A second
        call is no error."""
        while self.opened:
            self.opened.pop().close()
        while self.fds:
            close_file(self.fds.popitem()[1])
        self.mode.end_request()


def read_request(plugin: str, command: str, env: Mapping[str, str], stdin: bytes, mode: Mode) -> Request:
    """Make a Request of the stdin and the environment. Raises CniError 6 and 7 for a configuration without a valid
    name."""
    conf = mode.decode(stdin)
    name, spoken = conf.once(read_name_and_version)
    # STATUS and GC concern no pod, so ignore the variables of a pod
    pod = {} if command in ("GC", "STATUS") else env
    return Request(mode, plugin=plugin, command=command, container_id=pod.get("CNI_CONTAINERID", ""),
                   netns=pod.get("CNI_NETNS", ""), ifname=pod.get("CNI_IFNAME", ""), args=pod.get("CNI_ARGS", ""),
                   path=env.get("CNI_PATH", ""), env=env, conf=conf, stdin=stdin, name=name, version=spoken)


def read_name_and_version(conf: Section) -> tuple[str, str]:
    return conf.text("name"), conf.text("cniVersion") or version.ALL[0]


def read_conf(stdin: bytes) -> Section:
    """Decode stdin to a Section with a valid name and a cniVersion that is text. Raises CniError 6 and 7."""
    return check_conf(Section(decode_conf(stdin)))


def decode_conf(stdin: bytes) -> dict[str, Any]:
    """Decode stdin to a dict. Raises CniError 6."""
    if len(stdin) > MAX_STDIN_BYTES:
        raise undecodable(f"more than {MAX_STDIN_BYTES} bytes")
    if stdin.count(b",") + stdin.count(b"[") + stdin.count(b"{") > MAX_VALUES:      # counts those in strings, too
        raise undecodable(f"more than {MAX_VALUES} values")
    try:
        document = json.read(stdin)
    except json.JsonError as e:
        raise undecodable(str(e)) from None
    if document is None:
        document = {}
    if not isinstance(document, dict):
        raise undecodable("the configuration is not an object")
    return document


def check_conf(conf: Section) -> Section:
    """Return the Section of a configuration. Raises CniError 6 and 7."""
    try:
        name, _ = conf.text("name"), conf.text("cniVersion")
    except CniError as e:
        raise undecodable(e.msg, e.details) from None
    if not name:
        raise errors.bad_config("missing network name")
    config.check_network_name(name)
    return conf


def undecodable(why: str, details: str = "") -> CniError:
    return CniError(errors.DECODING_FAILURE, f"error unmarshall network config: {why}", details)
