"""Enforce the key ingressPolicy of the plugin firewall: a module for each backend."""
