"""The API server of Kubernetes on loopback: pods, Secrets, and ``portforward`` to a real port of this machine.

As documented: https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/pod-v1/ ; the protocol of
``portforward`` is that of the kubelet (k8s.io/kubelet/pkg/cri/streaming/portforward, websocket.go).
"""

from __future__ import annotations

import asyncio
import base64
from typing import Any

from starlette.applications import Starlette
from starlette.requests import HTTPConnection, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect

USER = "the-token-of-a-user-of-the-cluster"
PROTOCOL = "v4.channel.k8s.io"


def pod(name: str, node: str, uid: str, namespace: str = "ml", **changed: Any) -> dict[str, Any]:
    """A running pod as ``kubectl get pod -o json`` shows it, shortened."""
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", "status": "True"}],
        "containerStatuses": [{"name": "main", "containerID": f"containerd://{uid.replace('-', '') * 2}"}],
    }
    labels = {"app.kubernetes.io/name": "whystall"} if namespace == "whystall" else {}
    made = {"metadata": {"name": name, "namespace": namespace, "uid": uid, "labels": labels}}
    return {"kind": "Pod", **made, "spec": {"nodeName": node}, "status": status} | changed


class Cluster:
    """What the server knows. `port`: to which ``portforward`` to any pod leads; None: nothing listens in the pod.
    `forbidden`: ``VERB RESOURCE`` that the user has no right to.
    """

    def __init__(self, *pods: dict[str, Any], port: int | None = None, token: str = "") -> None:
        self.pods = list(pods)
        self.port = port
        self.secrets = {"whystall": {"token": token}} if token else {}
        self.forbidden: set[str] = set()
        self.forwarded: list[tuple[str, str]] = []
        self.authorised: set[str | None] = {f"Bearer {USER}"}

    @property
    def app(self) -> Starlette:
        """The server."""
        pods = "/api/v1/namespaces/{namespace}/pods"
        routes = [
            Route(pods, self.list),
            Route(f"{pods}/{{name}}", self.get),
            Route("/api/v1/namespaces/{namespace}/secrets/{name}", self.secret),
            WebSocketRoute(f"{pods}/{{name}}/portforward", self.forward),
        ]
        return Starlette(routes=routes)

    def refused(self, request: HTTPConnection, right: str) -> Response | None:
        """A Status of 401 or 403, None if `request` is permitted."""
        if request.headers.get("authorization") not in self.authorised:
            return _status(401, "Unauthorized")
        verb, _, resource = right.partition(" ")
        message = f'{resource} is forbidden: User "ann" cannot {verb} resource "{resource}" in API group ""'
        return _status(403, message) if right in self.forbidden else None

    async def list(self, request: Request) -> Response:
        """GET pods, with a selector of one label, and of the node."""
        if (refused := self.refused(request, "list pods")) is not None:
            return refused
        key, _, value = request.query_params["labelSelector"].partition("=")
        node = request.query_params.get("fieldSelector", "").removeprefix("spec.nodeName=")
        items = [
            one
            for one in self._of(request)
            if one["metadata"]["labels"].get(key) == value and one["spec"].get("nodeName") == node
        ]
        return JSONResponse({"kind": "PodList", "metadata": {}, "items": items})

    async def get(self, request: Request) -> Response:
        """GET a pod."""
        if (refused := self.refused(request, "get pods")) is not None:
            return refused
        name = request.path_params["name"]
        found = next((one for one in self._of(request) if one["metadata"]["name"] == name), None)
        return JSONResponse(found) if found else _status(404, f'pods "{name}" not found')

    async def secret(self, request: Request) -> Response:
        """GET a Secret."""
        if (refused := self.refused(request, "get secrets")) is not None:
            return refused
        found = self.secrets.get(request.path_params["name"])
        if found is None:
            return _status(404, "secrets not found")
        data = {key: base64.b64encode(value.encode()).decode() for key, value in found.items()}
        return JSONResponse({"kind": "Secret", "type": "Opaque", "data": data})

    async def forward(self, socket: WebSocket) -> None:
        """One connection to the port: the port on each channel, then bytes; errors on channel 1."""
        if (refused := self.refused(socket, "create pods/portforward")) is not None:
            await socket.send_denial_response(refused)
            return
        name, port = socket.path_params["name"], socket.query_params["ports"]
        self.forwarded.append((name, port))
        assert PROTOCOL in socket.scope["subprotocols"]
        await socket.accept(subprotocol=PROTOCOL)
        for channel in (0, 1):
            await socket.send_bytes(bytes([channel]) + int(port).to_bytes(2, "little"))
        if self.port is None:
            text = f"error forwarding port {port} to pod {name}: connect(5): Connection refused"
            await socket.send_bytes(b"\x01" + text.encode())
            await socket.close()
            return
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)

        async def outward() -> None:
            while piece := await reader.read(4096):
                await socket.send_bytes(b"\x00" + piece)
            await socket.close()

        task = asyncio.create_task(outward())
        try:
            while True:
                message = await socket.receive_bytes()
                assert message[0] == 0
                writer.write(message[1:])
                await writer.drain()
        except (WebSocketDisconnect, ConnectionError, RuntimeError):
            task.cancel()
        finally:
            writer.close()

    def _of(self, request: HTTPConnection) -> list[dict[str, Any]]:
        namespace = request.path_params["namespace"]
        return [one for one in self.pods if one["metadata"]["namespace"] == namespace]


def _status(code: int, message: str) -> Response:
    return JSONResponse({"kind": "Status", "status": "Failure", "message": message, "code": code}, status_code=code)
