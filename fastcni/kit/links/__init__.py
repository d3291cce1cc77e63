"""Make, find, move, configure and delete the pod's links; change the pod's routes and routing rules.

    find              reads links and addresses; changes nothing
    change            changes or deletes a link by one request
    veth              makes a veth pair
    devices           the common part of macvlan, ipvlan, vlan, host-device, dummy and tap
    taps              makes TAP devices
    master            reads the keys `master` and `linkInContainer`
    host_devices      reads the keys of host-device, and finds the device
    moving            moves a link into the pod and back
    remove            deletes the pod's link for DEL
    configure         addresses and routes of a result, and the link's state up
    ptp_routes        routes of ptp, at both ends
    attributes        MAC, MTU, queue length, promiscuity and multicast of the pod's link
    attribute_backup  the file of the previous attributes
    announced         waits until a bridge port is up, or addresses are usable
    checks            CHECK's comparisons with prevResult
    routing           moves and restores the pod's routes and rules
    source_routing    the plugin sbr: rules and tables for each address
    vrfs              the plugin vrf
"""
