"""Masquerade traffic of pods: the keys, and a module for each backend."""
