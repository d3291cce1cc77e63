"""`fastcni flows`: show which pods of this node have connections to whom, and which rules drop their packets.

    table        writes nftables tables that select packets, while a process collects flows
    packets      reads addresses and ports of a packet
    traces       finds in the kernel's trace messages the chain that drops a packet, and policy rules that allow it
    isolation    finds drops between isolated ports of a bridge, which no nftables rule makes
    pods         finds the name of the pod with an address
    policies     finds the names of policies
    connections  reads the events of conntrack
    requests     reads the HTTP requests that an agent's proxy has allowed or denied
    flow         Flow, one line of the output
    collector    collects flows from all these sources
    last_flows   `fastcni serve --flows`: stores the last flows, and counts all
    metrics      the number of flows for Prometheus

While no process collects flows, fastcni has no rules, sockets or threads for them. The collecting process writes the
tables, and the kernel removes the tables when that process ends. Policies, firewall and plugins do not depend on flows.
"""
