"""Open packet sockets and streams to daemons, list the sockets that wait at a port, and look up host names.

    packet_sockets  packet sockets and UDP sockets of one link
    streams         connects to a daemon's socket
    inet_sockets    lists the sockets that wait at a port
    name_lookup     looks up a host's name within a time limit
"""
