"""The command `fastcni serve`: run the warm server."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from fastcni.cli.options.addresses import http_address, otlp_url
from fastcni.cli.options.logging import log_options
from fastcni.server.cpu_latency import DEFAULT_S
from fastcni.server.records.history import DEFAULT_SIZE
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from fastcni.agent.metrics import AgentCollector
    from fastcni.daemon.log import Logger, LogOptions
    from fastcni.dhcp.daemon import Daemon
    from fastcni.flows.last_flows import LastFlows
    from fastcni.flows.metrics import FlowsCollector
    from fastcni.server.service import Beside


@click.command()
@click.option("--socket", "path", default="/run/fastcni/fastcni.sock", show_default=True, envvar="FASTCNI_SOCKET",
              show_envvar=True, metavar="PATH", help="The socket to listen at; not used if systemd passes a socket.")
@click.option("--workers", default=32, show_default=True, type=click.IntRange(1, 1024), metavar="N",
              help="Requests that may run at the same time.")
@click.option("--queue-size", default=1024, show_default=True, type=click.IntRange(1), metavar="N",
              help="Requests that may wait in the queue; the server rejects further requests with code 11.")
@click.option("--queue-timeout", "queue_timeout_s", default=60.0, show_default=True,
              type=click.FloatRange(0, min_open=True), metavar="SECONDS",
              help="How long a request may wait in the queue before the server rejects it with code 11.")
@click.option("--allow-uid", "uids", multiple=True, type=click.IntRange(0), metavar="UID",
              callback=lambda *given: {0, os.geteuid(), *given[-1]},
              help="Serve this user, too; may be repeated. The server always serves root.")
@click.option("--latency-request", "latency_request_s", default=DEFAULT_S, show_default=True,
              type=click.FloatRange(0, 60), envvar="FASTCNI_LATENCY_REQUEST_S", show_envvar=True, metavar="SECONDS",
              help="Keep processors out of deep idle states for this time after each request; 0: never.")
@click.option("--cache-dir", default="", metavar="DIR",
              help="The directory of cached results; the server restores iptables rules from them [/var/lib/cni].")
@click.option("--idle-exit", "idle_exit_s", default=0.0, type=click.FloatRange(0), metavar="MINUTES",
              callback=lambda *given: 60 * given[-1],
              help="End after this time without a request; 0, the default: never.")
@click.option("--dhcp", is_flag=True, help="Run the daemon of the dhcp plugin, too, at its usual socket.")
@click.option("--dhcp-socket", default="", metavar="PATH", help="The socket of --dhcp [/run/cni/dhcp.sock].")
@click.option("--dhcp-leases", default="", metavar="DIR", help="The leases' directory for --dhcp [/var/lib/cni/dhcp].")
@click.option("--agent", "agent_options", default=None, metavar="OPTIONS",
              help="Run the node agent, too. OPTIONS are those of `fastcni agent` as one word: --agent '--etcd URL'.")
@click.option("--metrics", default="", callback=http_address, envvar="FASTCNI_METRICS", show_envvar=True,
              metavar="ADDRESS",
              help="Serve metrics to Prometheus at a unix socket's path, 127.0.0.1:PORT or [::1]:PORT. Off by default.")
@click.option("--http", default="", callback=http_address, envvar="FASTCNI_HTTP", show_envvar=True, metavar="ADDRESS",
              help="Serve the status page at an address in the form of --metrics; both may be the same. Off by "
              "default.")
@click.option("--history", default=DEFAULT_SIZE, show_default=True, type=click.IntRange(0, 100_000),
              envvar="FASTCNI_HISTORY", show_envvar=True, metavar="N",
              help="Keep the last N requests for `fastcni trace` and `fastcni top`; 0: none.")
@click.option("--flows", "keep_flows", is_flag=True,
              help="Keep the last 10,000 flows of pods, and count them, for `fastcni flows`. Off by default.")
@click.option("--otlp", default="", envvar=["FASTCNI_OTLP", "OTEL_EXPORTER_OTLP_ENDPOINT"], show_envvar=True,
              callback=otlp_url, metavar="URL",
              help="Send OpenTelemetry traces of requests to this collector, by OTLP over HTTP. Off by default.")
@click.option("--kubernetes-events", default="", envvar="FASTCNI_KUBERNETES_EVENTS", show_envvar=True,
              metavar="KUBECONFIG", help="Report warnings as Events of this node to the API server of this kubeconfig; "
              "`in-cluster`: to the API server of the server's own pod. Off by default.")
@click.option("--detached", is_flag=True,
              help="Leave the caller's cgroup, signal mask and limits; log to syslog, if it exists. For a server that "
              "no service manager starts.")
@log_options
def serve(path: str, cache_dir: str, dhcp: bool, dhcp_socket: str, dhcp_leases: str, agent_options: str | None,
          keep_flows: bool, detached: bool, log: LogOptions, **options: Any) -> None:
    """Run the requests of the installed plugins in one warm process.

    A plugin that finds no server runs its request itself. SIGTERM ends the server after its last answer.
    """
    if dhcp and options["idle_exit_s"]:
        raise click.UsageError("--dhcp renews leases, so the server must not end: leave --idle-exit out")
    if agent_options is not None and options["idle_exit_s"]:
        raise click.UsageError("--agent keeps the network, so the server must not end: leave --idle-exit out")
    from fastcni.daemon.listening import ListenError
    from fastcni.node.served import Served
    from fastcni.server.service import Options
    from fastcni.server.service import serve as run

    if detached:
        log = leave_caller(log)
    beside: list[Callable[[Logger], Beside]] = [partial(dhcp_daemon, dhcp_socket, dhcp_leases)] if dhcp else []
    parts = [last_flows(cache_dir)] if keep_flows else []
    of_agent, of_flows = make_collectors(agent_options is not None, parts) if options["metrics"] else ([], [])
    if agent_options is not None:
        from fastcni.cli.agent import make_agent_thread

        beside.append(make_agent_thread(agent_options, of_agent))
    try:
        status = run(path, Options(
            node=Served(cache_dir), log=log, receivers=[it.receive for it in of_agent], beside=beside,
            parts=parts, collectors=[*of_agent, *of_flows], **options))
    except ListenError as e:
        raise CniError(errors.IO_FAILURE, str(e)) from e
    raise SystemExit(status)


def leave_caller(log: LogOptions) -> LogOptions:
    """Detach this process from the process that started it with --detached. Return the options of the server's log."""
    from fastcni.daemon.log import SYSLOG
    from fastcni.server.detached import detach

    detach()
    if log.to:
        return log
    if os.path.exists(SYSLOG):
        return log._replace(to="syslog")
    return log._replace(level="warning")        # the log is a file in memory that nothing rotates


def make_collectors(agent: bool, parts: "Iterable[LastFlows]") -> "tuple[list[AgentCollector], list[FlowsCollector]]":
    """Return the Prometheus collectors of the agent, if it runs in the server, and of the parts of --flows. If
    prometheus_client is not installed, return no collectors; the server reports that the package is missing."""
    try:
        from fastcni.agent.metrics import AgentCollector
        from fastcni.flows.metrics import FlowsCollector
    except ImportError:
        return [], []
    return [AgentCollector()] if agent else [], [*map(FlowsCollector, parts)]


def last_flows(cache_dir: str) -> "LastFlows":
    """Return the part of the server that stores flows (--flows)."""
    from fastcni.cli.flows import open_collector
    from fastcni.flows.last_flows import LastFlows

    return LastFlows(lambda: open_collector("", [cache_dir] if cache_dir else ()))


def dhcp_daemon(path: str, leases: str, log: Logger) -> "Daemon":
    """Return the daemon of the plugin `dhcp`, which runs inside the server. Raises ListenError."""
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
