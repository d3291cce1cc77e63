"""Find a network by name in a configuration directory, in the order that the Go library looks."""

import os
from dataclasses import replace

from fastcni.runtime.errors import ConfError, NoConfigsFound, NotFound
from fastcni.runtime.parse import list_of_plugin, parse_list, parse_plugin
from fastcni.runtime.records import NetworkList
from fastcni.spec import errors
from fastcni.spec.config import check_network_name
from fastcni.spec.errors import CniError

MAX_CONF = 4 << 20         # bytes of one file; a network list is a few kB


def load_network(conf_dir: str | os.PathLike[str], name: str) -> NetworkList:
    """Load the network called `name` from the files of `conf_dir`.

    `.conflist` files come first, then `.conf` and `.json` together, each sorted by name; the first
    match wins. ConfError: a file before the match that cannot be read or parsed. NoConfigsFound: no
    files. NotFound: none of that name.
    """
    conf_dir = os.fspath(conf_dir)
    lists = list_files(conf_dir, (".conflist",))
    for path in lists:
        net = parse_list(read_conf(path))
        # A name that could not be a file's name is no reason to refuse the other networks.
        if net.name == name or is_network_name(net.name):
            net = add_folder(path, net)
        if net.name == name:
            return net
    singles = list_files(conf_dir, (".conf", ".json"))
    for path in singles:
        plugin = parse_plugin(read_conf(path))
        if plugin.name == name:
            return list_of_plugin(plugin)
    if not lists and not singles:
        raise NoConfigsFound(conf_dir)
    raise NotFound(conf_dir, name)


def load_list_file(path: str | os.PathLike[str]) -> NetworkList:
    """Load one `.conflist` file, with the plugins of its folder."""
    path = os.fspath(path)
    return add_folder(path, parse_list(read_conf(path)))


def add_folder(path: str, net: NetworkList) -> NetworkList:
    """Append the plugins of `<directory of the list file>/<network name>/*.conf`.

    The name becomes a path here, so it has to be a good one: the Go library follows "..".
    """
    if not net.only_inlined_plugins:
        check_network_name(net.name)
        folder = os.path.join(os.path.dirname(path), net.name)
        try:
            files = list_files(folder, (".conf",))
        except ConfError as e:
            raise ConfError(f"failed to read plugin config files in {folder}: {e.msg}", e.code) from None
        net = replace(net, plugins=net.plugins + tuple(parse_plugin(read_conf(file)) for file in files))
    if not net.plugins:
        raise ConfError("no plugin configs found")
    return net


def is_network_name(name: str) -> bool:
    try:
        check_network_name(name)
    except CniError:
        return False
    return True


def list_files(where: str, extensions: tuple[str, ...]) -> list[str]:
    """Paths of the files in a directory with one of the extensions, sorted by the bytes of their names.

    A missing directory has none. A file called ".conf" has the extension ".conf". Symbolic links
    count, even to nothing: reading them then says what is wrong.
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
    try:
        with open(path, "rb") as file:
            raw = file.read(MAX_CONF + 1)
    except OSError as e:
        raise ConfError(f"error reading {path}: {str(e.strerror).lower()}", errors.IO_FAILURE) from None
    if len(raw) > MAX_CONF:
        raise ConfError(f"error reading {path}: more than {MAX_CONF} bytes", errors.IO_FAILURE)
    return raw
