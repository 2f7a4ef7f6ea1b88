"""The pods of a Kubernetes job and their nodes, by the API server's list of pods, and access to that server.

Access: the service account of the own pod, else the kubeconfig (``KUBECONFIG``, ``~/.kube/config``) with a token or a
client certificate; programs that it names (``exec``, ``auth-provider``) are not run. Only ``list`` of pods is needed.

Labels: Job (https://kubernetes.io/docs/reference/labels-annotations-taints/#batchkubernetesio-job-name), PyTorchJob and
its like, JobSet and TrainJob, Volcano, LeaderWorkerSet. Paging:
https://kubernetes.io/docs/reference/using-api/api-concepts/#retrieving-large-results-sets-in-chunks
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import ssl
import tempfile
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

import yaml

from whystall.agent_server.outbound.client import Client, Undelivered
from whystall.agent_server.outbound.request import Request, Response
from whystall.agent_server.settings.loopback import is_loopback
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
LABELS = (
    "batch.kubernetes.io/job-name",
    "job-name",
    "training.kubeflow.org/job-name",
    "jobset.sigs.k8s.io/jobset-name",
    "volcano.sh/job-name",
    "leaderworkerset.sigs.k8s.io/name",
)
_NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
_PAGE = 500
_PAGES = 100
_FILE_LIMIT = 4 << 20
_ATTEMPTS = 2


@dataclass(frozen=True)
class Pod:
    """A pod. `node`: empty before it is scheduled; `running`: its phase is Running."""

    name: str
    uid: str
    node: str
    phase: str

    @property
    def running(self) -> bool:
        return self.phase == "Running" and bool(self.node)


@dataclass(frozen=True)
class Access:
    """How the API server is reached. `token`: empty with a client certificate; `namespace`: of objects that are named
    without one.
    """

    server: str
    token: str = field(default="", repr=False)
    tls: ssl.SSLContext | None = field(default=None, repr=False)
    namespace: str = "default"

    @property
    def headers(self) -> dict[str, str]:
        """The headers of each request."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


async def pods_of(namespace: str, job: str, access: Access | None = None) -> list[Pod]:
    """Return the pods of the job `job`, of any kind in `LABELS`, in `namespace`.

    Raises `ToolError`: bad_argument (names, access), not_found (no pods), no_privilege (403), io_error.
    """
    check_names(namespace, job)
    access = access or own_access()
    async with Client(tls=access.tls) as client:
        for label in LABELS:
            for attempt in range(_ATTEMPTS):
                try:
                    found = await _listed(client, access, namespace, f"{label}={job}")
                    break
                except _Expired:  # the list changed between two pages: from the start
                    if attempt + 1 == _ATTEMPTS:
                        raise wrong("the list of pods expires faster than it is read") from None
            if found:
                return found
    message = f"no pod in the namespace {namespace} is of a job {job}"
    raise ToolError(ErrorCode.NOT_FOUND, message, f"`kubectl -n {namespace} get pods --show-labels` lists them")


def check_names(*names: str) -> None:
    """Raise `ToolError` (bad_argument) if one of `names` cannot be that of an object."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{name[:100]!r} is no name of Kubernetes", "write NAMESPACE/NAME")


async def fetch(
    client: Client, access: Access, namespace: str, path: str, verb: str, allowed: Collection[int] = ()
) -> Response:
    """Return the response to GET of `path` (``pods?limit=500``) in `namespace`, of status 2xx or one of `allowed`.

    `verb`: of the right that this needs. Raises `ToolError`: no_privilege (401, 403), io_error.
    """
    url = f"{access.server}/api/v1/namespaces/{quote(namespace)}/{path}"
    secrets = (access.token,) if access.token else ()
    try:
        return await client.send(Request("GET", url, access.headers, secrets=secrets, repeatable=True), allowed)
    except Undelivered as error:
        if error.status in (401, 403):
            raise denied(error.status, namespace, verb, re.split("[/?]", path)[0]) from None
        raise wrong(error.message) from None


class _Expired(Exception):
    """A page's ``continue`` token has expired: 410 Gone."""


async def _listed(client: Client, access: Access, namespace: str, selector: str) -> list[Pod]:
    """Return all pods that `selector` matches, page by page."""
    pods: list[Pod] = []
    more = ""
    for _ in range(_PAGES):
        query = {"labelSelector": selector, "limit": str(_PAGE), **({"continue": more} if more else {})}
        response = await fetch(client, access, namespace, f"pods?{urlencode(query)}", "list", allowed=(410,))
        if response.status == 410:
            raise _Expired
        page = response.json()
        if not isinstance(page, dict) or not isinstance(page.get("items"), list):
            raise wrong("the answer is no list of pods")
        pods += [pod for item in page["items"] if (pod := _pod(item)) is not None]
        metadata = page.get("metadata")
        more = str(metadata.get("continue") or "") if isinstance(metadata, dict) else ""
        if not more:
            return pods
    raise wrong(f"more than {_PAGES} pages of pods")


def _pod(item: Any) -> Pod | None:
    """Return a pod of ``items``: metadata.name, metadata.uid, spec.nodeName, status.phase; None if it has no name."""
    parts = [item.get(key) if isinstance(item, dict) else None for key in ("metadata", "spec", "status")]
    metadata, spec, status = (part if isinstance(part, dict) else {} for part in parts)
    if not isinstance(metadata.get("name"), str) or not isinstance(metadata.get("uid"), str):
        return None
    texts = (metadata["name"], metadata["uid"], str(spec.get("nodeName") or ""), str(status.get("phase") or "Unknown"))
    return Pod(*map(clean, texts))


