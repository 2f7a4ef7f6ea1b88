"""The message types and the interface that all chat vendors share."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from whystall.agent_server.outbound.request import Request, Response

TEXT_LIMIT = 4000
"""Maximum characters of a person's message."""
LINES_LIMIT = 64_000
"""Maximum characters of a message with its line breaks: a pasted log; longer ones are cut."""
BODY_LIMIT = 256 * 1024
"""Maximum bytes of a callback; the longest text of any vendor, encrypted and in JSON twice, is smaller."""


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Place(_Model):
    """Where a message goes.

    `channel`: the chat's name in the settings; `conversation`: the vendor's id of the group or person; `thread`: id of
    the answered message; `hook`: the vendor's address for answers, used only on its own hosts, until `hook_until`.
    """

    channel: str
    conversation: str
    thread: str = ""
    hook: str = ""
    hook_until: float = 0.0


class Incoming(_Model):
    """One message of a verified sender.

    `event`: the vendor's id, unchanged if repeated; `sender`: id, `sender_name`: shown to people; `text`: cleaned,
    without our mention, one line of at most `TEXT_LIMIT` characters; `lines`: the same with its line breaks, at most
    `LINES_LIMIT` characters, empty if it has none; `direct`: not in a group; `proof`: a signature that does not
    cover the body and is therefore valid for one message only, else empty.
    """

    event: str
    place: Place
    sender: str
    sender_name: str = ""
    text: str
    lines: str = ""
    direct: bool = False
    proof: str = ""


class Outgoing(_Model):
    """One message to send. `text`: Markdown with all foreign text escaped or in code spans; `picture`: uri of an
    artifact (PNG or SVG).
    """

    title: str = Field(max_length=200)
    text: str
    picture: str | None = None
    lang: Literal["en", "zh"] = "en"


@dataclass(frozen=True)
class Answered:
    """A callback without a message for us: a challenge, or an event to ignore (`why`: a code). `proof`: as in
    `Incoming`, used up by it.
    """

    body: bytes = b"{}"
    content_type: str = "application/json"
    why: str = "ignored"
    proof: str = ""


class Refused(Exception):
    """A callback that failed verification. `status`: of HTTP; `code`: ``signature``, ``too_old``, ``malformed``,
    ``too_large``, ``unknown_sender``; the response contains no more than these.
    """

    def __init__(self, status: int, code: str, detail: str = "") -> None:
        super().__init__(f"{code}: {detail}" if detail else code)
        self.status = status
        self.code = code
        self.detail = detail


@dataclass(frozen=True)
class Picture:
    """A picture of a message. `alt`: its description; `url`: where vendors can fetch it, None without public url."""

    png: bytes = field(repr=False)
    name: str
    alt: str
    url: str | None = None


class SendError(Exception):
    """The vendor did not accept a message. `code`: the vendor's; `again`: a retry may succeed, after `wait` seconds if
    known.
    """

    def __init__(self, code: str, message: str = "", *, again: bool = False, wait: float | None = None) -> None:
        super().__init__(f"{code}: {message}" if message else code)
        self.code = code
        self.message = message
        self.again = again
        self.wait = wait


SendSteps = Generator[Request, Response, None]
"""Sends one message: yields requests and receives their responses. Only the last request is visible to people, so the
sequence can be restarted without showing anything twice; a vendor that sends in parts remembers those that were
accepted. Raises `SendError`."""


class Vendor(Protocol):
    """One chat of the settings. It neither sends nor stores. Secrets are read when used; raises `ToolError`
    (bad_argument) if one cannot be read.
    """

    name: str
    kind: str
    accepted: Answered
    """The response to a callback whose message was stored."""
    pace: tuple[int, float]
    """The vendor's rate limit: number of messages, and seconds."""
    challenged_by_get: bool
    """Whether the vendor registers our address with a GET, whose body is empty."""

    def home(self) -> Place | None:
        """Return where unrequested messages go, or None."""
        ...

    def receive(
        self, headers: Mapping[str, str], query: Mapping[str, str], body: bytes, now: float
    ) -> Incoming | Answered:
        """Verify and parse a callback. `headers`: by lower-case name; `body`: raw. Raises `Refused`."""
        ...

    def send(self, to: Place, message: Outgoing, picture: Picture | None, key: str, now: float) -> SendSteps:
        """Send `message` to `to`. `key`: deduplication key of the message, for vendors that accept one."""
        ...
