"""Sockets other than netlink's: packet sockets, streams to daemons, the sockets that wait at a port; host names."""
