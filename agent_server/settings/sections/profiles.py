"""``[profiles]``: where CPU and off-CPU profiles of the watched jobs are sent to. Off without a url."""

from __future__ import annotations

from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from whystall.agent_server.settings.loopback import is_loopback
from whystall.agent_server.settings.paths import Located
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.section import Section

Kind = Literal["pyroscope", "parca"]
_Label = Annotated[str, Field(pattern=r"^(?:[A-Za-z]|_[A-Za-z0-9])[A-Za-z0-9_]{0,98}$")]
_Value = Annotated[str, Field(min_length=1, max_length=200)]


class ProfilesSettings(Section):
    """A receiver of pprof: Pyroscope or Grafana Alloy (``pyroscope``), or Parca (``parca``).

    `url`: without the path of the interface; `token`: of the header ``Authorization``, or with `user` the password;
    `tenant`: of the header ``X-Scope-OrgID``; `labels`: of every profile, besides ``service_name``, ``job_name`` and
    ``host``; `every_s`: seconds of each profile; `ca_file`: authorities of its certificate, PEM; `plain_http`: send
    unencrypted to another host.
    """

    url: Annotated[str, Field(max_length=2000, description="where the receiver is: https://host:4040")] = ""
    kind: Annotated[Kind, Field(description="its interface")] = "pyroscope"
    token: Secret | None = None
    user: Annotated[str, Field(max_length=200, pattern=r"^[!-9;-~]*$", description="makes token a password")] = ""
    tenant: Annotated[str, Field(max_length=150, pattern=r"^[A-Za-z0-9!._*'()|-]*$", description="X-Scope-OrgID")] = ""
    labels: Annotated[dict[_Label, _Value], Field(max_length=10, description="of every profile")] = Field(
        default_factory=dict
    )
    every_s: Annotated[float, Field(ge=10, le=600, description="seconds of each profile")] = 60.0
    timeout_s: Annotated[float, Field(ge=1, le=60, description="seconds of a request")] = 10.0
    ca_file: Located | None = None
    plain_http: Annotated[bool, Field(description="send unencrypted to another host")] = False

    @property
    def on(self) -> bool:
        """Whether anything is sent."""
        return bool(self.url)

    @model_validator(mode="after")
    def _usable(self) -> ProfilesSettings:
        if not self.url:
            return self
        url = urlsplit(self.url)
        if url.scheme not in ("http", "https") or not url.hostname or url.username or url.query or url.fragment:
            raise ValueError("url: give an address such as https://host:4040, without a password, ? and #")
        if url.scheme == "http" and not is_loopback(url.hostname) and not self.plain_http:
            raise ValueError("url: use https://, or on a network that you trust plain_http = true")
        if self.user and self.token is None:
            raise ValueError("user: give token, its password")
        return self
