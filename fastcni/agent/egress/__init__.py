"""Give the packets that selected pods send to outside the cluster a fixed source address. One node at a time holds this
address.

    part          the part of the policy service: passes documents and pods to Egress
    service       Egress: claims addresses, adds them to links, routes pods to the holder
    objects       reads EgressAddress documents, and chooses a pod's address
    index         the documents and the pods that they select
    claims        the stores of claims; a claim says which node holds an address
    holding       claims and renews this node's addresses
    lending       adds addresses to links for a limited time
    surroundings  the other nodes, the next hops to them, the ranges inside the cluster
    routes        policy routes to the node that holds an address
    table         the nftables table: marks, source NAT, drops
    expressions   nftables expressions that only this table uses
    flows         deletes conntrack flows of pods whose egress address has changed
"""
