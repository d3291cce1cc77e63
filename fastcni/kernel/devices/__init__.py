"""Make links of special kinds (TAP, vxlan, WireGuard), change offloads, and read the machine's devices from /sys."""
