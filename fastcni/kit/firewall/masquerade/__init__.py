"""Masquerade traffic of pods: the key ipMasq, and a module for each backend."""
