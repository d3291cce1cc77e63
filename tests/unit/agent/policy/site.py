"""The pods of a Node, with an agent that applies policies, and frames between these pods."""

from unit.agent.policy import frames
from unit.agent.policy.frames import arrived, delivered, ipv4, udp
from unit.agent.policy.pods import ADDRESSES, ON_BRIDGE, mac_of_pod
from unit.agent.policy.test_service import Running

from fastcni.kit import policies
from fastcni.testing.witnesses import eventually


class Site(Running):
    """The pods of a Node, and an agent. The agent has added some of the pods."""

    def __init__(self, node, tmp_path):
        self.node = node
        super().__init__(tmp_path)

    def names(self, *pods):
        return [self.node.names[name] for name in pods]

    def write(self, *documents):
        """Write the documents to the agent's file, and wait until the agent has read them."""
        super().write(*documents)
        assert eventually(lambda: self.it.figures()["policies"] == len(documents))

    def call(self, command, *args, **keys):
        """Run the plugin, and wait until the agent answers again. By then the agent has written the rules of an added
        pod."""
        result = super().call(command, *args, **keys)
        policies.ask(self.settings.socket, {"do": "status"})
        return result

    def pod(self, name, **keys):
        """Add a pod. keys: further keys of the plugin's configuration."""
        self.call("ADD", name, f"K8S_POD_NAME={name}", **keys)

    def arrived(self, sent, sender, receiver, last_from):
        """Return the titles of the frames that arrive. sent: {title: frame}. The last frame is a datagram of the pod
        `last_from`, which the receiver accepts."""
        return arrived(sent, *self.names(sender, receiver), self.datagram(last_from, receiver),
                       self.node.names[last_from])

    def delivered(self, sent, sender, receiver, last_from):
        return delivered(sent, *self.names(sender, receiver), self.datagram(last_from, receiver),
                         self.node.names[last_from], port=5000)

    def datagram(self, sender, receiver):
        to = mac_of_pod(receiver) if {sender, receiver} <= set(ON_BRIDGE) else self.gateway_mac(sender)
        return ipv4(mac_of_pod(sender), ADDRESSES[sender][0], ADDRESSES[receiver][0], udp(destination=5000), to=to)

    def gateway_mac(self, name):
        """Return the MAC to which a pod sends packets for other networks."""
        return frames.mac_of(None, "br0" if name in ON_BRIDGE else f"port-{name}")
