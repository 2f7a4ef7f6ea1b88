"""``[otlp]``: where metrics, findings and traces of diagnoses are sent to (OpenTelemetry). Off without an endpoint."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from whystall.agent_server.settings.loopback import is_loopback
from whystall.agent_server.settings.paths import Located
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.section import Section

Signal = Literal["metrics", "logs", "traces"]
_Header = Annotated[str, Field(pattern=r"^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,100}$")]


class OtlpSettings(Section):
    """A collector that takes OTLP over HTTP.

    `endpoint`: without ``/v1/...``; `headers`: by name, each a secret; `ca_file`: authorities of its certificate, PEM;
    `plain_http`: send unencrypted to another host.
    """

    endpoint: Annotated[str, Field(max_length=2000, description="where the collector is: https://host:4318")] = ""
    headers: Annotated[dict[_Header, Secret], Field(max_length=20, description="sent with every request")] = Field(
        default_factory=dict
    )
    signals: Annotated[tuple[Signal, ...], Field(min_length=1, description="what is sent")] = (
        "metrics",
        "logs",
        "traces",
    )
    every_s: Annotated[float, Field(ge=5, le=3600, description="seconds between two exports")] = 30.0
    timeout_s: Annotated[float, Field(ge=1, le=60, description="seconds of a request, its retries included")] = 10.0
    ca_file: Located | None = None
    plain_http: Annotated[bool, Field(description="send unencrypted to another host")] = False

    @property
    def on(self) -> bool:
        """Whether anything is sent."""
        return bool(self.endpoint)

    @model_validator(mode="after")
    def _usable(self) -> OtlpSettings:
        if not self.endpoint:
            return self
        url = urlsplit(self.endpoint)
        if url.scheme not in ("http", "https") or not url.hostname or url.username or url.query or url.fragment:
            raise ValueError("endpoint: give an address such as https://host:4318, without a password, ? and #")
        if url.scheme == "http" and not is_loopback(url.hostname) and not self.plain_http:
            raise ValueError("endpoint: use https://, or on a network that you trust plain_http = true")
        return self
