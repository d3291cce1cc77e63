"""Masquerade: its keys, and a module for each backend."""
