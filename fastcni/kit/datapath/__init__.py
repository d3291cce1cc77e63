"""The datapath "ebpf" of ptp: packets of flows between two pods of the node skip the host's stack.

    maps      what the two maps have, as bytes
    pins      the programs and maps of this network namespace: opened, or loaded by the first that needs them
    filters   those at the host end of a pod's link
    redirect  a pod's link joins the datapath and leaves it; what no longer exists is swept
    restrict  a policy begins to restrict a pod: its flows pass through the host's stack again

kernel/bpf/redirect.bpf.c has the programs, docs/datapath.md what they skip.
"""
