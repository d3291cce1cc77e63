"""Sysctls of pods and of the host."""
