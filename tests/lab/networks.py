"""Make configurations of multus with the networks a, b and c, and read the files of pods."""

import json
from pathlib import Path

from lab.node import cid_of

NETWORKS, FIRST = "k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network"
STUBBORN = """#!/bin/sh
cat > /dev/null
echo "$CNI_COMMAND" >> {directory}/calls
if [ "$CNI_COMMAND" = DEL ] && [ -e {directory}/refuses ]; then
    echo '{{"cniVersion": "1.1.0", "code": 100, "msg": "not now"}}'
    exit 1
fi
echo '{{"cniVersion": "1.1.0"}}'
"""


def network(node, letter, **keys):
    """Return a network on the bridge br-LETTER with the subnet 10.1.LETTER.0/24."""
    number = ord(letter) - ord("a") + 1
    return {"cniVersion": "1.1.0", "name": letter, "type": "bridge", "bridge": f"br-{letter}",
            "ipam": node.host_local(f"10.1.{number}.0/24"), **keys}


def multus(node, *delegates, annotations=None, capabilities=None, **keys):
    """Return a configuration of multus. annotations: the pod's annotations, as containerd passes them."""
    runtime = {"io.kubernetes.cri.pod-annotations": annotations} if annotations is not None else {}
    return {"cniVersion": "1.1.0", "name": "multus-cni-network", "type": "multus", "binDir": "/nowhere",
            "cniDir": f"{node.data_dir}/multus", "confDir": str(conf_dir(node)),
            **({"delegates": list(delegates)} if delegates else {}),
            "runtimeConfig": {**runtime, **(capabilities or {})}, **keys}


def conf_dir(node):
    return Path(node.data_dir).with_name("definitions")


def define(node, *confs, namespace=""):
    """Write network definitions to files."""
    directory = conf_dir(node) / namespace
    directory.mkdir(parents=True, exist_ok=True)
    for conf in confs:
        (directory / f"{conf['name']}.{'conf' if 'type' in conf else 'conflist'}").write_text(json.dumps(conf))


def elements(node, pod):
    """Return the JSON objects in the file in which multus keeps the pod's networks."""
    return json.loads(Path(node.data_dir, "multus", cid_of(pod)).read_text())


def kept(node):
    """Return the paths of all files that multus keeps, relative to its directory."""
    root = Path(node.data_dir, "multus")
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


def held(node, *letters):
    return [len(node.held(letter)) for letter in letters]


def make_stubborn(directory):
    """Write a plugin "stubborn", which stands for a plugin of another project. DEL fails while the file `refuses`
    exists. The plugin writes each command to the file `calls`."""
    (directory / "stubborn").write_text(STUBBORN.format(directory=directory))
    (directory / "stubborn").chmod(0o755)
    (directory / "refuses").touch()
