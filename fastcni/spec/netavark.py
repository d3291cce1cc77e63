"""Convert requests and answers of netavark's plugin protocol (plugin-API.md, version 1.0.0) to CNI and back.

    fastcni create           stdin: a network; stdout: the completed network
    fastcni setup NETNS      stdin: a container and one of its networks; stdout: a status block
    fastcni teardown NETNS   the same stdin; no answer
    fastcni info             stdout: versions

The launcher turns the arguments into variables: CNI_COMMAND is CREATE, ADD, DEL or VERSION, and CNI_NETNS is NETNS.
An error is {"error": "text"} on stdout and the exit status 1.
"""

from __future__ import annotations

from fastcni.spec import errors, json, version
from fastcni.spec.config import Section
from fastcni.spec.errors import CniError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

NAME = "netavark"               # the plugin that handles netavark's requests
API_VERSION = "1.0.0"
# netavark sets no CNI_PATH. fastcni searches these directories only for other projects' plugins, in a network list of
# the option conflist
CNI_PATH = "/opt/cni/bin:/usr/lib/cni:/usr/libexec/cni"
MAX_BYTES = 64 << 10            # the most bytes of a request to the server


def as_cni(env: Mapping[str, str], stdin: bytes) -> tuple[dict[str, str], bytes]:
    """Convert netavark's setup or teardown request to the variables and stdin of an ADD or DEL for the plugin NAME.
    Raises CniError 4, 6 and 7."""
    if env.get("CNI_COMMAND") not in ("ADD", "DEL"):
        raise CniError(errors.INVALID_ENVIRONMENT, f"netavark's protocol has no {env.get('CNI_COMMAND')}")
    document = read(stdin)
    network = document.section("network")
    found = {"CNI_CONTAINERID": document.text("container_id"),
             "CNI_IFNAME": document.section("network_options").text("interface_name"), "CNI_PATH": CNI_PATH}
    name = network.section("options").text("conflist") or network.text("name")
    head = {"cniVersion": version.CURRENT, "name": name, "type": NAME}
    return {**env, **found}, json.write(head)[:-1] + b',"setup":' + stdin + b"}"


def read(stdin: bytes) -> Section:
    """Decode the JSON object on stdin. Raises CniError 6."""
    try:
        document = json.read(stdin)
    except json.JsonError as e:
        raise CniError(errors.DECODING_FAILURE, f"decode podman's JSON: {e}") from None
    if not isinstance(document, dict):
        raise CniError(errors.DECODING_FAILURE, "decode podman's JSON: expected an object")
    return Section(document)


def answer(status: int, stdout: bytes) -> bytes:
    """Convert the output of a plugin to netavark's answer. status, stdout: the plugin's exit status and output."""
    if not stdout:
        return b""
    document = json.read(stdout)
    if status:
        texts = [document.get("msg", ""), document.get("details", "")]
        return json.write({"error": "; ".join(filter(None, texts))})
    if "supportedVersions" in document:
        import fastcni

        return json.write({"version": fastcni.__version__, "api_version": API_VERSION})
    return json.write(status_block(document))


def status_block(result: dict[str, Any]) -> dict[str, Any]:
    """Return the status block of an ADD's result, which has one interface in the container."""
    inside = [it for it in result.get("interfaces", ()) if it.get("sandbox")]
    dns = result.get("dns", {})
    subnets = [{"ipnet": ip["address"], **({"gateway": ip["gateway"]} if ip.get("gateway") else {})}
               for ip in result.get("ips", ())]
    return {"dns_search_domains": dns.get("search", []), "dns_server_ips": dns.get("nameservers", []),
            "interfaces": {it["name"]: {"mac_address": it.get("mac", ""), "subnets": subnets} for it in inside[:1]}}
