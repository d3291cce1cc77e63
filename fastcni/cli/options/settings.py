"""Read the settings of a command: from its options, otherwise from cnitool's environment variables, otherwise use
defaults."""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from hashlib import sha512
from typing import Any

import click

from fastcni.cli.options import completion
from fastcni.cli.options.conf_dir import chosen_conf_dir, conf_dir_option
from fastcni.cli.text.output import json_option, printable
from fastcni.runtime import CNI, NetworkList, RuntimeConf
from fastcni.runtime.cni import DEFAULT_PLUGIN_DIRS
from fastcni.spec import errors, json
from fastcni.spec.errors import CniError

bin_dir_option = click.option("--bin-dir", multiple=True, metavar="DIR", help="A plugin directory; may be repeated "
                              f"[CNI_PATH, {', '.join(DEFAULT_PLUGIN_DIRS)}].")


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a command on a network. cni: the runtime library. net: the network. rt: the attachment. as_json:
    whether --json is given."""

    cni: CNI
    net: NetworkList
    rt: RuntimeConf
    as_json: bool


def cni_command(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add --conf-dir, --bin-dir and --cache-dir to a command. The command's function gets `cni`, a CNI, instead of
    these options."""
    @conf_dir_option
    @bin_dir_option
    @click.option("--cache-dir", default="", metavar="DIR", help="The directory of cached results [/var/lib/cni].")
    @wraps(function)                # wraps() also copies the function's own click options
    def command(conf_dir: str, bin_dir: Sequence[str], cache_dir: str, **rest: Any) -> Any:
        return function(cni=CNI(plugin_dirs(bin_dir), chosen_conf_dir(conf_dir), cache_dir), **rest)
    return command


def network_command(netns_required: bool = True) -> Callable[..., Any]:
    """Add NET, NETNS and the options of a network to a command. The command's function gets one Settings instead of
    these arguments. Like cnitool, check the configuration first, then the capability args, then the args."""
    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @click.argument("net", shell_complete=completion.networks)
        @click.argument("netns", required=netns_required)
        @cni_command
        @click.option("--container-id", default="", metavar="ID", shell_complete=completion.containers,
                      help="The container id [cnitool-<hash of NETNS>].")
        @click.option("--ifname", "-i", default="", metavar="NAME", help="The pod's interface [CNI_IFNAME, eth0].")
        @click.option("--args", "args_text", default=None, metavar="K=V;K=V", help="CNI arguments [CNI_ARGS].")
        @click.option("--capability-args", default=None, metavar="JSON", help="Capability arguments [CAP_ARGS].")
        @json_option
        @wraps(function)
        def command(cni: CNI, net: str, netns: str | None, container_id: str, ifname: str, args_text: str | None,
                    capability_args: str | None, as_json: bool, **own: Any) -> Any:
            env = os.environ.get
            network = cni.load(net, warn)
            capabilities = read_capability_args(env("CAP_ARGS", "") if capability_args is None else capability_args)
            args = read_pairs(env("CNI_ARGS", "") if args_text is None else args_text)
            # As in cnitool, abspath() removes ".." from the path's text, and does not follow symbolic links.
            path = os.path.abspath(netns) if netns else ""
            rt = RuntimeConf(container_id or default_container_id(path), path,
                             ifname or env("CNI_IFNAME") or "eth0", args, capabilities)
            return function(Settings(cni, network, rt, as_json), **own)
        return command
    return decorate


def warn(text: str) -> None:
    """Print a warning on stderr."""
    click.echo(printable(f"Warning: {text}"), err=True)


def plugin_dirs(given: Sequence[str]) -> list[str]:
    """Return the plugin directories: `given`, the values of --bin-dir; otherwise CNI_PATH split at each ":"; otherwise
    the default directories."""
    text = os.environ.get("CNI_PATH", "")
    return list(given) or (text.split(os.pathsep) if text else list(DEFAULT_PLUGIN_DIRS))


def default_container_id(netns: str) -> str:
    """Return the container id that cnitool derives from a namespace's absolute path: "cnitool-" and 20 hex digits of
    the path's SHA-512."""
    return f"cnitool-{sha512(os.fsencode(netns)).hexdigest()[:20]}"


def read_pairs(text: str) -> list[tuple[str, str]]:
    """Return CNI_ARGS "K=V;K=V" as [(K, V)]. Raise CniError for a pair that is not K=V."""
    pairs = []
    for piece in text.split(";") if text else ():
        key, _, value = piece.partition("=")
        if not key or not value or "=" in value:
            raise CniError(errors.INVALID_ENVIRONMENT, f"invalid CNI_ARGS pair {json.quote(piece)}")
        pairs.append((key, value))
    return pairs


def read_capability_args(text: str) -> dict[str, Any]:
    """Return the JSON object in CAP_ARGS; {} for "" or null. Raise CniError for any other text."""
    if not text:
        return {}
    try:
        values = json.read(os.fsencode(text))
    except json.JsonError as e:
        raise CniError(errors.INVALID_ENVIRONMENT, f"capability args: {e}") from None
    if values is None:
        return {}
    if not isinstance(values, dict):
        raise CniError(errors.INVALID_ENVIRONMENT, f"capability args: expected a JSON object, got {text:.80}")
    return values
