import time
from real_kernel.node import *
def test_a(node, pod_netns):
    conf = node.conf(type="ptp", routes=["0.0.0.0/0"])
    one, two = pod_netns(), pod_netns()
    node.add(conf, one); node.add(conf, two)
    print(run("ip","-br","link"), run("ip","-n",one,"-br","link"))
    for a,b,c in ((one,None,"10.22.0.1"),(two,None,"10.22.0.1"),(None,two,"10.22.0.3"),(one,two,"10.22.0.3"),(one,two,"10.22.0.3")):
        t=time.monotonic(); r=source_seen(a,b,c); print(a,b,c,r,time.monotonic()-t)
def test_dup(node,pod):
    set_sysctl("net/ipv6/conf/default/accept_dad", "0")
    ipam = {"type": "static", "addresses": [{"address": "fd00:22::7/64", "gateway": "fd00:22::7"}]}
    print(node.refused("ADD", node.conf(type="ptp", ipam=ipam), pod))
