"""A mock of the Kubernetes API server: kmock, extended by the behaviour that fastcni's store and agent depend on.

kmock has the HTTP server, parses the paths, sends streams and errors, records the requests, and gives answers that a
test sets (`<<`). kmock's own handlers accept every write. The handlers of this module behave like a real API server:
they set resourceVersion, uid and generation, answer 409 to stale writes and failed preconditions, and implement the
status subresource, merge patches, label selectors, pages, and watches from a revision, with bookmarks and 410. They
reject wrong content types, fields that are not in the CRD's schema, requests that RBAC does not allow, and unknown
tokens.
"""

import asyncio
import copy
import json
import re
import threading
import time
import uuid
from pathlib import Path

import pytest
from cluster.kubernetes.core_schemas import EVENT, LEASE

WHY = "pip install -e '.[test,test-kubernetes]'"
yaml = pytest.importorskip("yaml", reason=WHY)
jsonschema = pytest.importorskip("jsonschema", reason=WHY)
kmock = pytest.importorskip("kmock", reason=WHY)
web = pytest.importorskip("aiohttp.web", reason=WHY)
resource = kmock.resource
KubernetesError = kmock.KubernetesError

ROOT = Path(__file__).parents[3]
NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d{1,9})?Z")
FORMATS = jsonschema.FormatChecker(formats=())
FORMATS.checks("date-time")(lambda text: bool(TIME.fullmatch(text)))
CORE = {"nodes": "", "namespaces": "", "pods": "", "leases": "coordination.k8s.io",
        "networkpolicies": "networking.k8s.io", "network-attachment-definitions": "k8s.cni.cncf.io"}
KINDS = {resource(group, "v1", plural) for plural, group in CORE.items()}        # resources that each API server has
CLUSTER_POLICIES = resource("policy.networking.k8s.io", "v1alpha2", "clusternetworkpolicies")


parsing = kmock._internal.parsing
parse_path = parsing.parse_path


def parse_path_with_namespaces(path):
    """Parse a path. kmock's parser takes the path of a list in all namespaces for a list within one namespace."""
    return parsing.ParsedPath("", "v1", "namespaces") if path == "/api/v1/namespaces" else parse_path(path)


parsing.parse_path = parse_path_with_namespaces


def documents(name):
    return list(yaml.safe_load_all((ROOT / "deploy" / name).read_text()))


