"""Read attachments from the result caches of runtimes. Files of all libcni versions are readable."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from fastcni.node.attachments.attachment import CACHE, Cached, HostPort, Sighting
from fastcni.plugins import chain
from fastcni.runtime.cache import Cache, read_document, read_file
from fastcni.spec import address, json
from fastcni.spec import result as results
from fastcni.spec.cached_result import KIND
from fastcni.spec.errors import CniError


def read_cache(cache: Cache, unseen: list[str]) -> Iterator[tuple[Sighting, Cached]]:
    """Yield (Sighting, Cached) of each file of a cache. Add texts about unreadable files to `unseen`."""
    directory = cache.results()
    try:
        names = cache.file_names()
    except OSError as e:
        unseen.append(f"result cache {directory}: {e.strerror}")
        return
    for name in names:
        path = os.path.join(directory, name)
        try:
            raw, since = read_file(path), os.stat(path).st_mtime
            found = read(path, raw, since, unseen)
        except FileNotFoundError:
            continue                        # a DEL has just removed the file
        except OSError as e:
            unseen.append(f"result cache {path}: {e.strerror or e}")
            continue
        except ValueError as e:
            unseen.append(f"result cache {path}: {e}; remove the file when the container has ended: libcni before "
                          "1.2.0 sends no DEL as long as the file is there, and DEL works without the file")
            continue
        if found:
            yield found


def read(path: str, raw: bytes, since: float, unseen: list[str]) -> tuple[Sighting, Cached] | None:
    """Read the bytes of a cache file. Return None if the file is not libcni's. Add a text to `unseen` if the file's
    result cannot be read. Raises ValueError for a damaged file, and for an unknown value of the key "kind"."""
    kind, it = read_document(raw, os.path.basename(path))
    if kind not in (KIND, ""):
        raise ValueError(f"unknown kind {kind}")
    if not (it.network and it.container_id and it.ifname):
        return None
    values = json.read(raw)
    result: Mapping[str, Any] = {}
    try:
        result = read_result(values.get("result") if kind else values)
    except (CniError, ValueError) as e:
        if kind:
            unseen.append(f"result cache {path}: the result cannot be read: {e}; CHECK fails, and DEL works without "
                          "the result")
    if not kind and not result:
        return None
    cached = Cached(path, it.netns, read_config(it.config), result, it.args, it.capability_args)
    ips = tuple(addresses_of(result))
    sighting = Sighting(CACHE, path, network=it.network, container_id=it.container_id, ifname=it.ifname,
                        addresses=ips, ports=read_ports(it.capability_args, ips), links=it.host_links, since=since)
    return sighting, cached


def read_result(document: Any) -> Mapping[str, Any]:
    """Return the result in version 1.1.0; {} if the result is missing. Raises CniError if the result is invalid, or has
    an unknown version."""
    return {} if document is None else results.to_version(results.create_any(document), "1.1.0")


def addresses_of(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield the addresses of a result, without prefix lengths. Skip texts that are no address."""
    for ip in result.get("ips", ()):
        try:
            yield address.ip_text(address.read_cidr(ip["address"])[0])
        except ValueError:
            continue


def read_config(raw: bytes) -> Mapping[str, Any]:
    """Return the decoded configuration; {} if the configuration is not a JSON object."""
    try:
        values = json.read(raw) if raw else {}
    except json.JsonError:
        return {}
    return values if isinstance(values, dict) else {}


def read_ports(capability_args: Mapping[str, Any], ips: tuple[str, ...]) -> tuple[HostPort, ...]:
    """Return the port mappings that the runtime asked for, without invalid entries."""
    found = []
    mappings = capability_args.get("portMappings")
    for it in mappings if isinstance(mappings, list) else ():
        if not isinstance(it, dict) or not isinstance(it.get("hostPort"), int) or it["hostPort"] <= 0:
            continue
        host_ip = it.get("hostIP") if isinstance(it.get("hostIP"), str) else ""
        host_ip = "" if host_ip in ("0.0.0.0", "::") else host_ip
        to = next((ip for ip in ips if not host_ip or (":" in ip) == (":" in host_ip)), "")
        port = it.get("containerPort")
        found.append(HostPort(it["hostPort"], str(it.get("protocol") or "tcp").lower(), host_ip or "", to,
                              port if isinstance(port, int) else 0))
    return tuple(found)


def types_of(config: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the CNI types in a network list or of a single plugin. An IPAM type follows the type of its plugin."""
    found: list[str] = []
    for plugin in plugins_in(config):
        ipam = plugin.get("ipam") if plugin.get("type") != chain.KIND else None
        for section in (plugin, ipam):
            if isinstance(section, dict) and isinstance(section.get("type"), str) and section["type"]:
                found.append(section["type"])
    return tuple(found)


def plugins_in(config: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    """Yield the plugins of a list or of a single configuration, and the plugins inside of `chain`."""
    plugins = config.get("plugins")
    for plugin in plugins if isinstance(plugins, list) else [config]:
        if isinstance(plugin, dict):
            yield plugin
            if plugin is not config and isinstance(plugin.get("plugins"), list):
                yield from plugins_in(plugin)
