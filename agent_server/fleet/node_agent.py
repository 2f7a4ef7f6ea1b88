"""Diagnose a pod by the whystall agent of its node: the pod of the DaemonSet (deploy/daemonset.yaml) that runs there.

Endpoints: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/ (read, list) and
https://kubernetes.io/docs/reference/kubernetes-api/config-and-storage-resources/secret-v1/ (read).
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlencode

from pydantic import ValidationError

from whystall.agent_server.diagnosis.params import DiagnoseParams
from whystall.agent_server.fleet.answers import Answer, Target
from whystall.agent_server.fleet.ask import limits
from whystall.agent_server.fleet.fan_out import fan_out
from whystall.agent_server.fleet.inventory import Host
from whystall.agent_server.fleet.kubernetes import Access, check_names, fetch, wrong
from whystall.agent_server.fleet.port_forward import forwarded
from whystall.agent_server.outbound.client import Client
from whystall.knowledge_base.models import Diagnosis
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

if TYPE_CHECKING:
    from whystall.agent_server.settings.sections.fleet import FleetSettings

NAMESPACE = "whystall"
NAME = "whystall"
PORT = 8377
_ID = re.compile(r"[a-z-]{1,20}://[0-9a-f]{12,64}")
_UID = re.compile(r"[0-9a-f-]{1,64}")


@dataclass(frozen=True)
class Agents:
    """Where the agents run, as the manifest or the chart (release `name`) calls them; `port` of their MCP endpoint."""

    namespace: str = NAMESPACE
    name: str = NAME
    port: int = PORT


@dataclass(frozen=True)
class Workload:
    """A running pod to diagnose. `cgroup`: as `TargetParams.cgroup` names the pod, or one container of it."""

    node: str
    cgroup: str


async def diagnose_pod(
    pod: str,
    namespace: str,
    params: DiagnoseParams,
    access: Access,
    settings: FleetSettings,
    container: str | None = None,
    agents: Agents | None = None,
) -> Diagnosis:
    """Return the diagnosis of `pod`, or of its `container`, by the agent of its node. `params` name no target.

    The token of the agent is that of ``[fleet]`` in the settings, else the key ``token`` of the agents' Secret.

    Raises `ToolError`: bad_argument (names), not_found (pod, container, agent, token), busy (pod or agent is not
    ready), no_privilege (the API server or the agent refuses), io_error.
    """
    agents = agents or Agents()
    check_names(namespace, pod, agents.namespace, agents.name)
    async with Client(tls=access.tls) as client:
        workload = await _workload(client, access, namespace, pod, container)
        agent = await _agent(client, access, agents, workload.node)
        token = settings.token.read("[fleet] token") if settings.token is not None else ""
        token = token or await _token(client, access, agents)
    arguments = params.model_dump(mode="json", exclude_defaults=True) | {"cgroup": workload.cgroup}
    async with forwarded(access, agents.namespace, agent, agents.port) as tunnel:
        host = Host(workload.node, f"http://127.0.0.1:{tunnel.port}/mcp", _Known(token), identity=False)
        bounds = limits(settings, params.duration)
        bounds = replace(bounds, host_deadline=max(bounds.host_deadline, bounds.deadline))
        (answer,) = await fan_out([Target(host)], "diagnose", arguments, bounds)
    if answer.status != "answered" and tunnel.failure is not None:
        raise tunnel.failure
    return _diagnosis(answer, agents, agent)


async def _workload(client: Client, access: Access, namespace: str, pod: str, container: str | None) -> Workload:
    response = await fetch(client, access, namespace, f"pods/{pod}", "get", allowed=(404,))
    if response.status == 404:
        message = f"there is no pod {pod} in the namespace {namespace}"
        raise ToolError(ErrorCode.NOT_FOUND, message, f"`kubectl -n {namespace} get pods` lists them")
    item = response.json()
    metadata, spec, status = (_part(item, key) for key in ("metadata", "spec", "status"))
    uid, node, phase = metadata.get("uid"), spec.get("nodeName"), clean(str(status.get("phase") or "Unknown"), 50)
    if not isinstance(uid, str) or not _UID.fullmatch(uid):
        raise wrong("the answer is no pod")
    if not isinstance(node, str) or not node:
        raise ToolError(ErrorCode.BUSY, f"the pod {pod} has no node yet ({phase})", "wait until it is scheduled")
    if phase != "Running":
        message = f"the pod {pod} on {clean(node)} does not run: {phase}"
        raise ToolError(ErrorCode.BUSY, message, f"`kubectl -n {namespace} describe pod {pod}` shows why")
    if container is None:
        return Workload(clean(node), f"pod:{uid}")
    ids = {str(one.get("name")): one.get("containerID") for one in _list(status, "containerStatuses")}
    if container not in ids:
        message = f"the pod {pod} has no container {clean(container, 100)!r}"
        raise ToolError(ErrorCode.NOT_FOUND, message, f"valid: {', '.join(clean(name, 100) for name in ids)}")
    named = ids[container]
    if not isinstance(named, str) or not _ID.fullmatch(named):
        message = f"the container {clean(container, 100)} of {pod} does not run yet"
        raise ToolError(ErrorCode.BUSY, message, "wait for it")
    return Workload(clean(node), named)


async def _agent(client: Client, access: Access, agents: Agents, node: str) -> str:
    """Return the name of the agent's pod on `node`."""
    query = urlencode(
        {"labelSelector": f"app.kubernetes.io/name={agents.name}", "fieldSelector": f"spec.nodeName={node}"}
    )
    page = (await fetch(client, access, agents.namespace, f"pods?{query}", "list")).json()
    if not isinstance(page, dict) or not isinstance(page.get("items"), list):
        raise wrong("the answer is no list of pods")
    found = {
        str(_part(item, "metadata").get("name") or ""): any(
            one.get("type") == "Ready" and one.get("status") == "True"
            for one in _list(_part(item, "status"), "conditions")
        )
        for item in page["items"]
        if _part(item, "spec").get("nodeName") == node and not _part(item, "metadata").get("deletionTimestamp")
    }
    if not found:
        message = f"no whystall agent runs on the node {node}, in the namespace {agents.namespace}"
        raise ToolError(ErrorCode.NOT_FOUND, message, "apply deploy/daemonset.yaml, or name --agent-namespace")
    ready = sorted(name for name, ready in found.items() if ready)
    if not ready:
        name = clean(min(found), 260)
        message = f"the whystall agent {name} on the node {node} is not ready"
        remedy = f"`kubectl -n {agents.namespace} describe pod {name}` shows why"
        raise ToolError(ErrorCode.BUSY, message, remedy)
    check_names(ready[0])
    return ready[0]


