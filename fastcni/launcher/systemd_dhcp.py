"""Make the texts of the systemd units of `dhcp daemon`, which the plugin file `dhcp` runs. systemd.py writes and
removes the units."""

from __future__ import annotations

from collections.abc import Sequence

NAMES = ("fastcni-dhcp.socket", "fastcni-dhcp.service")
CAPABILITIES = ("CAP_NET_ADMIN", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SYS_ADMIN", "CAP_SYS_PTRACE")

SOCKET = """\
[Unit]
Description=Socket of the fastcni dhcp daemon
Documentation=https://www.cni.dev/plugins/current/ipam/dhcp/

[Socket]
ListenStream=/run/cni/dhcp.sock
SocketMode=0600
RemoveOnStop=yes

[Install]
WantedBy=sockets.target
"""

SERVICE = """\
[Unit]
Description=fastcni dhcp daemon: leases the addresses of pods, and renews them
Documentation=https://www.cni.dev/plugins/current/ipam/dhcp/
Requires=fastcni-dhcp.socket
After=fastcni-dhcp.socket

[Service]
ExecStart={command}
# A restarted daemon continues the leases in /var/lib/cni/dhcp.
Restart=on-failure
RestartSec=1s
OOMScoreAdjust=-500

# SYS_ADMIN: setns(2) into pods. NET_ADMIN: addresses and routes. NET_RAW: packets before the pod has an address.
# NET_BIND_SERVICE: renewals come from port 68.
# SYS_PTRACE: pods that the runtime names by a process, as /proc/PID/ns/net.
CapabilityBoundingSet={capabilities}
NoNewPrivileges=yes
# The daemon enters network namespaces. Other kinds are forbidden.
RestrictNamespaces=net
RestrictAddressFamilies=AF_UNIX AF_NETLINK AF_INET AF_PACKET
ProtectSystem=full
# Not yes: the plugins' Python may be below /home.
ProtectHome=read-only
# No PrivateMounts, MountFlags=private or RootDirectory: later mounts in /run/netns must appear here.

[Install]
# At boot, not at the first request: the leases of running pods have to be renewed.
WantedBy=multi-user.target
Also=fastcni-dhcp.socket
"""


def texts(command: str) -> dict[str, str]:
    """Return {name: text} of the units. command: the daemon's command line, quoted for ExecStart=."""
    return dict(zip(NAMES, (SOCKET, SERVICE.format(command=command, capabilities=" ".join(CAPABILITIES))), strict=True))


def enabled(written: Sequence[str]) -> bool:
    """Return whether the units at these paths include the units of the dhcp daemon."""
    return any(path.endswith(NAMES[1]) for path in written)
