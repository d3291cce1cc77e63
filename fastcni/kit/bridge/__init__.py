"""The bridge plugin: its keys, the bridge, and what the plugin offers beside.

    conf       the keys, read and checked against each other
    options    what ADD does only if the keys ask for it, in its order
    bridges    the bridge and its ports
    vlans      the keys vlan, vlanTrunk and preserveDefaultVlan
    gateways   the pods' gateways
    unflooded  disableFlooding
    checks     CHECK of the bridge and of the pod's port
"""
