"""Define the bits of packet marks and connection marks that rules of policies use in the node's namespace. All policies
use ALLOWED. Only HTTP rules use the other bits, which other programs must not set."""

OUT, IN = 1 << 24, 1 << 25      # packet mark: egress (OUT) or ingress (IN) rules allow only proxied connections
PROXIED = 1 << 26               # packet mark: to a socket of the proxy. Connection mark: the proxy is one end
ALLOWED = 1 << 27               # packet mark, only inside the chain `egress`: a rule allows the packet
EITHER = OUT | IN               # connection mark, client to proxy: the directions whose rules decide on the requests
