"""The command `fastcni agent`, which connects this node's pods to the pods of other nodes."""

from __future__ import annotations

import os
import shlex
import signal
import threading
from contextlib import contextmanager, nullcontext
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from fastcni.cli.options.addresses import http_address
from fastcni.cli.options.logging import NAMES as LOG_OPTIONS
from fastcni.cli.options.logging import log_options
from fastcni.spec import errors
from fastcni.spec.errors import CniError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fastcni.agent.contract import Address
    from fastcni.agent.metrics import AgentCollector
    from fastcni.agent.policy.service import Settings as PolicySettings
    from fastcni.agent.run import Agent, Options
    from fastcni.agent.thread import AgentThread
    from fastcni.daemon.log import LogOptions


@click.command()
@click.option("--etcd", "endpoints", multiple=True, envvar="FLANNELD_ETCD_ENDPOINTS", show_envvar=True, metavar="URL",
              help="Read the nodes' records from this etcd, in flannel's layout; may be repeated.")
@click.option("--etcd-prefix", default="/coreos.com/network", show_default=True, envvar="FLANNELD_ETCD_PREFIX",
              metavar="KEY", help="The prefix of the network's keys in etcd.")
@click.option("--etcd-cafile", default="", envvar="FLANNELD_ETCD_CAFILE", metavar="PEM",
              help="The CA of etcd's certificate.")
@click.option("--etcd-certfile", default="", envvar="FLANNELD_ETCD_CERTFILE", metavar="PEM",
              help="The client certificate for etcd.")
@click.option("--etcd-keyfile", default="", envvar="FLANNELD_ETCD_KEYFILE", metavar="PEM",
              help="The key of the client certificate.")
@click.option("--etcd-username", default="", envvar="FLANNELD_ETCD_USERNAME", metavar="NAME", help="The user of etcd.")
@click.option("--etcd-password-file", default="", metavar="FILE", help="The file with the user's password.")
@click.option("--kubernetes", default=None, is_flag=False, flag_value="", envvar="FLANNELD_KUBECONFIG_FILE",
              metavar="[KUBECONFIG]", help="Read the nodes' records from the cluster's Nodes: podCIDRs and "
              "flannel's annotations. Without a kubeconfig, use this pod's service account.")
@click.option("--net-conf", default="/etc/kube-flannel/net-conf.json", show_default=True, metavar="FILE",
              envvar="FLANNELD_NET_CONFIG_PATH", help="The network's configuration, with --kubernetes.")
@click.option("--annotation-prefix", default="flannel.alpha.coreos.com", show_default=True, metavar="PREFIX",
              envvar="FLANNELD_KUBE_ANNOTATION_PREFIX", help="The prefix of the annotations, with --kubernetes.")
@click.option("--nodes", "nodes_file", default="", metavar="FILE",
              help="Read the network and its nodes from this file, the same on each node.")
@click.option("--node-name", default="", envvar="NODE_NAME", metavar="NAME",
              help="This node's name in --nodes or --kubernetes.  [default: the host's name]")
@click.option("--iface", multiple=True, envvar="FLANNELD_IFACE", metavar="LINK",
              help="The link by which this node reaches other nodes, or an address of this link. May be repeated: the "
              "agent uses the first link that exists.  [default: the link of the default route]")
@click.option("--iface-regex", multiple=True, envvar="FLANNELD_IFACE_REGEX", metavar="REGEX",
              help="As --iface: the link whose name or address matches this regular expression.")
@click.option("--iface-can-reach", default="", envvar="FLANNELD_IFACE_CAN_REACH", metavar="ADDRESS",
              help="As --iface: the link of the route to this address.")
@click.option("--public-ip", "public", multiple=True, envvar="FLANNELD_PUBLIC_IP", metavar="ADDRESS",
              help="The address by which other nodes reach this node; once for each family.  [default: the link's]")
@click.option("--subnet-file", default="/run/flannel/subnet.env", show_default=True, envvar="FLANNELD_SUBNET_FILE",
              metavar="FILE", help="The file that the agent writes for the flannel plugin.")
@click.option("--conflist", default="/etc/cni/net.d/10-flannel.conflist", show_default=True, metavar="FILE",
              help="The pods' network configuration, which the agent writes unless the file is another program's. With "
              "an empty FILE the agent writes none.")
@click.option("--folder", "directory", default="/run/fastcni/agent", show_default=True, metavar="DIR",
              help="The directory for MACs of this node's links, pods that policies protect, and the plugin's socket.")
@click.option("--ip-masq/--no-ip-masq", default=True, show_default=True,
              help="Masquerade packets of pods that leave the network, by this node's address.")
@click.option("--policies", default="", envvar="FASTCNI_AGENT_POLICIES", show_envvar=True, metavar="SOURCE",
              help="Enforce network policies for pods. SOURCE is `kubernetes`, for its API, or a directory of files. "
              "The agent adds the plugin `policy` to the network's configuration.")
@click.option("--policies-kept", default="", metavar="FILE",
              help="The file with the last policies of SOURCE, for a restart while SOURCE is unreadable.  [default: "
              "/var/lib/fastcni/agent/policies; with another --folder, policies.kept there]")
