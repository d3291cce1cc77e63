"""Set sysctls of pods and of the host.

    pod_sysctls  writes and checks the sysctls that a configuration names
    allowlist    the administrator's list of allowed sysctls
    forwarding   enables IP forwarding on the host
"""