class ApiServer(kmock.KubernetesEmulator):
    """The API server. page: the most objects in one answer to a list. tokens: the valid tokens; None: every token is
    valid. rules: the RBAC rules; None: every request is allowed. watch_s: seconds after which a watch ends."""

    def __attrs_post_init__(self):
        super().__attrs_post_init__()
        self.revision, self.oldest = 100, 0
        self.changes, self.changed = [], asyncio.Condition()
        self.page, self.tokens, self.rules, self.watch_s = 500, None, None, 240.0
        self.asked = set()                  # (verb, group, resource)
        self.log, self.next = [], []  # (method, path and query) of requests; (status, headers) of the next answers
        self.crds = {crd["spec"]["names"]["plural"]: crd["spec"] for crd in documents("cluster-ipam-crds.yaml")}
        self.crds |= {"events": EVENT, "leases": LEASE}
        self.validators = {plural: jsonschema.Draft4Validator(
            strict(crd["versions"][0]["schema"]["openAPIV3Schema"]), format_checker=FORMATS)
            for plural, crd in self.crds.items()}
        self.stored = {}                    # {(resource, namespace, name): object}
        self.served = set(KINDS)            # resources that exist without any object
        self.absent = set()                 # namespaces that do not exist

    async def _handle(self, request):
        self.log.append((request.method.value, request.url.path_qs))
        if self.next:
            status, headers = self.next.pop(0)
            return web.json_response({"kind": "Status", "message": "as told"}, status=status, headers=headers)
        if request.url.path == "/api/v1/namespaces/kube-system":        # kmock takes this path for a list
            self._authorize(request, "get", "", "namespaces", None, "kube-system")
            return web.json_response(self._there(resource("", "v1", "namespaces"), None, "kube-system"))
        if found := re.fullmatch(r"/apis/([^/]+)/([^/]+)", request.url.path):
            return self._discovered(*found.groups())
        if request.resource and request.action:
            verb = {"FETCH": "get", "UPDATE": "patch"}.get(request.action.value, request.action.value.lower())
            what = "/".join(filter(None, (request.resource.plural, request.subresource)))
            self._authorize(request, verb, request.resource.group, what, request.namespace, request.name)
        del self._requests[:-1]             # kmock compares each request with all earlier requests
        return await kmock.RawHandler._handle(self, request)      # kmock's own handler would change its own objects

    def _discovered(self, group, version):
        names = {kind.plural for kind in self.served | {kind for kind, _, _ in self.stored}
                 if (kind.group, kind.version) == (group, version)}
        if not names:
            raise KubernetesError(status=404, reason="NotFound", message="the server could not find the resource")
        return web.json_response({"kind": "APIResourceList", "groupVersion": f"{group}/{version}",
                                  "resources": [{"name": name} for name in sorted(names)]})

    def _authorize(self, request, verb, group, what, namespace, name):
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if self.tokens is not None and token not in self.tokens:
            raise KubernetesError(status=401, reason="Unauthorized", message="Unauthorized")
        self.asked.add((verb, group, what))
        if self.rules is not None and not any(
                verb in rule["verbs"] and group in rule["apiGroups"] and what in rule["resources"]
                and rule.get("namespace") in (namespace, "*")
                and ("resourceNames" not in rule or name in rule["resourceNames"]) for rule in self.rules):
            raise KubernetesError(status=403, reason="Forbidden", message=f"cannot {verb} {what}")

    # -- objects --------------------------------------------------------------------------------------

    def put(self, plural, body, namespace=None, version="v1"):
        """Store an object without validation, for tests. If body is None, remove the object."""
        kind = resource(CORE.get(plural, plural.partition(".")[2]), version, plural.partition(".")[0])
        name = body["metadata"]["name"]
        key = (kind, namespace, name)
        before = self._there(kind, namespace, name)
        self._store(key, body | {"metadata": {"uid": str(uuid.uuid4()), "generation": 1} | body["metadata"]},
                    "MODIFIED" if before else "ADDED")

    def drop(self, plural, name, namespace=None, version="v1"):
        kind = resource(CORE.get(plural, plural.partition(".")[2]), version, plural.partition(".")[0])
        self._remove((kind, namespace, name))

    def _there(self, kind, namespace, name):
        return copy.deepcopy(self.stored.get((kind, namespace, name)))

    def _found(self, request):
        body = self._there(request.resource, request.namespace, request.name)
        if body is None:
            details = {"name": request.name, "group": request.resource.group, "kind": request.resource.plural}
            raise KubernetesError(status=404, reason="NotFound", details=details,
                                  message=f'{request.resource.plural} "{request.name}" not found')
        return body

    def _store(self, key, body, change):
        self.revision += 1
        body["metadata"]["resourceVersion"] = str(self.revision)
        before = self.stored.get(key)
        self.stored[key] = copy.deepcopy(body)
        self._note(key, body, change, before)
        return body

    def _remove(self, key):
        body = self.stored.pop(key)
        self.revision += 1
        body["metadata"]["resourceVersion"] = str(self.revision)
        self._note(key, body, "DELETED", body)
        return body

    def _note(self, key, body, change, before):
        self.changes.append((self.revision, key[0], key[1], change, copy.deepcopy(body), before))
        asyncio.get_running_loop().create_task(self._wake())

    async def _wake(self):
        async with self.changed:
            self.changed.notify_all()

    def forget(self, plural, name):
        """Remove an object and the history of changes. A watch gets no event about the removal, and must list again."""
        self.stored = {key: it for key, it in self.stored.items() if (key[0].plural, key[2]) != (plural, name)}
        self.revision += 1
        self.compact()

    def compact(self):
        """Remove the history of changes. The server answers requests from older revisions with 410, also watches that
        wait for a change."""
        self.oldest, self.changes = self.revision, []
        asyncio.get_running_loop().create_task(self._wake())

    # -- checks of a real API server -----------------------------------------------------------------------

    def _check_kind(self, request):
        crd = self.crds.get(request.resource.plural)
        if crd and request.resource.group == crd["group"]:
            return crd
        if request.resource in self.served or request.resource in {kind for kind, _, _ in self.stored}:
            return None
        raise KubernetesError(status=404, reason="NotFound", message="the server could not find the requested resource")

    def _check_body(self, request, body, crd):
        if request.params.get("fieldManager") != "fastcni":
            raise KubernetesError(status=400, reason="BadRequest", message="no fieldManager")
        metadata = body["metadata"]
        if not NAME.fullmatch(metadata["name"]) or len(metadata["name"]) > 253:
            raise invalid(f"metadata.name: {metadata['name']!r}")
        for key, value in metadata.get("labels", {}).items():
            if not re.fullmatch(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?", value) or len(key) > 80:
                raise invalid(f"metadata.labels: {key}: {value!r}")
        if crd is None:                     # Kubernetes defines this kind, not a CRD
            return
        if (body["apiVersion"], body["kind"]) != (
                f"{crd['group']}/{crd['versions'][0]['name']}", crd["names"]["kind"]):
            raise KubernetesError(status=400, reason="BadRequest", message="wrong apiVersion or kind")
        try:
            self.validators[request.resource.plural].validate(body)
        except jsonschema.ValidationError as e:
            raise invalid(f"{e.json_path}: {e.message}") from None

    # -- requests -------------------------------------------------------------------------------------

    async def _serve_fetch(self, request):
        self._check_kind(request)
        return self._found(request)

    async def _serve_create(self, request):
        crd = self._check_kind(request)
        need(request, "application/json")
        body = copy.deepcopy(request.data)
        self._check_body(request, body, crd)
        name = body["metadata"]["name"]
        if request.namespace in self.absent:
            raise KubernetesError(status=404, reason="NotFound", message=f'namespaces "{request.namespace}" not found',
                                  details={"name": request.namespace, "kind": "namespaces"})
        if self._there(request.resource, request.namespace, name):
            raise KubernetesError(status=409, reason="AlreadyExists", message=f'"{name}" already exists',
                                  details={"name": name})
        if crd and has_status(crd):
            body.pop("status", None)
        body["metadata"] |= {"uid": str(uuid.uuid4()), "generation": 1,
                             "creationTimestamp": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}
        # A real API server answers 201, not 200
        return self._store((request.resource, request.namespace, name), body, "ADDED")

    async def _serve_update(self, request):
        crd = self._check_kind(request)
        if crd is None:
            return self._update_status(request)
        need(request, "application/merge-patch+json")
        before = self._found(request)
        new = merged(before, request.data)
        version = request.data.get("metadata", {}).get("resourceVersion", before["metadata"]["resourceVersion"])
        if version != before["metadata"]["resourceVersion"]:
            raise conflict(request, "the object has been modified; please apply your changes to the latest version")
        if has_status(crd):
            kept = "status" if request.subresource is None else "spec"
            new.pop(kept, None)
            if kept in before:
                new[kept] = before[kept]
        self._check_body(request, new, crd)
        if new == before:
            return before                   # the patch changes nothing: no new revision
        if any(new.get(key) != before.get(key) for key in (new.keys() | before.keys()) - {"metadata", "status"}):
            new["metadata"]["generation"] = before["metadata"]["generation"] + 1
        return self._store((request.resource, request.namespace, request.name), new, "MODIFIED")

    def _update_status(self, request):
        """Apply a strategic merge patch of a core object's status. It may change annotations, too, but not the spec."""
        need(request, "application/strategic-merge-patch+json")
        if request.subresource != "status" or request.params.get("fieldManager") != "fastcni":
            raise KubernetesError(status=400, reason="BadRequest", message="only the status, with a fieldManager")
        before, patch = self._found(request), copy.deepcopy(request.data)
        if patch.get("metadata", {}).get("uid", before["metadata"]["uid"]) != before["metadata"]["uid"]:
            raise conflict(request, "Precondition failed: UID in precondition")
        conditions = {it["type"]: it for it in before.get("status", {}).get("conditions", [])}
        for it in patch.get("status", {}).get("conditions", []):
            conditions[it["type"]] = conditions.get(it["type"], {}) | it
        patch.pop("spec", None)
        new = merged(before, patch)
        if conditions:
            new["status"]["conditions"] = list(conditions.values())
        key = request.resource, request.namespace, request.name
        return before if new == before else self._store(key, new, "MODIFIED")

    async def _serve_delete(self, request):
        self._check_kind(request)
        body = self._found(request)
        options = request.data or {}
        if options and (options.get("kind"), options.get("apiVersion")) != ("DeleteOptions", "v1"):
            raise KubernetesError(status=400, reason="BadRequest", message="not DeleteOptions")
        for key, value in options.get("preconditions", {}).items():
            if body["metadata"][key] != value:
                raise conflict(request, f"Precondition failed: {key}")
        return self._remove((request.resource, request.namespace, request.name))

    async def _serve_list(self, request):
        self._check_kind(request)
        start, version, most = 0, self.revision, min(int(request.params.get("limit", self.page)), self.page)
        if since := request.params.get("resourceVersion"):          # the complete list, from the cache
            if int(since) > self.revision:
                raise KubernetesError(status=504, reason="Timeout", message=f"Too large resource version: {since}, "
                                                                            f"current: {self.revision}")
            most = len(self.stored)
        if token := request.params.get("continue"):
            version, start = map(int, token.split("+/="))
            if version < self.oldest:
                raise KubernetesError(status=410, reason="Expired", message="the continue parameter is too old")
        found = [it for _, it in sorted(self._chosen(request), key=lambda pair: pair[0])]
        rest = len(found) > start + most
        return {"kind": "List", "apiVersion": "v1", "items": [shown(request, it) for it in found[start:start + most]],
                "metadata": {"resourceVersion": str(version)} | (
                    {"continue": f"{version}+/={start + most}"} if rest else {})}

    def _chosen(self, request):
        for (kind, namespace, name), it in self.stored.items():
            if kind == request.resource and request.namespace in (None, namespace) and matches(request, it):
                yield name, copy.deepcopy(it)

    async def _serve_watch(self, request):
        self._check_kind(request)
        since, told = int(request.params["resourceVersion"]), 0
        yield b""
        end = asyncio.get_running_loop().time() + min(self.watch_s, float(request.params["timeoutSeconds"]))
        while (left := end - asyncio.get_running_loop().time()) > 0:
            if since < self.oldest:         # also during a watch: no bookmark may skip removed changes
                yield {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired",
                                                   "message": f"too old resource version: {since}"}}
                return
            latest = self.revision          # the next round sends changes that come during a yield
            for revision, kind, namespace, change, body, before in list(self.changes):
                if revision > since and kind == request.resource and request.namespace in (None, namespace):
                    since = told = revision
                    if change == "DELETED" or not matches(request, body):
                        change = before and matches(request, before) and "DELETED"
                    elif not (before and matches(request, before)):
                        change = "ADDED"
                    if change:
                        yield {"type": change, "object": shown(request, body)}
            if self.oldest <= since and told < latest and request.params.get("allowWatchBookmarks") == "true":
                since = told = latest
                crd = self.crds.get(request.resource.plural)
                names = (crd["names"]["kind"], "ipam.fastcni.dev/v1alpha1") if crd else ("Node", "v1")
                yield {"type": "BOOKMARK", "object": {"kind": names[0], "apiVersion": names[1],
                                                      "metadata": {"resourceVersion": str(since)}}}
            async with self.changed:
                if since >= self.revision:
                    try:
                        async with asyncio.timeout(left):       # wait_for() may lose a cancellation (bpo-42130)
                            await self.changed.wait()
                    except TimeoutError:
                        return


