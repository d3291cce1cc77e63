"""Restore the pods' firewall state after another program has flushed it.

    restorer         the thread that restores, for all network namespaces
    restore_states   the states of restoring, and their transitions
    namespace_watch  one network namespace whose firewall state is restored
    table_mirror     a copy of fastcni's own nftables tables, from which the server restores them
    iptables_watch   detects that another program deleted pods' rules in iptables or firewalld
    legacy_watch     polls legacy iptables, because the kernel does not notify its changes
    drop_watch       logs which pods' packets other firewalls begin to drop
    neighbour_watch  restores FDB entries and neighbours of pods with disableFlooding
    replay           restores pods' rules in iptables and firewalld from the runtimes' result caches
"""
