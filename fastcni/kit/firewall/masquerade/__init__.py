"""Masquerade traffic of pods, for the key ipMasq. Each backend has a module."""