@click.option("--dns-server", "dns_servers", multiple=True, metavar="ADDRESS",
              help="A resolver of pods. Policies by domain names allow the addresses in this resolver's answers. May "
              "be repeated.  [default: the nameservers of /etc/resolv.conf]")
@click.option("--flowtable", is_flag=True, help="Let a flowtable of nftables forward established connections between "
              "pods of ptp on this node, past all rules, until a policy forbids the connection.")
@click.option("--bgp", "bgp_file", default="", metavar="FILE",
              help="Announce this node's subnets by BGP through BIRD 2 or FRR; the file names the routers.")
@click.option("--metrics", default="", callback=http_address, envvar="FASTCNI_AGENT_METRICS", show_envvar=True,
              metavar="ADDRESS",
              help="Serve metrics to Prometheus at a unix socket's path, 127.0.0.1:PORT or [::1]:PORT. Off by default.")
@click.option("--leave", is_flag=True, help="Take this node out of the network: remove its record, links and rules.")
@log_options
def agent(metrics: str | tuple[str, int] | None, leave: bool, log: LogOptions, **network: Any) -> None:
    """Give this node a subnet, and routes to the pods of other nodes.

    The agent does what flanneld does. It writes the routes to other nodes' pods, restores them after changes, and
    writes /run/flannel/subnet.env for the flannel plugin. SIGTERM ends the agent and leaves the network as it is.
    """
    from fastcni.agent.contract import ConfigurationError, NoSubnetLeft, SubnetLost
    from fastcni.agent.run import Agent
    from fastcni.clients.errors import Away
    from fastcni.daemon import log as logs
    from fastcni.daemon.stop_signals import UNUSED_SIGNALS, stop_signals
    from fastcni.daemon.systemd_notify import Notifier

    options = read_options(**network)
    page = MetricsPage(metrics) if metrics else None
    logger = logs.make(*log, [page.collector.receive] if page else [])
    notifier = Notifier(os.environ, logger)
    signal.pthread_sigmask(signal.SIG_BLOCK, UNUSED_SIGNALS)    # before the first thread, which inherits the mask
    it = Agent(options, logger, lambda: notifier.notify("READY=1"))
    try:
        if leave:
            it.leave()
            return
        for number in stop_signals():
            # In a thread, because a signal handler may interrupt a function that holds the lock of stop().
            signal.signal(number, lambda *_: threading.Thread(target=it.stop).start())
        with page.shown(it) if page else nullcontext():
            it.run()
    except (ConfigurationError, NoSubnetLeft, Away, SubnetLost) as e:
        raise CniError(errors.INVALID_CONFIG, str(e)) from None
    except OSError as e:
        raise CniError(errors.IO_FAILURE, str(e)) from None


def read_options(endpoints: Sequence[str], etcd_prefix: str, etcd_cafile: str, etcd_certfile: str, etcd_keyfile: str,
                 etcd_username: str, etcd_password_file: str, kubernetes: str | None, net_conf: str,
                 annotation_prefix: str, nodes_file: str, node_name: str, iface: Sequence[str],
                 iface_regex: Sequence[str], iface_can_reach: str, public: Sequence[str], subnet_file: str,
                 conflist: str, directory: str, ip_masq: bool, policies: str, policies_kept: str,
                 dns_servers: Sequence[str], flowtable: bool, bgp_file: str) -> Options:
    """Convert the command's options to the Agent's Options. Raises click.UsageError, CniError 7."""
    if [bool(endpoints), kubernetes is not None, bool(nodes_file)].count(True) != 1:
        raise click.UsageError("say where the nodes' records are: --etcd URL, --kubernetes or --nodes FILE")
    if flowtable and not policies:
        raise click.UsageError("--flowtable needs --policies")
    from fastcni.agent.bgp import read_settings
    from fastcni.agent.contract import ConfigurationError
    from fastcni.agent.run import Options
    from fastcni.agent.underlay import Options as Underlay

    name = node_name or os.uname().nodename
    settings: dict[str, Any] = {"path": nodes_file, "name": name}
    if kubernetes is not None:
        settings = {"kubeconfig": kubernetes, "node": name.lower(), "net_conf": net_conf,
                    "annotation_prefix": annotation_prefix, "kept": kept_path(directory, "nodes")}
    elif endpoints:
        settings = {"endpoints": [url for text in endpoints for url in text.split(",")], "prefix": etcd_prefix,
                    "ca": etcd_cafile, "cert": etcd_certfile, "key": etcd_keyfile, "username": etcd_username,
                    "password_file": etcd_password_file, "kept": kept_path(directory, "nodes")}
    try:
        bgp = read_settings(bgp_file) if bgp_file else None
    except ConfigurationError as e:
        raise CniError(errors.INVALID_CONFIG, str(e)) from None
    underlay = Underlay(iface, iface_regex, iface_can_reach, read_public(public))
    kind = "etcd" if endpoints else "static" if nodes_file else "kubernetes"
    return Options(kind, settings, underlay, subnet_file, conflist, directory, ip_masq, bgp,
                   policy_settings(policies, kubernetes or "", name, directory, policies_kept,
                                   read_dns_servers(dns_servers), flowtable) if policies else None)


