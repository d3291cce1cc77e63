"""Restore the pods' firewall state after another program has flushed it.

    restorer         the thread that restores, for all network namespaces
    restore_states   the states of what is restored, and their transitions
    namespace_watch  one network namespace whose firewall state is restored
    table_mirror     a copy of fastcni's own nftables tables, to restore them from
    iptables_watch   the signs that the state of pods in iptables or firewalld is gone
    legacy_watch     the same for legacy iptables, whose changes the kernel does not announce
    drop_watch       logs what other firewalls begin to drop of pods
    neighbour_watch  what a bridge knows of pods with disableFlooding
    replay           restores what pods have in iptables and firewalld from what runtimes cached
"""
