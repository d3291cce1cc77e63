"""Bits of packet marks and connection marks in the node's namespace. No packet from elsewhere carries a mark."""

OUT, IN = 1 << 24, 1 << 25      # of a first packet: rules of egress, of ingress allow it through the proxy only
PROXIED = 1 << 26               # of a packet: for a socket of the proxy. Of a connection: one end is the proxy
EITHER = OUT | IN               # bits of a client's connection to the proxy: whose rules judge its requests
