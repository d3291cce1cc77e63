"""The bridge plugin: its keys, the bridge, and its options.

    conf       the keys, read and checked against each other
    options    the parts of ADD that only some keys switch on, in the order of ADD
    bridges    the bridge and its ports
    vlans      the keys vlan, vlanTrunk and preserveDefaultVlan
    gateways   the pods' gateways
    unflooded  disableFlooding
    checks     CHECK of the bridge and of the pod's port
"""
