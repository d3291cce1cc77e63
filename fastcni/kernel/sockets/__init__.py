"""Open packet sockets and streams to daemons, list the sockets that wait at a port, and look up host names."""
