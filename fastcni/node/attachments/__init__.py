"""Find the attachments of this node: read sightings in files and in the kernel, and merge them to attachments with a
state.

    inventory     the complete inventory, from all readers
    attachment    the records of sightings and attachments
    merge         decides which sightings belong to one attachment, and its state
    caches        sightings in the result caches of runtimes
    cache_dirs    the directories of cached results
    address_dirs  sightings in the address files of host-local and cluster
    pod_files     sightings in the files of pods that plugins write
    tables        sightings in nftables
    iptables      sightings in iptables
    drops         finds chains that drop pods' forwarded packets
    refusals      finds rules that drop or reject pods' forwarded packets
    links         links of the host that lead to pods
    namespaces    addresses and links inside network namespaces
    listeners     the node's addresses, and the ports on which processes listen
    inspect       all details of one attachment
    explain       the meaning of an address, port, link, chain or container id
    topology      bridges and other parents, with the pods on them
    documents     the records as plain JSON values
    adopt         lists the attachments of the reference plugins that fastcni recognises
"""
