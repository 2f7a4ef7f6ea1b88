"""Reach a port of a pod through the API server, also one that listens on the pod's loopback only.

Each connection to a listener on our loopback becomes one WebSocket to ``pods/NAME/portforward``, in the protocol
``v4.channel.k8s.io``: a binary message begins with the number of its channel, 0 for data and 1 for errors, and the
first message of each channel holds the port, two bytes in little endian
(https://pkg.go.dev/k8s.io/kubelet/pkg/cri/streaming/portforward, websocket.go).
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from urllib.parse import quote, urlsplit

import anyio
from anyio.abc import SocketAttribute, SocketStream
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus, InvalidURI
from websockets.typing import Subprotocol

from whystall.agent_server.fleet.kubernetes import Access, denied, wrong
from whystall.agent_server.settings.loopback import is_loopback
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean

_PROTOCOL = Subprotocol("v4.channel.k8s.io")
_DATA, _ERROR = 0, 1
_PORT_BYTES = 2
_PIECE = 32 << 10
_MESSAGE_LIMIT = 1 << 20
_OPEN_S = 20.0


@dataclass
class Tunnel:
    """A way to one port of a pod. `port`: of the listener on 127.0.0.1; `failure`: why the last connection failed."""

    access: Access
    namespace: str
    pod: str
    pod_port: int
    port: int = 0
    failure: ToolError | None = field(default=None, repr=False)


@asynccontextmanager
async def forwarded(access: Access, namespace: str, pod: str, pod_port: int) -> AsyncIterator[Tunnel]:
    """Yield a tunnel to `pod_port` of `pod`; its listener and connections end with the block.

    Raises `ToolError` (no_privilege, not_found, io_error) if no connection can be made.
    """
    tunnel = Tunnel(access, namespace, pod, pod_port)
    await (await _opened(tunnel)).close()  # a refusal is known before anything is sent
    async with await anyio.create_tcp_listener(local_host="127.0.0.1", local_port=0) as listener:
        tunnel.port = listener.extra(SocketAttribute.local_port)  # noqa: S610  anyio, not Django
        async with anyio.create_task_group() as group:
            group.start_soon(listener.serve, lambda stream: _connection(tunnel, stream))
            try:
                yield tunnel
            finally:
                group.cancel_scope.cancel()


async def _connection(tunnel: Tunnel, local: SocketStream) -> None:
    """Carry one connection, until either side ends it."""
    try:
        remote = await _opened(tunnel)
    except ToolError as error:
        tunnel.failure = error
        await local.aclose()
        return
    async with local, anyio.create_task_group() as group:

        async def inward() -> None:
            await _to_local(tunnel, remote, local)
            group.cancel_scope.cancel()

        group.start_soon(inward)
        await _to_pod(local, remote)
        group.cancel_scope.cancel()
    with anyio.CancelScope(shield=True), anyio.move_on_after(1):
        await remote.close()


async def _to_pod(local: SocketStream, remote: ClientConnection) -> None:
    try:
        async for piece in local:
            for start in range(0, len(piece), _PIECE):
                await remote.send(bytes([_DATA]) + piece[start : start + _PIECE])
    except (ConnectionClosed, anyio.BrokenResourceError, anyio.ClosedResourceError):
        return


async def _to_local(tunnel: Tunnel, remote: ClientConnection, local: SocketStream) -> None:
    headers = {_DATA: _PORT_BYTES, _ERROR: _PORT_BYTES}  # bytes of the port that are still to come
    try:
        async for message in remote:
            if not isinstance(message, bytes) or not message or message[0] not in headers:
                tunnel.failure = wrong("the answer to portforward is of another protocol")
                return
            channel = message[0]
            content = message[1 + headers[channel] :]
            headers[channel] -= min(headers[channel], len(message) - 1)
            if content and channel == _ERROR:
                text = clean(" ".join(content.decode("utf-8", "replace").split()), 300)
                tunnel.failure = wrong(f"port {tunnel.pod_port} of the pod {tunnel.pod}: {text}")
                return
            if content:
                await local.send(content)
    except (ConnectionClosed, anyio.BrokenResourceError, anyio.ClosedResourceError):
        return


async def _opened(tunnel: Tunnel) -> ClientConnection:
    """Return a new WebSocket to the port. Raises `ToolError`."""
    access, namespace = tunnel.access, tunnel.namespace
    server = urlsplit(access.server)
    scheme = "wss" if server.scheme == "https" else "ws"
    path = f"/api/v1/namespaces/{quote(namespace)}/pods/{quote(tunnel.pod)}/portforward?ports={tunnel.pod_port}"
    try:
        return await connect(
            f"{scheme}://{server.netloc}{server.path}{path}",
            ssl=access.tls if scheme == "wss" else None,
            subprotocols=[_PROTOCOL],
            additional_headers=access.headers,
            user_agent_header="whystall",
            compression=None,
            proxy=None if is_loopback(server.hostname or "") else True,
            open_timeout=_OPEN_S,
            max_size=_MESSAGE_LIMIT,
        )
    except InvalidStatus as error:
        raise _refused(error.response.status_code, tunnel) from None
    except ssl.SSLCertVerificationError as error:
        raise wrong(f"TLS: its certificate is not trusted: {clean(error.verify_message, 200)}") from None
    except (InvalidHandshake, InvalidURI) as error:
        raise wrong(f"portforward is not answered as WebSocket: {clean(str(error), 200)}") from None
    except (OSError, TimeoutError) as error:
        reason = clean(getattr(error, "strerror", None) or "no answer", 200)
        raise wrong(f"no connection to {clean(server.netloc, 200)}: {reason}") from None


def _refused(status: int, tunnel: Tunnel) -> ToolError:
    if status in (401, 403):
        return denied(status, tunnel.namespace, "get,create", "pods/portforward")
    if status == 404:
        message = f"Kubernetes: there is no pod {tunnel.pod} in {tunnel.namespace} any more"
        return ToolError(ErrorCode.NOT_FOUND, message, "call again")
    return wrong(f"portforward to the pod {tunnel.pod}: HTTP {status}")
