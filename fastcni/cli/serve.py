"""The command that runs the warm server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fastcni.cli.options.addresses import http_address, otlp_url
from fastcni.server.cpu_latency import DEFAULT_S
from fastcni.server.records.history import DEFAULT_SIZE
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.agent.metrics import AgentCollector
    from fastcni.daemon.log import Logger
    from fastcni.dhcp.daemon import Daemon
    from fastcni.flows.kept import Kept
    from fastcni.flows.metrics import FlowsCollector
    from fastcni.kit.ipam.cluster.conf import Keys
    from fastcni.node.activity.source import Source
    from fastcni.server.metrics.pools import Counted
    from fastcni.server.service import Beside
    from fastcni.server.web.status_page import Ask, Document


@click.command()
@click.option("--socket", "path", default="/run/fastcni/fastcni.sock", show_default=True, envvar="FASTCNI_SOCKET",
              show_envvar=True, metavar="PATH", help="Where to listen; not used if systemd hands a socket over.")
@click.option("--workers", default=32, show_default=True, type=click.IntRange(1, 1024), metavar="N",
              help="Requests that run at once.")
@click.option("--queue-size", default=1024, show_default=True, type=click.IntRange(1), metavar="N",
              help="Requests that may wait in the queue; more are refused with code 11.")
@click.option("--queue-timeout", "queue_timeout_s", default=60.0, show_default=True,
              type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="How long a request may wait in the queue; then it is refused with code 11.")
@click.option("--allow-uid", "uids", multiple=True, type=click.IntRange(0), metavar="UID",
              help="Serve this user too; may be repeated. The server always serves root.")
@click.option("--latency-request", "latency_request_s", default=DEFAULT_S, show_default=True,
              type=click.FloatRange(0, 60), envvar="FASTCNI_LATENCY_REQUEST_S", show_envvar=True, metavar="SECONDS",
              help="Keep processors out of deep idle states until this long after a request; 0: never.")
@click.option("--cache-dir", default="", metavar="DIR",
              help="Where runtimes cache results; the server restores iptables rules from them [/var/lib/cni].")
@click.option("--idle-exit", "idle_exit_min", default=0.0, type=click.FloatRange(0), metavar="MINUTES",
              help="End after so long without a request; 0, the default: never.")
@click.option("--dhcp", is_flag=True, help="Run the daemon of the dhcp plugin, too, at its usual socket.")
@click.option("--dhcp-socket", default="", metavar="PATH", help="Another socket for --dhcp [/run/cni/dhcp.sock].")
@click.option("--dhcp-leases", default="", metavar="DIR", help="Where --dhcp keeps leases [/var/lib/cni/dhcp].")
@click.option("--agent", "agent_options", default=None, metavar="OPTIONS",
              help="Run the node agent, too. OPTIONS are those of `fastcni agent` as one word: --agent '--etcd URL'.")
@click.option("--metrics", default="", envvar="FASTCNI_METRICS", show_envvar=True, metavar="ADDRESS",
              help="Answer Prometheus there: the path of a unix socket, 127.0.0.1:PORT or [::1]:PORT. Off by default.")
@click.option("--http", default="", envvar="FASTCNI_HTTP", show_envvar=True, metavar="ADDRESS",
              help="Serve the status page there: an address as for --metrics, which may be the same. Off by default.")
@click.option("--history", default=DEFAULT_SIZE, show_default=True, type=click.IntRange(0, 100_000),
              envvar="FASTCNI_HISTORY", show_envvar=True, metavar="N",
              help="Keep the last N requests for `fastcni trace` and `fastcni top`; 0: none.")
@click.option("--flows", "keep_flows", is_flag=True,
              help="Keep the last 10,000 flows of pods, and count them, for `fastcni flows`. Off by default.")
@click.option("--otlp", default="", envvar=["FASTCNI_OTLP", "OTEL_EXPORTER_OTLP_ENDPOINT"], show_envvar=True,
              metavar="URL",
              help="Send OpenTelemetry traces of requests to this collector, by OTLP over HTTP. Off by default.")
@click.option("--kubernetes-events", default="", envvar="FASTCNI_KUBERNETES_EVENTS", show_envvar=True,
              metavar="KUBECONFIG", help="Report warnings as Events of this node to the API server of this kubeconfig, "
              "or to that of the pod: in-cluster. Off by default.")
@click.option("--detached", is_flag=True,
              help="Leave the caller's cgroup, signal mask and limits; log to syslog, where that exists. "
                   "For a server that no service manager starts.")
@click.option("--log-to", default=None, type=click.Choice(["stderr", "syslog", "journald"]),
              help="Where to log; syslog is /dev/log, journald gets fields.  [default: stderr]")
@click.option("--log-level", default="info", show_default=True,
              type=click.Choice(["debug", "info", "warning", "error"]), help="info has a line for each request.")
@click.option("--log-format", default="logfmt", show_default=True, type=click.Choice(["logfmt", "json"]))
def serve(path: str, workers: int, queue_size: int, queue_timeout_s: float, uids: Sequence[int],
          latency_request_s: float, cache_dir: str, idle_exit_min: float, dhcp: bool, dhcp_socket: str,
          dhcp_leases: str, agent_options: str | None, metrics: str, http: str, history: int, keep_flows: bool,
          otlp: str, kubernetes_events: str, detached: bool, log_to: str | None, log_level: str,
          log_format: str) -> None:
    """Answer the installed plugins from one warm process.

    A plugin that finds no server does its work by itself. SIGTERM ends the server after its last answer.
    """
    if dhcp and idle_exit_min:
        raise click.UsageError("--dhcp renews leases, so the server must not end: leave --idle-exit out")
    if agent_options is not None and idle_exit_min:
        raise click.UsageError("--agent keeps the network, so the server must not end: leave --idle-exit out")
    from fastcni.daemon.listening import ListenError
    from fastcni.daemon.log import SYSLOG
    from fastcni.kernel.presence import state_of
    from fastcni.runtime.cache import DEFAULT_DIR, Cache
    from fastcni.runtime.cni import DEFAULT_CONF_DIR
    from fastcni.runtime.restore import restore
    from fastcni.server.cluster.configured import read_configured
    from fastcni.server.cluster.pods import Pods
    from fastcni.server.cluster.upkeep import place_of
    from fastcni.server.detached import detach
    from fastcni.server.service import Options
    from fastcni.server.service import serve as run

    where, page, otlp = http_address(metrics, "--metrics"), http_address(http, "--http"), otlp_url(otlp)
    if detached:
        detach()
        if log_to is None and os.path.exists(SYSLOG):
            log_to = "syslog"
        elif log_to is None:
            log_level = "warning"       # a file in memory, without rotation
    cache = Cache(cache_dir)

    def configured() -> Iterable[Keys]:
        """The networks in the configuration directory, those of the attachments that runtimes cached, and the other
        spaces that this node has joined."""
        from fastcni.node import confs
        from fastcni.node.attachments import address_dirs, caches
        from fastcni.node.cluster import state  # imported here, after the server is ready

        files = confs.read_quietly(DEFAULT_CONF_DIR, [])
        cached = {it.config for it in cache.attachments()}
        values = [*confs.values_of(confs.networks(files)), *map(caches.read_config, cached)]
        found = [*read_configured(values)]
        places = {place_of(keys) for keys in found}
        joined = state.used(address_dirs.cluster_dirs(values), [])
        return [*found, *(keys for keys in joined if place_of(keys) not in places)]

    def networks() -> Iterable[Any]:
        """The configurations in the configuration directory."""
        from fastcni.node import confs  # imported here, after the server is ready

        return confs.values_of(confs.networks(confs.read_quietly(DEFAULT_CONF_DIR, [])))

    def count() -> "Counted":
        from fastcni.node.activity.pools import count  # imported here, at the first scrape

        return count(DEFAULT_CONF_DIR, cache.results())

    def make_status(describe: "Callable[[], Document]", ask: "Ask | None") -> "Callable[[], Document]":
        """What makes the status page's document of requests."""
        source: Source | None = None

        def make() -> "Document":
            nonlocal source
            if not source:
                from fastcni.node.activity.source import Source  # imported here, when someone looks

                source = Source(describe, ask, count)
            source.poll()
            return {**source.document(""), "history": ask is not None}

        return make

    def make_topology() -> "Document":
        """The status page's document of this node."""
        from fastcni.node.attachments.inventory import Places  # imported here, when someone looks
        from fastcni.node.attachments.topology import document

        return document(Places(DEFAULT_CONF_DIR, (cache_dir or DEFAULT_DIR,)))

    def drops() -> "list[tuple[str, str, str]]":
        from fastcni.node.attachments.inventory import Places  # imported here, at the first suspicion
        from fastcni.node.checks import doctor, kernel

        places = Places(DEFAULT_CONF_DIR, (cache_dir or DEFAULT_DIR,), enter_pods=False)
        return kernel.pods_dropped(doctor.node_of(places, (), ""))

    beside: list[Callable[[Logger], Beside]] = [partial(dhcp_daemon, dhcp_socket, dhcp_leases)] if dhcp else []
    collectors = agent_collectors() if agent_options is not None and where else []
    parts = [kept_flows(cache_dir)] if keep_flows else []
    if agent_options is not None:
        from fastcni.cli.agent import make_beside

        beside.append(make_beside(agent_options, collectors))
    pods = Pods(state_of, lambda: {(it.network, it.container_id, it.ifname): (it.netns, it.since)
                                   for it in cache.attachments()})
    try:
        status = run(path, Options(
            workers=workers, queue_size=queue_size, queue_timeout_s=queue_timeout_s, uids={0, os.geteuid(), *uids},
            latency_request_s=latency_request_s, level=log_level, fmt=log_format, log_to=log_to or "stderr",
            idle_exit_s=idle_exit_min * 60, replay=lambda deleted_at: restore(cache, deleted_at=deleted_at),
            drops=drops, pods=pods, configured=configured, networks=networks, beside=beside, parts=parts,
            collectors=[*collectors, *(flow_collectors(parts) if where else ())],
            receivers=[it.receive for it in collectors], metrics=where, count=count, http=page,
            make_status=make_status, make_topology=make_topology, history=history, otlp=otlp,
            kubernetes_events=kubernetes_events))
    except ListenError as e:
        raise CniError(errors.IO_FAILURE, str(e)) from e
    raise SystemExit(status)


