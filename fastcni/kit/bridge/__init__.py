"""Implement the bridge plugin: its keys, the bridge, and the plugin's options.

    conf       reads the keys and checks them against each other
    options    lists the options that keys switch on, in the order of ADD
    bridges    makes or adopts the bridge, and adds ports
    vlans      applies the keys vlan, vlanTrunk and preserveDefaultVlan
    gateways   adds the pods' gateways to the bridge
    unflooded  applies disableFlooding
    checks     checks the bridge and the pod's port, for CHECK
"""
