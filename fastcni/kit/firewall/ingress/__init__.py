"""Enforce the key ingressPolicy of the plugin firewall. Each backend has a module."""
