"""Check the secrets of incoming requests: long enough, and a different one for each interface."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.sections.chat import FeishuSettings
from whystall.tools.contract.errors import ToolError

if TYPE_CHECKING:
    from whystall.agent_server.settings.model import Settings

SHORTEST = 16
"""Characters of a secret that the operator chooses; as for the token of MCP."""
_CHOSEN = frozenset({"token", "calendar_token", "webhook_token", "webhook_secret", "secret", "encrypt_key"})
_ISSUED = frozenset(
    {"signing_token", "signing_secret", "app_secret", "verification_token", "encoding_aes_key"}
)  # by vendors, in their form
_OUTWARD = frozenset({("sinks", "token"), ("fleet", "token")})  # we send them to trackers and hosts


def weak(settings: Settings, secrets: Iterable[tuple[tuple[str, ...], Secret]]) -> Iterator[str]:
    """Yield a line for each of `secrets` (key, secret) that is weak or reused; never the secret itself."""
    of: dict[str, str] = {}
    for place, secret in secrets:
        where, name = f"[{'.'.join(place[:-1])}] {place[-1]}", place[-1]
        chosen = name in _CHOSEN or place[:-1] == ("reports", "tokens")
        if not (chosen or name in _ISSUED) or (place[0], name) in _OUTWARD:
            continue
        try:
            value = secret.read(where)
        except ToolError:
            continue  # reported by `settings_check`
        if chosen and len(value) < SHORTEST:
            yield f"{where}: it can be guessed; give at least {SHORTEST} characters: `openssl rand -base64 32`"
        if (other := of.setdefault(value, where)) != where:
            yield f"{where}: it is the same as {other}: it gives access to both; use different ones"
    for name, chat in settings.chat.items():
        if isinstance(chat, FeishuSettings) and chat.verification_token and chat.may_change and not chat.encrypt_key:
            yield (
                f"[chat.{name}] may_change: a verification_token proves no identity, and is part of every event;"
                " give an encrypt_key"
            )
