"""`fastcni flows`: which pods talk to whom on this node, and what drops their packets.

    table        the nftables tables that select packets, while a process collects flows
    packets      addresses and ports of a packet
    traces       the kernel's messages about a packet -> the chain that drops it, the rules of policies that let it pass
    isolation    drops between isolated ports of a bridge, which no rule decides
    pods         the names of pods by address
    policies     the names of policies
    connections  the events of conntrack
    requests     HTTP requests that an agent's proxy has judged
    records      Flow, one line of the output
    collector    all of these
    kept         `fastcni serve --flows`: the last flows, and their number
    metrics      the number of flows for Prometheus

While no process collects flows there is no rule, no socket and no thread for them. The collecting process writes the
tables, and the kernel removes them when that process ends. Policies, firewall and plugins do not depend on flows.
"""