async def _token(client: Client, access: Access, agents: Agents) -> str:
    """Return the token in the Secret that the agents read."""
    where = f"the Secret {agents.name} in the namespace {agents.namespace}"
    remedy = "set token in [fleet] of the settings, or make the Secret as described in docs/deploy.md"
    response = await fetch(client, access, agents.namespace, f"secrets/{agents.name}", "get", allowed=(403, 404))
    if response.status == 403:
        message = f"no token: you may not read {where}"
        raise ToolError(ErrorCode.NO_PRIVILEGE, message, "set token in [fleet] of the settings, or allow get of it")
    if response.status == 404:
        raise ToolError(ErrorCode.NOT_FOUND, f"no token: there is no {where.removeprefix('the ')}", remedy)
    data = _part(response.json(), "data").get("token")
    try:
        token = base64.b64decode(str(data or ""), validate=True).decode("ascii").strip()
    except (binascii.Error, ValueError):
        token = ""
    if not token or not token.isprintable():
        raise ToolError(ErrorCode.NOT_FOUND, f"no token: {where} has no key `token`", remedy)
    return token


class _Known:
    """A token that was read already, as `Host.token`."""

    def __init__(self, value: str) -> None:
        self._value = value

    def read(self, _name: str) -> str:
        return self._value


def _diagnosis(answer: Answer, agents: Agents, agent: str) -> Diagnosis:
    if answer.status == "answered":
        try:
            return Diagnosis.model_validate(answer.reply)
        except ValidationError:
            message = f"the agent on {answer.host} answers with no diagnosis of this version"
            raise ToolError(ErrorCode.IO_ERROR, message, "use the same version of whystall here and there") from None
    code = ErrorCode.NO_PRIVILEGE if "HTTP 40" in answer.detail else ErrorCode.IO_ERROR
    message = f"the agent on {answer.host}: {answer.status}: {answer.detail}"
    raise ToolError(code, message, f"`kubectl -n {agents.namespace} logs {agent}` may say why")


def _part(value: Any, key: str) -> Mapping[str, Any]:
    found = value.get(key) if isinstance(value, dict) else None
    return found if isinstance(found, dict) else {}


def _list(value: Mapping[str, Any], key: str) -> list[dict[str, Any]]:
    found = value.get(key)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []
