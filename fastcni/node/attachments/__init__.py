"""Find the attachments of this node: sightings in files and in the kernel, merged to attachments with a state.

    inventory     the complete inventory, from all readers
    records       the records of sightings and attachments
    merge         which sightings belong to one attachment, and its state
    caches        sightings in the result caches of runtimes
    cache_dirs    the directories of cached results
    address_dirs  sightings in address files
    pod_files     sightings in files that plugins keep
    tables        sightings in nftables
    iptables      sightings in iptables
    drops         chains that drop pods' forwarded packets
    refusals      rules that drop or reject pods' forwarded packets
    links         links of the host that lead to pods
    namespaces    addresses and links inside network namespaces
    listeners     the node's addresses, and the ports on which processes listen
    inspect       all details of one attachment
    explain       the meaning of an address, port, link, chain or container id
    topology      bridges and other parents, with the pods on them
    documents     the records as plain JSON values
    adopt         the attachments of the Go plugins that fastcni recognises
"""
