"""Requests that store pprof in Pyroscope, Grafana Alloy or Parca, and what their answers mean. Pure.

Pyroscope and Alloy: the Connect interface ``push.v1.PusherService/Push``, which both document and Pyroscope calls
stable (grafana.com/docs/pyroscope/latest/reference-server-api, .../alloy/latest/reference/components/pyroscope/
pyroscope.receive_http). Parca: ``ProfileStoreService/WriteRaw`` (parca-dev/parca, profilestore.proto) over gRPC-Web, as
its pages call it. Its proto file names ``POST /profiles/writeraw``, too, but the server mounts that gateway below
``/api`` without removing the prefix (pkg/server/server.go), and answers unknown paths with a page and status 200.
"""

from __future__ import annotations

import base64
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from whystall.agent_server.outbound.request import Request, Response, as_json
from whystall.agent_server.settings.sections.profiles import ProfilesSettings
from whystall.tools.contract.text import clean
from whystall.tools.files.protobuf import message, number, text

_PYROSCOPE = "/push.v1.PusherService/Push"
_PARCA = "/parca.profilestore.v1alpha1.ProfileStoreService/WriteRaw"
_GRPC_WEB = "application/grpc-web+proto"
_TRAILERS = 0x80  # flag of a frame of gRPC-Web (github.com/grpc/grpc/blob/master/doc/PROTOCOL-WEB.md)


@dataclass(frozen=True)
class Series:
    """A profile: `labels` with ``__name__``, and `pprof`, gzipped."""

    labels: Mapping[str, str]
    pprof: bytes


def request_of(settings: ProfilesSettings, token: str, series: Sequence[Series]) -> Request:
    """Return the request that stores `series`; `token`: empty for none."""
    base = settings.url.rstrip("/")
    headers: dict[str, str] = {}
    secrets: tuple[str, ...] = ()
    if token:
        basic = base64.b64encode(f"{settings.user}:{token}".encode()).decode()
        headers["Authorization"] = f"Basic {basic}" if settings.user else f"Bearer {token}"
        secrets = (token, basic)
    if settings.tenant:
        headers["X-Scope-OrgID"] = settings.tenant
    if settings.kind == "parca":
        headers |= {"Content-Type": _GRPC_WEB, "Accept": _GRPC_WEB, "X-Grpc-Web": "1"}
        return Request("POST", base + _PARCA, headers, _write_raw(series), secrets)
    headers["Content-Type"] = "application/json"
    return Request("POST", base + _PYROSCOPE, headers, _push(series), secrets)


def refused(settings: ProfilesSettings, response: Response) -> str:
    """Return why an answer with status 200 is none of such a receiver, or refuses; empty if it was stored."""
    if settings.kind == "pyroscope":
        return "" if isinstance(response.json(), dict) else "the answer is not Pyroscope's; is url right?"
    headers = {name.lower(): value for name, value in response.headers.items()} | _trailers(response.body)
    if "grpc-status" not in headers:
        return "the answer is not Parca's; is url right?"
    why = clean(unquote(headers.get("grpc-message", "")), 300)
    return "" if headers["grpc-status"] == "0" else f"gRPC status {clean(headers['grpc-status'], 10)}: {why}"


def _push(series: Sequence[Series]) -> bytes:
    """PushRequest of push/v1/push.proto as JSON."""
    return as_json(
        {
            "series": [
                {
                    "labels": [{"name": name, "value": value} for name, value in sorted(one.labels.items())],
                    "samples": [{"ID": str(uuid.uuid4()), "rawProfile": base64.b64encode(one.pprof).decode()}],
                }
                for one in series
            ]
        }
    )


def _write_raw(series: Sequence[Series]) -> bytes:
    """WriteRawRequest in one frame of gRPC-Web: a flag, 4 bytes of length, the message."""
    found = b""
    for one in series:
        pairs = (text(1, name) + text(2, value) for name, value in sorted(one.labels.items()))
        labels = b"".join(message(1, pair) for pair in pairs)
        found += message(2, message(1, labels) + message(2, message(1, one.pprof)))
    found += number(3, 1)  # normalized: there are no addresses
    return b"\0" + len(found).to_bytes(4, "big") + found


def _trailers(body: bytes) -> dict[str, str]:
    """Return the last frame's lines: ``grpc-status: 0\\r\\ngrpc-message: ...``."""
    at = 0
    while len(body) - at >= 5:
        flag, length = body[at], int.from_bytes(body[at + 1 : at + 5], "big")
        if flag & _TRAILERS:
            lines = body[at + 5 : at + 5 + length].decode("utf-8", "replace").splitlines()
            return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        at += 5 + length
    return {}