def denied(status: int, namespace: str, verb: str, resource: str) -> ToolError:
    """Return the error for a response 401 or 403 to a request that needs the right `verb` on `resource`."""
    if status == 401:
        return ToolError(ErrorCode.NO_PRIVILEGE, "Kubernetes does not accept the token", "renew the kubeconfig")
    remedy = f"allow it: kubectl -n {namespace} create role/rolebinding with --verb={verb} --resource={resource}"
    return ToolError(ErrorCode.NO_PRIVILEGE, f"Kubernetes: {verb} of {resource} in {namespace} is forbidden", remedy)


def wrong(message: str) -> ToolError:
    """Return the error for an API server that does not answer as it should."""
    return ToolError(ErrorCode.IO_ERROR, f"Kubernetes: {message}", "check `kubectl get pods`, or give hosts")


def own_access(environment: Mapping[str, str] = os.environ, account: Path = SERVICE_ACCOUNT) -> Access:
    """Return the access of the own pod, else of the kubeconfig's current context. Raises `ToolError` (bad_argument)."""
    host, port = environment.get("KUBERNETES_SERVICE_HOST"), environment.get("KUBERNETES_SERVICE_PORT", "443")
    if host and (account / "token").exists():
        token = _file(account / "token").decode("utf-8", "replace").strip()
        authority = f"[{host}]" if ":" in host else host
        own = account / "namespace"
        namespace = _file(own).decode("utf-8", "replace").strip() if own.exists() else "default"
        return Access(f"https://{authority}:{port}", token, _context(_file(account / "ca.crt")), namespace)
    return of_kubeconfig(config_path(environment))


def config_path(environment: Mapping[str, str] = os.environ) -> Path:
    """Return the path of the kubeconfig: the first in ``KUBECONFIG``, else ``~/.kube/config``."""
    named = environment.get("KUBECONFIG", "").split(os.pathsep)[0]
    return Path(named) if named else Path.home() / ".kube/config"


def of_proxy(server: str) -> Access:
    """Return the access by `kubectl proxy` at `server`, which identifies the user itself.

    Raises `ToolError` (bad_argument) unless that is on this machine.
    """
    try:
        parts = urlsplit(server)
        here = parts.scheme == "http" and is_loopback(parts.hostname or "") and (parts.port or 80) > 0
    except ValueError:
        here = False
    if not here:
        message = f"server: {clean(server, 200)!r} is no address of this machine"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "start `kubectl proxy`, and give http://127.0.0.1:8001")
    return Access(server.rstrip("/"))


def of_kubeconfig(path: Path, chosen: str | None = None) -> Access:
    """Return the access of the context `chosen` of the kubeconfig `path`, None: its current one.

    Raises `ToolError` (bad_argument).
    """
    try:
        config = yaml.safe_load(_file(path))
        contexts, clusters, users = (
            {one["name"]: one[kind] for one in config[f"{kind}s"]} for kind in ("context", "cluster", "user")
        )
        context = contexts[chosen or config["current-context"]]
        cluster, user = clusters[context["cluster"]], users[context["user"]] or {}
        server = str(cluster["server"]).rstrip("/")
        namespace = str(context.get("namespace") or "default")
    except (yaml.YAMLError, KeyError, TypeError, RecursionError, AttributeError):
        which = f"context {clean(chosen, 100)}" if chosen else "current context"
        raise _config(path, f"it has no {which} with a cluster and a user") from None
    parts = urlsplit(server)
    if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
        raise _config(path, "its server is no https:// address")
    if cluster.get("insecure-skip-tls-verify"):
        raise _config(path, "insecure-skip-tls-verify would show the token to anybody; name certificate-authority")
    token = user.get("token") or (_text(path, user["tokenFile"]) if user.get("tokenFile") else "")
    certificate = _material(path, user, "client-certificate"), _material(path, user, "client-key")
    if not token and not all(certificate):
        raise _config(path, "its user has neither token nor client certificate (programs of `exec` are not run)")
    if parts.scheme == "http":
        return Access(server, str(token), None, namespace)
    tls = _context(_material(path, cluster, "certificate-authority"), certificate)
    return Access(server, str(token), tls, namespace)


def _material(path: Path, table: Mapping[str, Any], name: str) -> bytes:
    """Return the certificate or key `name`: base64 in the file, or the name of a file beside it; empty if not given."""
    if data := table.get(f"{name}-data"):
        try:
            return base64.b64decode(str(data), validate=True)
        except (binascii.Error, ValueError):
            raise _config(path, f"{name}-data is no base64") from None
    return _file(path.parent / str(table[name])) if table.get(name) else b""


def _text(path: Path, name: Any) -> str:
    return _file(path.parent / str(name)).decode("utf-8", "replace").strip()


def _context(authority: bytes, certificate: tuple[bytes, bytes] = (b"", b"")) -> ssl.SSLContext:
    """Return a context that trusts `authority` (PEM; empty: the system's) and identifies itself by `certificate`."""
    try:
        context = ssl.create_default_context(cadata=authority.decode("ascii", "replace") if authority else None)
        if all(certificate):
            with tempfile.NamedTemporaryFile(prefix="whystall-") as file:  # mode 0600; ssl takes files only
                file.write(b"\n".join(certificate))
                file.flush()
                context.load_cert_chain(file.name)
        return context
    except (OSError, ValueError):
        message = "Kubernetes: the certificates cannot be used"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give them in PEM") from None


def _file(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_FILE_LIMIT)
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "no path"
        message = f"Kubernetes: cannot read {path}: {why}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "set KUBECONFIG, or run in a pod") from None


def _config(path: Path, why: str) -> ToolError:
    return ToolError(ErrorCode.BAD_ARGUMENT, f"{path}: {why}", "correct the kubeconfig, or give hosts")
