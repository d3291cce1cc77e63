"""Restore the pods' firewall state after another program has flushed it.

    restorer         the thread that restores, for all network namespaces
    restore_states   the states of restoring, and their transitions
    namespace_watch  one network namespace whose firewall state is restored
    table_mirror     a copy of fastcni's own nftables tables, to restore them from
    iptables_watch   the signs that the state of pods in iptables or firewalld was deleted
    legacy_watch     the same for legacy iptables, whose changes the kernel does not notify
    drop_watch       logs which pods' packets other firewalls begin to drop
    neighbour_watch  restores FDB entries and neighbours of pods with disableFlooding
    replay           restores pods' rules in iptables and firewalld from the runtimes' result caches
"""
