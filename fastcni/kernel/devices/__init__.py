"""Links of a single kind: TAP devices, vxlan, WireGuard."""