def strict(schema):
    """Return the schema, extended so that it rejects the fields that a real API server drops."""
    if isinstance(schema, list):
        return [strict(it) for it in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: strict(value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), dict):
        made["properties"] = {key: strict(value) for key, value in schema["properties"].items()}
        made["additionalProperties"] = False
    return made


def matches(request, body):
    labels = body["metadata"].get("labels", {})
    chosen = filter(None, request.params.get("labelSelector", "").split(","))
    fields = {"spec.nodeName": body.get("spec", {}).get("nodeName", ""),
              "status.phase": body.get("status", {}).get("phase", "")}
    for one in filter(None, request.params.get("fieldSelector", "").split(",")):
        field, operator, value = re.fullmatch("(.*?)(!?=)(.*)", one).groups()
        if (fields[field] == value) != (operator == "="):
            return False
    return all(labels.get(it.partition("=")[0]) == it.partition("=")[2] for it in chosen)


def shown(request, body):
    """Return an object, or only its metadata if the request asks for metadata."""
    if "as=PartialObjectMetadata" not in request.headers.get("Accept", ""):
        return body
    return {"kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": body["metadata"]}


def merged(before, patch):
    """Return the object after a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        return patch
    made = copy.deepcopy(before) if isinstance(before, dict) else {}
    for key, value in patch.items():
        if value is None:
            made.pop(key, None)
        else:
            made[key] = merged(made.get(key), value)
    return made


def has_status(crd):
    return "status" in crd["versions"][0].get("subresources", {})


def need(request, content_type):
    if request.headers.get("Content-Type") != content_type:
        raise KubernetesError(status=415, reason="UnsupportedMediaType", message=request.headers.get("Content-Type"))


def conflict(request, message):
    return KubernetesError(status=409, reason="Conflict", details={"name": request.name},
                           message=f'Operation cannot be fulfilled on "{request.name}": {message}')


def invalid(message):
    return KubernetesError(status=422, reason="Invalid", message=message)


class Running:
    """An ApiServer in a thread, which listens on an address of this namespace. Other threads use `api` only through
    do()."""

    def __init__(self, host="127.0.0.1"):
        self.host = host

    def __enter__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="kmock")
        self.thread.start()
        self._run(self._start())
        return self

    async def _start(self):
        self.api = await ApiServer().__aenter__()
        self.server = await kmock.Server(self.api, host=self.host).__aenter__()
        self.url = str(self.server.url).rstrip("/")
        self.api.put("namespaces", {"metadata": {"name": "kube-system", "uid": "cluster-1"}})
        self.api.put("leases", {"metadata": {"name": "nobody"}}, "kube-node-lease")
        self.api.put("nodes", {"metadata": {"name": "nobody"}})

    def do(self, function):
        """Call function(api) in the server's thread. Return its result."""
        async def call():
            return function(self.api)

        return self._run(call())

    def _run(self, made):
        return asyncio.run_coroutine_threadsafe(made, self.loop).result(20)

    def __exit__(self, *_):
        try:
            self._run(self.server.__aexit__(None, None, None))
            self._run(self.api.__aexit__(None, None, None))
        finally:
            self.loop.call_soon_threadsafe(self.loop.stop)
            self.thread.join(20)
            self.loop.close()


def kubeconfig(server, token="token", *, cluster=(), user=None, context=()):
    """Return the text of a kubeconfig for this server and token. cluster, user, context: more keys of these
    sections."""
    return json.dumps({
        "apiVersion": "v1", "kind": "Config", "current-context": "c",
        "clusters": [{"name": "cluster", "cluster": {"server": server} | dict(cluster)}],
        "users": [{"name": "user", "user": {"token": token} if user is None else user}],
        "contexts": [{"name": "c", "context": {"cluster": "cluster", "user": "user"} | dict(context)}]})
