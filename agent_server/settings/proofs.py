"""Whether the secrets that open our doors are good for it: long enough not to be guessed, and each for one door."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.sections.chat import FeishuSettings
from whystall.tools.contract.errors import ToolError

if TYPE_CHECKING:
    from whystall.agent_server.settings.model import Settings

SHORTEST = 16
"""Characters of a secret that somebody made up; as for the token of MCP."""
_MADE = frozenset({"token", "calendar_token", "webhook_token", "webhook_secret", "secret", "encrypt_key"})
_GIVEN = frozenset({"signing_token", "signing_secret", "app_secret", "verification_token"})  # by vendors, in their form
_OUTWARD = "sinks", "token"  # what trackers ask of us


def weak(settings: Settings, secrets: Iterable[tuple[tuple[str, ...], Secret]]) -> Iterator[str]:
    """What of `secrets`, given with their places, lets in more than is meant, a line each; never the secret itself."""
    of: dict[str, str] = {}
    for place, secret in secrets:
        where, name = f"[{'.'.join(place[:-1])}] {place[-1]}", place[-1]
        if name not in _MADE | _GIVEN or (place[0], name) == _OUTWARD:
            continue
        try:
            value = secret.read(where)
        except ToolError:
            continue  # that is told elsewhere
        if name in _MADE and len(value) < SHORTEST:
            yield f"{where}: it can be guessed; give at least {SHORTEST} characters: `openssl rand -base64 32`"
        if (other := of.setdefault(value, where)) != where:
            yield f"{where}: it is the same as {other}: who is let in there is let in here; give each its own"
    for name, chat in settings.chat.items():
        if isinstance(chat, FeishuSettings) and chat.verification_token and chat.may_change and not chat.encrypt_key:
            yield (
                f"[chat.{name}] may_change: a verification_token proves nobody's identity, and stands in every event;"
                " give an encrypt_key"
            )
