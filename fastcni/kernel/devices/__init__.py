"""Links of a single kind: TAP devices, vxlan, WireGuard; the devices of the machine, from /sys."""
