"""Define the bits of packet marks and connection marks in the node's namespace. Packets arrive without a mark."""

OUT, IN = 1 << 24, 1 << 25      # packet mark: egress (OUT) or ingress (IN) rules allow the connection by proxy only
PROXIED = 1 << 26               # packet mark: for a socket of the proxy. Connection mark: one end is the proxy
EITHER = OUT | IN               # connection mark, client to proxy: OUT, IN or both, whose rules judge the requests
