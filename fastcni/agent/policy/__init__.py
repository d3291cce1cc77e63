"""Enforce network policies on this node's pods by nftables rules. Packets do not pass through the agent."""