NOT_BESIDE = ("metrics", "leave", *LOG_OPTIONS)          # options that `fastcni serve` has itself


def read_beside(text: str) -> Options:
    """Convert the TEXT of `fastcni serve --agent TEXT`, options of `fastcni agent`, to the Agent's Options. Raises
    click.UsageError, CniError 7."""
    try:
        words = shlex.split(text)
    except ValueError as e:
        raise click.UsageError(f"--agent: {e}") from None
    with agent.make_context("fastcni agent", words) as context:
        for name in NOT_BESIDE:
            if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
                raise click.UsageError(f"--agent: --{name.replace('_', '-')} is not an option of the agent in the "
                                       "server")
        return read_options(**{key: value for key, value in context.params.items() if key not in NOT_BESIDE})


def make_agent_thread(text: str, collectors: Sequence[AgentCollector]) -> Callable[[Any], AgentThread]:
    """Return a function that makes the agent inside the server from the server's log. text: the TEXT of `--agent TEXT`.
    collectors: the collectors that get the running agent and show its metrics. Raises the errors of read_beside()."""
    from fastcni.agent.thread import AgentThread

    options = read_beside(text)

    def note(agent: Agent) -> None:
        for collector in collectors:
            collector.agent = agent

    return lambda log: AgentThread(options, log, note)


class MetricsPage:
    """The web page /metrics of the agent. where: its address (see --metrics). Raises CniError if prometheus_client is
    not installed."""

    def __init__(self, where: str | tuple[str, int]) -> None:
        try:
            from fastcni.agent.metrics import AgentCollector
            from fastcni.server.metrics import registry
        except ImportError as e:
            raise CniError(errors.INVALID_CONFIG, f"--metrics needs the Python package prometheus_client ({e})",
                           "install fastcni[metrics], or Debian's python3-prometheus-client") from e
        self.where, self.collector = where, AgentCollector()
        self.path, self.page = registry.PATH, registry.make_page(self.collector)

    @contextmanager
    def shown(self, agent: Agent) -> Iterator[None]:
        """Serve the page while the body of the `with` statement runs."""
        from fastcni.daemon.listening import ListenError
        from fastcni.server.web.site import Site

        self.collector.agent = agent
        site = Site(self.where, agent.log)
        site.pages[self.path] = self.page
        site.announce("metrics_ready")
        try:
            site.listen()
        except ListenError as e:
            raise CniError(errors.IO_FAILURE, str(e)) from e
        site.attach()
        site.start()
        try:
            yield
        finally:
            site.stop()


def kept_path(directory: str, name: str) -> str:
    """Return the path of an agent's file that survives a reboot. directory: the value of --folder. name: a part of the
    file's name."""
    from fastcni.agent.peer_list import DIRECTORY as DEFAULT

    # a reboot empties the default directory
    return f"/var/lib/fastcni/agent/{name}" if directory == DEFAULT else os.path.join(directory, f"{name}.kept")


def policy_settings(source: str, kubeconfig: str, name: str, directory: str, kept: str,
                    dns_servers: tuple[str, ...] = (), flowtable: bool = False) -> PolicySettings:
    """Return the settings of the agent's policies. source: the value of --policies. name: the node's name. directory:
    the agent's directory, which has the socket for the plugin `policy`. kept, dns_servers, flowtable: the values of
    --policies-kept, --dns-server and --flowtable."""
    from fastcni.agent.policy.attached import DIRECTORY
    from fastcni.agent.policy.service import Settings
    from fastcni.clients.kubernetes import open_api

    state, socket = os.path.join(directory, DIRECTORY), os.path.join(directory, "policy.sock")
    kept = kept or kept_path(directory, "policies")
    if source == "kubernetes":
        return Settings(api=lambda: open_api(kubeconfig), node=name.lower(), state=state, socket=socket, kept=kept,
                        dns_servers=dns_servers, flowtable=flowtable)
    return Settings(os.path.abspath(source), state=state, socket=socket, kept=kept, dns_servers=dns_servers,
                    flowtable=flowtable)


def read_dns_servers(texts: Sequence[str]) -> tuple[str, ...]:
    """Check the addresses of --dns-server and return them. Raises click.BadParameter."""
    from fastcni.agent.policy.names.resolvers import can_be_asked
    from fastcni.spec.address import read_ip

    for text in texts:
        try:
            askable = can_be_asked(read_ip(text))
        except ValueError as e:
            raise click.BadParameter(str(e), param_hint="--dns-server") from None
        if not askable:
            raise click.BadParameter(f"no pod can ask {text}", param_hint="--dns-server")
    return tuple(texts)


def read_public(texts: Sequence[str]) -> "dict[int, Address]":
    """Return {4 or 6: address} for the addresses of --public-ip. Raises click.BadParameter."""
    try:
        found = [ip_address(text) for text in texts]
    except ValueError as e:
        raise click.BadParameter(str(e), param_hint="--public-ip") from None
    return {address.version: address for address in found}
