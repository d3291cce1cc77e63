"""Set sysctls of pods and of the host."""
