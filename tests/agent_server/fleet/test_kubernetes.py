"""Pods of jobs, from a server that speaks the documented API of Kubernetes."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fleet_servers import TOKEN, serving, settings
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from whystall.agent_server.fleet.ask import _resolve
from whystall.agent_server.fleet.inventory import Inventory
from whystall.agent_server.fleet.kubernetes import Access, Pod, of_kubeconfig, own_access, pods_of
from whystall.agent_server.job_lookup.models import Wanted
from whystall.agent_server.job_lookup.search_terms import search_terms
from whystall.tools.contract.errors import ErrorCode, ToolError

pytestmark = pytest.mark.anyio
UID = "0b0f0a52-7d0c-4a3e-9a44-00000000000"


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


def pod(number: int, label: str = "batch.kubernetes.io/job-name", **changed: Any) -> dict[str, Any]:
    """A pod as ``kubectl get pods -o json`` shows it, shortened."""
    made: dict[str, Any] = {
        "metadata": {"name": f"train-{number}", "uid": f"{UID}{number}", "labels": {label: "train"}},
        "spec": {"nodeName": f"node{number}", "containers": []},
        "status": {"phase": "Running"},
    }
    return made | changed


class Api:
    """The list of pods in two pages at most; `override`: instead of a page, by its number from 0."""

    def __init__(self, *pods: dict[str, Any], size: int = 2) -> None:
        self.pods = pods
        self.size = size
        self.override: dict[int, Response] = {}
        self.requests: list[Request] = []

    async def answer(self, request: Request) -> Response:
        """GET /api/v1/namespaces/NAMESPACE/pods"""
        self.requests.append(request)
        if (instead := self.override.get(len(self.requests) - 1)) is not None:
            return instead
        if request.headers.get("authorization") != f"Bearer {TOKEN}":
            return JSONResponse({"kind": "Status", "message": "Unauthorized"}, status_code=401)
        key, _, value = request.query_params["labelSelector"].partition("=")
        matching = [one for one in self.pods if one["metadata"].get("labels", {}).get(key) == value]
        start = int(request.query_params.get("continue") or 0)
        end = start + self.size
        metadata = {"continue": str(end) if end < len(matching) else ""}
        return JSONResponse({"kind": "PodList", "metadata": metadata, "items": matching[start:end]})

    @property
    def app(self) -> Starlette:
        """The server."""
        return Starlette(routes=[Route("/api/v1/namespaces/{namespace}/pods", self.answer)])


@pytest.fixture
def api() -> Api:
    return Api(pod(1), pod(2), pod(3))


@pytest.fixture
def access(api: Api) -> Iterator[Access]:
    with serving({"api": api.app}) as urls:
        yield Access(urls["api"].removesuffix("/mcp"), TOKEN)


async def refused(access: Access, namespace: str = "ml", job: str = "train") -> ToolError:
    with pytest.raises(ToolError) as caught:
        await pods_of(namespace, job, access)
    assert TOKEN not in str(caught.value)
    return caught.value


async def test_all_pages_of_pods_are_read(api: Api, access: Access) -> None:
    found = await pods_of("ml", "train", access)
    assert found[0] == Pod("train-1", f"{UID}1", "node1", "Running")
    assert [one.node for one in found] == ["node1", "node2", "node3"]
    assert [request.query_params.get("continue") for request in api.requests] == [None, "2"]
    assert api.requests[0].path_params["namespace"] == "ml"


@pytest.mark.parametrize(
    "label",
    ["job-name", "training.kubeflow.org/job-name", "jobset.sigs.k8s.io/jobset-name", "volcano.sh/job-name"],
)
async def test_jobs_of_every_kind(api: Api, access: Access, label: str) -> None:
    api.pods = (pod(1, label),)
    assert [one.name for one in await pods_of("ml", "train", access)] == ["train-1"]


async def test_an_expired_page_is_read_from_the_start_once(api: Api, access: Access) -> None:
    gone = JSONResponse({"kind": "Status", "reason": "Expired", "code": 410}, status_code=410)
    api.override = {1: gone}
    assert len(await pods_of("ml", "train", access)) == 3
    api.requests.clear()
    api.override = {1: gone, 3: gone}
    assert "expires" in (await refused(access)).message


@pytest.mark.parametrize(
    ("response", "code", "holding"),
    [
        (
            JSONResponse({"kind": "Status", "message": "pods is forbidden"}, status_code=403),
            ErrorCode.NO_PRIVILEGE,
            "ml",
        ),
        (JSONResponse({"message": TOKEN}, status_code=401), ErrorCode.NO_PRIVILEGE, "token"),
        (JSONResponse({"message": f"\x1b[31m{TOKEN}"}, status_code=500), ErrorCode.IO_ERROR, "HTTP 500"),
        (Response("<html>", media_type="text/html"), ErrorCode.IO_ERROR, "no list of pods"),
        (JSONResponse({"items": "x"}), ErrorCode.IO_ERROR, "no list of pods"),
        (JSONResponse([]), ErrorCode.IO_ERROR, "no list of pods"),
        (Response("x" * (5 << 20)), ErrorCode.IO_ERROR, "larger than"),
    ],
    ids=["403", "401", "500", "html", "items", "list", "huge"],
)
async def test_errors_of_the_server(
    api: Api, access: Access, response: Response, code: ErrorCode, holding: str
) -> None:
    api.override = {0: response}
    error = await refused(access)
    assert error.code is code
    assert holding in error.message


async def test_odd_pods_are_left_out(api: Api, access: Access) -> None:
    odd = {"metadata": {"labels": {"job-name": "train"}}}
    listed = {"items": [None, 7, [], {}, odd, {**pod(1), "spec": None, "status": 3}]}
    api.override = {0: JSONResponse(listed)}
    assert await pods_of("ml", "train", access) == [Pod("train-1", f"{UID}1", "", "Unknown")]


async def test_a_job_without_pods_and_names_that_are_none(access: Access) -> None:
    assert (await refused(access, job="other")).code is ErrorCode.NOT_FOUND
    for name in ("", "../secrets", "a?b", "A", "x" * 300):
        assert (await refused(access, namespace=name)).code is ErrorCode.BAD_ARGUMENT
        assert (await refused(access, job=name)).code is ErrorCode.BAD_ARGUMENT


async def test_a_dead_server() -> None:
    assert "127.0.0.1:9" in (await refused(Access("http://127.0.0.1:9", TOKEN))).message


def kubeconfig(path: Path, server: str, user: dict[str, Any], **cluster: Any) -> Path:
    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
        "clusters": [{"name": "k", "cluster": {"server": server, **cluster}}],
        "users": [{"name": "u", "user": user}],
    }
    file = path / "config"
    file.write_text(yaml.safe_dump(config))
    return file


async def test_pods_become_hosts_to_ask(api: Api, access: Access, tmp_path: Path, monkeypatch: Any) -> None:
    pending = {"spec": {}, "status": {"phase": "Pending"}}
    api.pods = (pod(1), pod(2), pod(3, **pending), pod(4, status={"phase": "Failed"}))
    monkeypatch.setenv("KUBECONFIG", str(kubeconfig(tmp_path, access.server, {"token": TOKEN})))
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    known = Inventory(settings({}, hosts="node1"))
    targets, skipped, _ = await _resolve("k8s:ml/train", None, known, takes_pid=True)
    assert [(target.host.name, target.locate) for target in targets] == [("node1", f"{UID}1")]
    assert search_terms(Wanted(text=f"{UID}1"), ("node1",)).exact == (("pod_uid", f"{UID}1"),)
    assert {(answer.host, answer.detail) for answer in skipped} == {
        ("node2", "not in [fleet] of the settings"),
        ("train-3", "the pod train-3 has no node yet"),
        ("node4", "the pod train-4 is Failed"),
    }


def test_access_by_kubeconfig(tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    found = of_kubeconfig(kubeconfig(tmp_path, "https://k:6443/", {"tokenFile": "token"}))
    assert (found.server, found.token) == ("https://k:6443", TOKEN)
    assert TOKEN not in repr(found)


@pytest.mark.parametrize(
    ("server", "user", "cluster", "holding"),
    [
        ("https://k", {"exec": {"command": "touch"}}, {}, "not run"),
        ("https://k", {"token": TOKEN}, {"insecure-skip-tls-verify": True}, "insecure"),
        ("http://k", {"token": TOKEN}, {}, "https://"),
        ("https://k", {"token": TOKEN}, {"certificate-authority-data": "?"}, "base64"),
        ("https://k", {"token": TOKEN}, {"certificate-authority-data": "AAAA"}, "certificates"),
        ("https://k", {"token": TOKEN}, {"certificate-authority": "none.pem"}, "cannot read"),
        ("https://k", {"client-certificate-data": "AAAA", "client-key-data": "AAAA"}, {}, "certificates"),
        ("https://k", {}, {}, "neither token"),
    ],
)
def test_kubeconfigs_that_are_refused(tmp_path: Path, server: str, user: Any, cluster: Any, holding: str) -> None:
    with pytest.raises(ToolError) as caught:
        of_kubeconfig(kubeconfig(tmp_path, server, user, **cluster))
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert holding in caught.value.message
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize("text", ["", "[]", "{", "a: &a [*a]", json.dumps({"current-context": "x", "users": 7})])
def test_files_that_are_no_kubeconfig(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config"
    path.write_text(text)
    with pytest.raises(ToolError, match="no current context"):
        of_kubeconfig(path)
    with pytest.raises(ToolError, match="cannot read"):
        of_kubeconfig(tmp_path / "none")


def test_access_of_the_own_pod(tmp_path: Path) -> None:
    import certifi

    (tmp_path / "token").write_text(TOKEN)
    (tmp_path / "ca.crt").write_bytes(Path(certifi.where()).read_bytes())
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    found = own_access(environment, tmp_path)
    assert (found.server, found.token) == ("https://[fd00::1]:6443", TOKEN)
    assert base64.b64encode(TOKEN.encode()).decode() not in repr(found)
