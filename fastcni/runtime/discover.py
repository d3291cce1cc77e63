"""Find a network by name in a configuration directory. The files are read in the Go library's order."""

import os
import re
import stat
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from fastcni.runtime.errors import ConfError, NoConfigsFound, NotFound
from fastcni.runtime.parse import list_of_plugin, parse_list, parse_plugin
from fastcni.runtime.records import NetworkList, PluginConf
from fastcni.spec import errors, json
from fastcni.spec.config import check_network_name

MAX_CONF_BYTES = 4 << 20   # the largest file that is read, in bytes; a network list has a few kB

Warn = Callable[[str], None]
T = TypeVar("T")


def log_warning(text: str) -> None:
    import logging

    logging.getLogger("fastcni").warning("%s", text)


def load_network(conf_dir: str | os.PathLike[str], name: str, warn: Warn = log_warning) -> NetworkList:
    """Load the network called `name` from the files of `conf_dir`.

    The files are read in this order: `.conflist`, then `.conf` and `.json` together, both groups sorted by name. The
    first file with the network's name wins. If a file before this file is broken, load_network() calls warn(text) and
    goes on, as kubelet and CRI-O do. (Go's libcni and cnitool load no network if any file is broken.) If a broken file
    seems to have the network's name, load_network() raises ConfError, so that no later file replaces the broken file.

    Raises ConfError if the network's own file is broken, NoConfigsFound if the directory has no configuration files,
    NotFound if no file has the name.
    """
    conf_dir = os.fspath(conf_dir)
    paths = [*list_files(conf_dir, (".conflist",)), *list_files(conf_dir, (".conf", ".json"))]
    broken = []
    for path in paths:
        try:
            net = load_if(path, name)
        except OtherNetwork as e:
            broken.append(path)
            warn(f"skipped a broken network configuration: {e.msg}")
            continue
        if net:
            return net
    if not paths:
        raise NoConfigsFound(conf_dir)
    raise NotFound(conf_dir, name, broken, network_names(conf_dir))


def network_names(conf_dir: str) -> list[str]:
    """Return the names of the networks that the files of a directory define. Broken files are skipped."""
    found = []
    for path in list_files(conf_dir, (".conflist", ".conf", ".json")):
        try:
            found.append(parser_of(path)(read_conf(path)).name)
        except ConfError:               # the caller, or `fastcni doctor`, reports broken files
            continue
    return found


class OtherNetwork(ConfError):
    """The error of a broken file that does not seem to have the wanted network's name."""


def load_if(path: str, name: str) -> NetworkList | None:
    """Return the network of a configuration file, None if the network has another name than `name`. Raises ConfError
    for a broken file: OtherNetwork if the file does not seem to have the name."""
    try:
        raw = read_conf(path)
    except ConfError as e:
        raise OtherNetwork(e.msg, e.code) from None
    try:
        found = parser_of(path)(raw)
    except ConfError as e:
        raise blamed(path, raw, name, e) from None
    return network_of(path, found) if found.name == name else None


def parser_of(path: str) -> Callable[[bytes], NetworkList | PluginConf]:
    """Return the parser of a file: a `.conflist` file has a list, a `.conf` or `.json` file a single plugin."""
    return parse_list if path.endswith(".conflist") else parse_plugin


def blamed(path: str, raw: bytes, name: str, error: ConfError) -> ConfError:
    """Return `error` with the broken file's path before its text: an OtherNetwork, or a ConfError if the file has the
    network's name.

    The name is searched in the bytes `raw`, because a broken file may not be JSON.
    """
    found = re.search(rb'"name"\s*:\s*' + re.escape(json.write(name)), raw)
    return (ConfError if found else OtherNetwork)(f"{path}: {error.msg}", error.code)


def load_list_file(path: str | os.PathLike[str]) -> NetworkList:
    """Load one `.conflist` file, and the plugins of its network's directory (see with_directory())."""
    path = os.fspath(path)
    return network_of(path, parse_file(path, parse_list))


def load_file(path: str) -> NetworkList:
    """Load one configuration file, see parser_of(), and the plugins of the directory of its list. Raises ConfError."""
    return network_of(path, parse_file(path, parser_of(path)))


def parse_file(path: str, parse: Callable[[bytes], T]) -> T:
    """Read a file and return parse(bytes). Raises ConfError, whose text names the file."""
    raw = read_conf(path)
    try:
        return parse(raw)
    except ConfError as e:
        raise ConfError(f"{path}: {e.msg}", e.code) from None


def network_of(path: str, found: NetworkList | PluginConf) -> NetworkList:
    """Return the network of the file `path`. found: the content of the file. The plugins of the network's directory are
    appended to a list, not to a single plugin. Each plugin's `file` is set. Raises ConfError, also if the network then
    has no plugins."""
    net = list_of_plugin(found) if isinstance(found, PluginConf) else found
    net = replace(net, plugins=tuple(replace(plugin, file=path) for plugin in net.plugins))
    if isinstance(found, NetworkList):
        net = with_directory(os.path.dirname(path), net)
    if not net.plugins:
        raise ConfError(f"{path}: no plugin configs found")
    return net


def with_directory(conf_dir: str, net: NetworkList) -> NetworkList:
    """Append the plugins of `<conf_dir>/<network name>/*.conf`, unless the list excludes them. Raises ConfError.

    The network's name becomes a part of a path, so fastcni rejects a name such as ".."; the Go library follows such a
    path.
    """
    if net.only_inlined_plugins:
        return net
    check_network_name(net.name)
    directory = os.path.join(conf_dir, net.name)
    try:
        files = list_files(directory, (".conf",))
    except ConfError as e:
        raise ConfError(f"failed to read plugin config files in {directory}: {e.msg}", e.code) from None
    more = (replace(parse_file(file, parse_plugin), index=index, file=file)
            for index, file in enumerate(files, len(net.plugins)))
    return replace(net, plugins=(*net.plugins, *more))


def list_files(where: str, extensions: tuple[str, ...]) -> list[str]:
    """Return the paths of the files in a directory with one of the extensions, sorted by the bytes of their names.

    A missing directory is treated as empty. A file called ".conf" has the extension ".conf". The result includes broken
    symbolic links, because reading them reports the error. Raises ConfError.
    """
    try:
        with os.scandir(where) as entries:
            names = [entry.name for entry in entries
                     if has_extension(entry.name, extensions) and not entry.is_dir(follow_symlinks=False)]
    except FileNotFoundError:
        return []
    except OSError as e:
        raise ConfError(f"open {where}: {str(e.strerror).lower()}", errors.IO_FAILURE) from None
    return [os.path.join(where, name) for name in sorted(names, key=os.fsencode)]


def has_extension(name: str, extensions: tuple[str, ...]) -> bool:
    return "." in name and name[name.rindex("."):] in extensions


def read_conf(path: str) -> bytes:
    """Return the bytes of a regular file. Raises ConfError, also for a FIFO, a device, or a file of more than
    MAX_CONF_BYTES bytes. A FIFO does not block the call."""
    try:
        with open(path, "rb", opener=open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise ConfError(f"error reading {path}: not a regular file", errors.IO_FAILURE)
            raw = file.read(MAX_CONF_BYTES + 1)
    except OSError as e:
        raise ConfError(f"error reading {path}: {str(e.strerror).lower()}", errors.IO_FAILURE) from None
    if len(raw) > MAX_CONF_BYTES:
        raise ConfError(f"error reading {path}: more than {MAX_CONF_BYTES} bytes", errors.IO_FAILURE)
    return raw


def open_without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK)