def agent_collectors() -> "list[AgentCollector]":
    """The metrics of --agent; none without the Prometheus client, of which the server says that it is missing."""
    try:
        from fastcni.agent.metrics import AgentCollector
    except ImportError:
        return []
    return [AgentCollector()]


def kept_flows(cache_dir: str) -> "Kept":
    """What --flows adds to the server."""
    from fastcni.cli.flows import open_collector
    from fastcni.flows.kept import Kept

    return Kept(lambda: open_collector("", [cache_dir] if cache_dir else ()))


def flow_collectors(kept: "Iterable[Kept]") -> "list[FlowsCollector]":
    """The metrics of --flows; none without the Prometheus client, as above."""
    try:
        from fastcni.flows.metrics import FlowsCollector
    except ImportError:
        return []
    return [*map(FlowsCollector, kept)]


def dhcp_daemon(path: str, leases: str, log: Logger) -> "Daemon":
    """The daemon of the dhcp plugin, for the server to start. Raises ListenError."""
    from fastcni.daemon.listening import ListenError
    from fastcni.dhcp.daemon import Daemon, raise_descriptor_limit
    from fastcni.dhcp.flags import Flags

    flags = Flags()
    flags.socketpath, flags.statedir = path or flags.socketpath, leases or flags.statedir
    raise_descriptor_limit()
    try:
        return Daemon(flags, log, handed_over=False)
    except OSError as e:
        raise ListenError(f"the dhcp daemon: {e}") from e
