"""The author of a chat message: identity, language, time zone and permissions."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, tzinfo
from zoneinfo import ZoneInfo

from whystall.agent_server.diagnosis.log_reading import may_be_log
from whystall.agent_server.integrations.chat.intents import language
from whystall.agent_server.integrations.messages import Incoming
from whystall.agent_server.journal.observation_requests import Listener
from whystall.agent_server.settings.model import Settings
from whystall.knowledge_base.models import Lang
from whystall.tools.contract.text import clean

TERMINAL = "terminal"
"""The channel of ``whystall chat``; its user can write the knowledge base anyway."""
EVERYBODY = "*"
_NAME = 100


@dataclass(frozen=True)
class Author:
    """Who wrote a message.

    `user`: the name in the settings, else empty; `name`: for the audit log: the user, or chat and the vendor's id,
    followed by the display name, which anybody can choose; `zone`: for words such as "tomorrow".
    """

    incoming: Incoming
    lang: Lang
    zone: tzinfo
    user: str
    name: str
    may_change: bool
    llm: bool = False

    @property
    def key(self) -> tuple[str, str, str]:
        """Return channel, conversation and sender: pending commands belong to all three."""
        place = self.incoming.place
        return place.channel, place.conversation, self.incoming.sender

    @property
    def listener(self) -> Listener:
        """Return the author as a listener of an investigation."""
        place = self.incoming.place.model_dump(mode="json")
        return Listener(sender=self.incoming.sender, place=place, lang=self.lang)

    @property
    def source(self) -> str:
        """Return the source for the history of a ticket."""
        return f"chat:{self.incoming.place.channel}"


def author_of(incoming: Incoming, settings: Settings | None, last: Lang | None = None) -> Author:
    """Return the author of `incoming`. `last`: their previous language, for a message without
    words of their own (``2``, a pasted log).

    The language: `lang` of the chat in the settings; else that of the message, which is Chinese with any Chinese
    character in it; without own words, `last`.
    """
    name = incoming.place.channel
    channel = settings.chat.get(name) if settings is not None else None
    users = settings.users if settings is not None else {}
    user = next((known for known, person in users.items() if person.chats.get(name) == incoming.sender), "")
    terminal = name == TERMINAL
    allowed = terminal or (channel is not None and not {incoming.sender, EVERYBODY}.isdisjoint(channel.may_change))
    zones = (
        users[user].timezone if user else None,
        channel.timezone if channel else None,
        settings.oncall.timezone if settings is not None else None,
    )
    zone_name = next((zone for zone in zones if zone), None)
    # a log has the words of its program, not of its sender
    wordless = not any(letter.isalpha() for letter in incoming.text) or may_be_log(incoming.lines)
    return Author(
        incoming=incoming,
        lang=(channel.lang if channel else None)
        or (last if wordless and last and language(incoming.text) == "en" else language(incoming.text)),
        zone=ZoneInfo(zone_name) if zone_name else _local(),
        user=user,
        name=user or (incoming.sender if terminal else _unknown_sender(incoming)),
        may_change=allowed,
        llm=channel.llm if channel is not None else False,
    )


def _unknown_sender(incoming: Incoming) -> str:
    display_name = f" ({clean(incoming.sender_name, _NAME)})" if incoming.sender_name else ""
    return f"chat:{incoming.place.channel}:{clean(incoming.sender, _NAME)}{display_name}"


def _local() -> tzinfo:
    zone = datetime.now().astimezone().tzinfo
    assert zone is not None  # noqa: S101 - `astimezone` gives one
    return zone
