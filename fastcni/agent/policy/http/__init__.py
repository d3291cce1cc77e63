"""HTTP rules: read documents of kind CiliumNetworkPolicy, and run HAProxy, which allows or denies the requests.

    documents      reads CiliumNetworkPolicies
    patterns       validates regular expressions, and joins the conditions of a request
    part           runs HAProxy while a policy has HTTP rules
    process        starts and ends HAProxy, and changes its maps
    start_haproxy  the program that HAProxy's process runs first: a seccomp filter
    configuration  writes HAProxy's configuration and maps
    redirect       leads connections to HAProxy: nftables rules, a routing rule, a route
    expressions    nftables expressions of these rules; rules.py and egress/table.py use set_mark()
    access_log     receives HAProxy's log
"""
