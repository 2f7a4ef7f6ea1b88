"""The section ``[access]``: who may call the MCP server over HTTP, and what for."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from whystall.agent_server.settings.names import Name
from whystall.agent_server.settings.paths import Located
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.section import Section
from whystall.agent_server.settings.sections.chat import Address, Api

Scope = Literal["observe", "tickets", "admin"]
"""``observe``: run tools, read their results and past incidents; ``tickets``: read and write tickets, write incidents;
``admin``: both, and ask the hosts of the fleet.
"""
SCOPES: tuple[Scope, ...] = get_args(Scope)
_MANY = 1000


class TokenSettings(Section):
    """A static token, ``[access.tokens.NAME]``."""

    token: Secret
    scopes: Annotated[list[Scope], Field(min_length=1, max_length=len(SCOPES))]


class IssuerSettings(Section):
    """An OAuth 2.0 authorization server that signs access tokens (JWT).

    `url`: its identifier, as in the claim ``iss``. Its public keys: `jwks_url`, or the PEM file `key_file`, which is
    read once.
    """

    url: Address
    jwks_url: Address | None = None
    key_file: Located | None = None

    @model_validator(mode="after")
    def _one_source(self) -> IssuerSettings:
        if (self.jwks_url is None) == (self.key_file is None):
            raise ValueError("give one of jwks_url and key_file")
        return self


class AccessSettings(Section):
    """Tokens besides the one of the command line, which has all scopes.

    `url`: of this server's MCP endpoint as clients write it. It must be an audience of every signed token (RFC 8707).
    """

    url: Api | None = None
    tokens: Annotated[dict[Name, TokenSettings], Field(max_length=_MANY)] = Field(default_factory=dict)
    issuer: IssuerSettings | None = None

    @property
    def on(self) -> bool:
        """Whether any token is accepted besides the one of the command line."""
        return bool(self.tokens) or self.issuer is not None

    @model_validator(mode="after")
    def _own_url(self) -> AccessSettings:
        if self.issuer is not None and self.url is None:
            raise ValueError("an issuer needs url, the address of this server, for which its tokens must be made")
        return self
