"""Read the keys of the multus plugin."""

from __future__ import annotations

from fastcni.kit.networks.network import Definition, define
from fastcni.spec import config
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from fastcni.spec.config import Section

# {key of Multus that has no effect in fastcni: reason}
IGNORED = {
    **dict.fromkeys(("logFile", "logLevel", "logOptions", "logToStderr"), "fastcni has its own log"),
    **dict.fromkeys(("daemonSocketDir", "socketDir", "chrootDir", "cniConfigDir", "multusAutoconfigDir",
                     "multusConfigFile", "multusMasterCNI", "forceCNIVersion", "overrideNetworkName",
                     "connectionLimit", "metricsPort", "enablePprof", "perNodeCertificate"),
                    "a key of the daemon of Multus, which fastcni does not need"),
}
CNI_DIR, CONF_DIR, BIN_DIR = "/var/lib/cni/multus", "/etc/cni/multus/net.d", "/opt/cni/bin"


class Keys:
    """The keys of a configuration of the multus plugin.

    delegates                   networks whose definitions are inside the configuration
    cluster_network, defaults   names or paths of networks (clusterNetwork, defaultNetworks), instead of `delegates`
    namespace                   the namespace of the definitions of these networks (multusNamespace)
    isolation, shared           isolation: whether a pod may name only networks of its own namespace and of the
                                namespaces in `shared`
    ready_file                  an ADD waits until this file exists
    bin_dir                     the directory of plugins; "": search the directories of CNI_PATH, then BIN_DIR
    kubeconfig                  the kubeconfig of the API server with pods and definitions, "" for none
    auxiliary                   the name of the chain that runs after all networks, "" for none (auxiliaryCNIChainName)
    hot_plug                    whether the server follows the annotations of running pods
    ignored                     a text for each key that has no effect
    """

    __slots__ = ("delegates", "cluster_network", "defaults", "namespace", "system_namespaces", "isolation", "shared",
                 "ready_file", "cni_dir", "conf_dir", "bin_dir", "kubeconfig", "hot_plug", "auxiliary", "ignored")
    delegates: list[Definition]
    cluster_network: str
    defaults: list[str]
    namespace: str
    system_namespaces: list[str]
    isolation: bool
    shared: list[str]
    ready_file: str
    cni_dir: str
    conf_dir: str
    bin_dir: str
    kubeconfig: str
    hot_plug: bool
    auxiliary: str
    ignored: list[str]

    def default_titles(self, namespace: str) -> list[str]:
        """Return the titles of the networks that `defaultNetworks` gives to pods of a namespace."""
        if namespace in self.system_namespaces:
            return []
        return [name if "/" in name else f"{self.namespace}/{name}" for name in self.defaults]


def read_keys(conf: Section) -> Keys:
    """Read all keys. Raises CniError 7."""
    keys = Keys()
    keys.cni_dir, keys.conf_dir = conf.file("cniDir", CNI_DIR), conf.file("confDir", CONF_DIR)
    keys.bin_dir, keys.ready_file = conf.file("binDir"), conf.file("readinessindicatorfile")
    keys.cluster_network, keys.defaults = conf.text("clusterNetwork"), conf.texts("defaultNetworks")
    if any("\0" in name for name in (keys.cluster_network, *keys.defaults)):
        keys.cluster_network = conf.bad("clusterNetwork", "a NUL in the name of a network", "")
        keys.defaults = []
    keys.namespace = conf.text("multusNamespace") or "kube-system"
    keys.system_namespaces = conf.texts("systemNamespaces") or ["kube-system"]
    keys.isolation = conf.flag("namespaceIsolation")
    keys.shared = [name.strip() for name in (conf.text("globalNamespaces") or "default").split(",")]
    keys.kubeconfig, keys.hot_plug = conf.file("kubeconfig"), conf.flag("hotPlug")
    keys.auxiliary = conf.text("auxiliaryCNIChainName")
    if keys.auxiliary:
        try:
            config.check_network_name(keys.auxiliary)
        except CniError as e:
            keys.auxiliary = conf.bad("auxiliaryCNIChainName", e.msg, "")
        if "/" not in keys.cluster_network:
            keys.auxiliary = conf.bad("auxiliaryCNIChainName", "`clusterNetwork` must be the path of a file; the "
                                      "directory of that name is next to this file", "")
    keys.ignored = [f"{key} is ignored: {why}" for key, why in IGNORED.items() if conf.has(key)]
    conf.has("retryDeleteOnError")              # fastcni always retries; has() marks the key as known
    keys.delegates = []
    for index, document in enumerate(conf.items("delegates")):
        where = f"delegates[{index}]"
        keys.delegates.append(define(document, conf.text("name"), conf.text("cniVersion"), conf.path(where)))
    if keys.delegates and keys.cluster_network:
        conf.bad("clusterNetwork", "must not be beside `delegates`", "")
    if not keys.delegates and not keys.cluster_network:
        conf.bad("delegates", "neither `delegates` nor `clusterNetwork` names the pod's first network", "")
    return keys
