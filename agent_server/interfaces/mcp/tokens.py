"""Verify bearer tokens: of the command line, of the settings, and signed ones of an authorization server."""

from __future__ import annotations

import hashlib
import hmac
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
from mcp.server.auth.provider import AccessToken
from starlette.authentication import AuthenticationError

from whystall.agent_server.settings.proofs import SHORTEST
from whystall.agent_server.settings.sections.access import SCOPES, AccessSettings, IssuerSettings
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.extras import extra

if TYPE_CHECKING:
    import jwt

_log = logging.getLogger("whystall.mcp")
# Signatures with a public key only: with a shared key, whoever can verify a token can also make one.
_RSA = ["RS256", "RS384", "RS512", "PS256", "PS384", "PS512"]
_CURVES = {"secp256r1": "ES256", "secp384r1": "ES384", "secp521r1": "ES512"}
_ALGORITHMS = [*_RSA, *_CURVES.values(), "EdDSA"]
_LEEWAY_S = 30.0  # difference of clocks
_FETCH_S = 10.0
_FETCHES = 2  # at once: a request with an unknown key must not occupy all threads


class Tokens:
    """The accepted tokens: `lone` (None: there is none), which has all scopes, and those that `access` names.

    Static tokens are read at every request, so that one is revoked by removing its file or changing its content.
    """

    def __init__(self, lone: str | None, access: AccessSettings) -> None:
        """Raises `ToolError` (bad_argument): a token or key cannot be read, is weak, or is given twice."""
        self._lone = lone
        self._static = access.tokens
        seen = {lone: "the token of the command line"}
        for name, each in access.tokens.items():
            place = f"[access.tokens.{name}]"
            token = each.token.read(f"{place} token")
            if len(token) < SHORTEST:
                remedy = "make one with `openssl rand -base64 32`"
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"{place} token: shorter than {SHORTEST} characters", remedy)
            if token in seen:
                raise ToolError(ErrorCode.BAD_ARGUMENT, f"{place} token: the same as {seen[token]}", "use another one")
            seen[token] = place
        self._signed = SignedTokens(access.issuer, str(access.url)) if access.issuer is not None else None

    async def verify_token(self, token: str) -> AccessToken | None:
        """Return what `token` grants; None if it is not valid. The result does not hold the token itself.

        Raises `AuthenticationError` if the issuer's keys cannot be fetched.
        """
        found: AccessToken | None = None
        if self._lone is not None and _same(token, self._lone):
            found = AccessToken(token="", client_id="whystall", scopes=list(SCOPES))
        for name, each in self._static.items():
            try:
                known = each.token.read(f"[access.tokens.{name}] token")
            except ToolError as error:
                _log.warning("%s", error)
                continue
            if _same(token, known) and found is None:
                found = AccessToken(token="", client_id=f"token:{name}", scopes=list(each.scopes))
        if found is not None or self._signed is None or token.count(".") != 2:
            return found
        return await self._signed.verify(token)


class SignedTokens:
    """Access tokens that `issuer` signs as JWT (RFC 9068) for `resource`, the address of this server."""

    def __init__(self, issuer: IssuerSettings, resource: str) -> None:
        """Raises `ToolError` (bad_argument): PyJWT is missing, or the key file holds no public key."""
        with extra("oauth"):
            import jwt
        self._jwt = jwt
        self._issuer = issuer.url
        self._audiences = [resource, f"{resource}/"]
        self._fetching = anyio.Semaphore(_FETCHES)
        self._client: jwt.PyJWKClient | None = None
        if issuer.key_file is not None:
            self._key, self._algorithms = _of_file(issuer.key_file)
        else:
            self._algorithms = _ALGORITHMS
            self._client = jwt.PyJWKClient(str(issuer.jwks_url), timeout=_FETCH_S)

    async def verify(self, token: str) -> AccessToken | None:
        """Return what `token` grants; None if signature, issuer, audience or time are wrong, or a claim is missing.

        Raises `AuthenticationError` if the issuer's keys cannot be fetched.
        """
        try:
            claims = self._jwt.decode(
                token,
                self._key if self._client is None else await self._fetched(token, self._client),
                algorithms=self._algorithms,
                audience=self._audiences,
                issuer=self._issuer,
                leeway=_LEEWAY_S,
                options={"require": ["exp", "iss", "aud"]},
            )
        except (self._jwt.PyJWTError, ArithmeticError, RecursionError, TypeError, ValueError):  # of hostile content
            return None
        return AccessToken(
            token="",
            client_id=str(claims.get("client_id") or claims.get("azp") or ""),
            scopes=_scopes(claims),
            expires_at=int(claims["exp"] + _LEEWAY_S),
            subject=str(claims["sub"]) if claims.get("sub") is not None else None,
            claims={"iss": self._issuer},
        )

    async def _fetched(self, token: str, client: jwt.PyJWKClient) -> jwt.PyJWK:
        """Return the issuer's key that `token` names. The client caches keys, and fetches rarely for unknown ones."""
        # Without this, any text with two dots would make us fetch.
        self._jwt.decode(
            token,
            options={"verify_signature": False, "verify_exp": True, "verify_iss": True, "verify_aud": True},
            issuer=self._issuer,
            audience=self._audiences,
            leeway=_LEEWAY_S,
        )
        try:
            async with self._fetching:
                return await anyio.to_thread.run_sync(client.get_signing_key_from_jwt, token)
        except (self._jwt.PyJWKClientConnectionError, ValueError, OSError) as error:
            _log.warning("cannot fetch the keys of the issuer %s: %s", self._issuer, type(error).__name__)
            raise AuthenticationError from None


def _of_file(path: Path) -> tuple[Any, list[str]]:
    """Return the public key in a PEM file, and the algorithms that it can verify."""
    from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import load_pem_public_key

    try:
        key = load_pem_public_key(path.read_bytes())
    except OSError as error:
        message = f"[access.issuer] key_file: cannot read {path}: {error.strerror}"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give a readable file") from None
    except ValueError:
        key = None
    if isinstance(key, rsa.RSAPublicKey):
        return key, _RSA
    if isinstance(key, ec.EllipticCurvePublicKey) and key.curve.name in _CURVES:
        return key, [_CURVES[key.curve.name]]
    if isinstance(key, ed25519.Ed25519PublicKey):
        return key, ["EdDSA"]
    message = f"[access.issuer] key_file: {path} holds no public key for RS, PS, ES or EdDSA"
    raise ToolError(ErrorCode.BAD_ARGUMENT, message, "write it with `openssl pkey -in private.pem -pubout`")


def _scopes(claims: Mapping[str, Any]) -> list[str]:
    """Return our scopes in ``scope`` (RFC 8693: words) or ``scp`` (a list at some issuers)."""
    given = claims.get("scope", claims.get("scp"))
    words = given.split() if isinstance(given, str) else given if isinstance(given, list) else []
    return [scope for scope in SCOPES if scope in words]


def _same(one: str, other: str) -> bool:
    """Compare in constant time: digests have equal length."""
    return hmac.compare_digest(
        *(hashlib.sha256(each.encode("utf-8", "surrogateescape")).digest() for each in (one, other))
    )
