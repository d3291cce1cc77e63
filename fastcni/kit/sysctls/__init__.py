"""Sysctls of pods and of the host: which may be set, and their values before."""
