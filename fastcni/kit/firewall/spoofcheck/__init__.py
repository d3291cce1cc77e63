"""Drop a pod's frames with a false source.

    mac  macspoofchk: checks the source MAC
    ip   ipspoofchk: checks the source addresses
"""
