"""The pod's links: made, found, moved, configured, deleted; bridges, VLANs, routes."""
