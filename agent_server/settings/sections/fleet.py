"""The section ``[fleet]``: the hosts that `whystall fleet` may ask, and how."""

from __future__ import annotations

import ipaddress
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from whystall.agent_server.settings.loopback import is_loopback
from whystall.agent_server.settings.names import Name
from whystall.agent_server.settings.paths import Located
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.section import Section
from whystall.agent_server.settings.sections.trackers import Address

_MANY = 20_000


def _template(url: str) -> str:
    parts = urlsplit(url.replace("{host}", "host"))
    if "{" in parts.geturl() or "}" in parts.geturl() or (parts.hostname or "") not in url.replace("{host}", "host"):
        raise ValueError("the only placeholder is {host}")
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii() or not url.isprintable():
        raise ValueError("give an address like https://{host}:8377/mcp")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address must not contain a user or a password")
    return url


def _permitted(entry: str) -> str:
    if "/" in entry:
        ipaddress.ip_network(entry)  # its ValueError says what is wrong
    return entry


Allowed = Annotated[str, AfterValidator(_permitted)]


class HostOverride(Section):
    """What differs for one host, ``[fleet.overrides.NAME]``; None: as in ``[fleet]``."""

    url: Address | None = None
    token: Secret | None = None
    ca_file: Located | None = None


class FleetSettings(Section):
    """The hosts, each of which runs ``whystall serve --transport http``.

    `hosts`: hostlist expressions (``node[001-128]``), by comma; `hosts_file`: one a line, ``#`` begins a comment. Both
    are asked if no host is named. `allow`: further hosts that may be named (hostlists, patterns with ``*``, networks as
    ``10.0.0.0/8`` for hosts named by address); the token is sent to no other host. `url`: of a host's MCP endpoint.
    `token`: of `serve`; `ca_file`: authorities of its certificate in PEM, None: the system's. `plain_http`: send the
    token unencrypted to other machines. `identity`: a reply must come from the host of that name. `deadline` of the
    whole answer and `host_deadline` of one host, seconds, both beyond the time that the tool observes; `at_once`: hosts
    asked concurrently; `reply_limit`: bytes from one host.
    """

    hosts: Annotated[str, Field(max_length=65_536)] = ""
    hosts_file: Located | None = None
    allow: Annotated[list[Allowed], Field(max_length=1000)] = Field(default_factory=list)
    url: Annotated[str, Field(max_length=2000), AfterValidator(_template)] = "https://{host}:8377/mcp"
    token: Secret | None = None
    ca_file: Located | None = None
    plain_http: bool = False
    identity: bool = True
    deadline: Annotated[float, Field(ge=1, le=3600)] = 60.0
    host_deadline: Annotated[float, Field(ge=1, le=3600)] = 30.0
    at_once: Annotated[int, Field(ge=1, le=4096)] = 256
    reply_limit: Annotated[int, Field(ge=10_000, le=64 << 20)] = 1 << 20
    overrides: Annotated[dict[Name, HostOverride], Field(max_length=_MANY)] = Field(default_factory=dict)

    @property
    def configured(self) -> bool:
        """Return whether any host may be asked."""
        return bool(self.hosts or self.hosts_file or self.allow or self.overrides)

    @model_validator(mode="after")
    def _encrypted(self) -> FleetSettings:
        given: list[Any] = [self.url, *(one.url for one in self.overrides.values())]
        for url in given:
            parts = urlsplit(url or "")
            if parts.scheme == "http" and not is_loopback(parts.hostname or "") and not self.plain_http:
                raise ValueError("tokens would go unencrypted: use https://, or on a trusted network plain_http = true")
        return self
