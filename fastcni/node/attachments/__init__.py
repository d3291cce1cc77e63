"""Which attachments exist on this node: sightings in files and in the kernel, merged, and what they mean.

    inventory     all of it: the one place that answers which attachments exist
    records       where an attachment was seen, and what is known of it
    merge         which sightings belong to one attachment, and its state
    caches        sightings in the result caches of runtimes
    address_dirs  sightings in address files
    pod_files     sightings in files that plugins keep
    tables        sightings in nftables
    iptables      sightings in iptables
    drops         chains that drop what pods forward
    refusals      rules that drop or reject what pods forward
    links         links of the host that lead to pods
    namespaces    addresses and links inside network namespaces
    listeners     the node's addresses, and the ports on which processes listen
    inspect       everything about one attachment
    explain       what an address, a port, a link, a chain or a container id means
    topology      bridges and other parents, with the pods on them
    documents     the records as plain JSON values
    adopt         the attachments of the Go plugins that fastcni recognises
"""
