"""Complete the names of networks, containers and plugins in the shell. If the names cannot be read, the shell gets no
completions."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.runtime.records import Attachment


def networks(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the names of the networks in the configuration directory that begin with `incomplete`."""
    from fastcni.runtime.discover import network_names

    try:
        return beginning(network_names(conf_dir(ctx)), incomplete)
    except CniError:
        return []


def conf_dir(ctx: click.Context) -> str:
    """Return the directory of network configurations that the command line being completed selects."""
    from fastcni.cli.options.conf_dir import chosen_conf_dir

    return chosen_conf_dir(ctx.params.get("conf_dir") or "")


def containers(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids of the cached containers that begin with `incomplete`."""
    return beginning([it.container_id for it in cached(ctx)], incomplete)


def pods(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the ids of the cached containers, and NAMESPACE/NAME of their Kubernetes pods, that begin with
    `incomplete`."""
    return [*containers(ctx, parameter, incomplete), *pod_names(ctx, parameter, incomplete)]


def pod_names(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return NAMESPACE/NAME of the cached Kubernetes pods that begin with `incomplete`."""
    from fastcni.runtime.records import kubernetes_name

    return beginning(filter(None, (kubernetes_name(it.args) for it in cached(ctx))), incomplete)


def plugin_types(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[str]:
    """Return the types of fastcni's own plugins that begin with `incomplete`."""
    from fastcni import plugins

    return beginning(plugins.BUILT_IN, incomplete)


def cached(ctx: click.Context) -> list[Attachment]:
    """Return the attachments in the result caches that the command line selects; [] if a cache cannot be listed."""
    from fastcni.node.attachments.cache_dirs import known_cache_dirs
    from fastcni.runtime.cache import Cache

    given = ctx.params.get("cache_dirs") or filter(None, [ctx.params.get("cache_dir")])
    try:
        return [it for where in known_cache_dirs(given, conf_dir(ctx)) for it in Cache(where).attachments()]
    except OSError:
        return []


def beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return sorted({name for name in names if name.startswith(incomplete)})
