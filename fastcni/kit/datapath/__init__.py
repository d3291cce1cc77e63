"""Implement the datapath "ebpf" of ptp: packets between two pods of the node skip the host's network stack.

    maps      encodes and decodes the elements of the two maps
    pins      opens the programs and maps of this network namespace; the first pod that needs them loads them
    filters   adds the filters at the host end of a pod's link
    redirect  adds a pod's link to the datapath and removes the link; deletes old addresses and flows
    restrict  ends the redirection of a pod's flows when a network policy begins to apply to the pod

kernel/bpf/redirect.bpf.c has the programs. docs/datapath.md lists what the packets skip.
"""
