"""The trackers ``[sinks.NAME]``, distinguished by `kind`. Without one nothing is sent."""

from __future__ import annotations

import re
from typing import Annotated, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, Field, model_validator

from whystall.agent_server.settings.loopback import is_loopback
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.section import Section

Level = Literal["critical", "major", "minor", "info"]
_REPOSITORY = re.compile(r"[A-Za-z0-9-]{1,100}/[A-Za-z0-9._-]{1,100}")
_PROJECT = re.compile(r"\d{1,15}|[\w.-]{1,255}(/[\w.-]{1,255}){1,20}")
HOST_NAME = r"^([A-Za-z0-9][A-Za-z0-9._-]{0,252})?$"
_KEY = re.compile(r"[A-Z][A-Z0-9_]{1,99}")


def _address(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or not url.isascii() or not url.isprintable():
        raise ValueError("give an address that starts with https://")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address must not contain a user or a password")
    return url


def _api(url: str) -> str:
    parts = urlsplit(_address(url))
    if parts.query or parts.fragment:
        raise ValueError("give an address without ? and #")
    return url.rstrip("/")


def _label(text: str) -> str:
    if not text.isprintable() or "," in text or text != text.strip():
        raise ValueError("a label must not contain commas or begin or end with blanks")
    return text


Api = Annotated[str, Field(max_length=2000), AfterValidator(_api)]
Address = Annotated[str, Field(max_length=2000), AfterValidator(_address)]
Label = Annotated[str, Field(min_length=1, max_length=50), AfterValidator(_label)]
Word = Annotated[str, Field(min_length=1, max_length=100)]


class Sink(Section):
    """What every tracker has. `url`: base of its API. `plain_http`: send secrets unencrypted over http:// to another
    host. `timeout`: seconds for one request. `lang`: of the texts there; None: of `[tickets]`. `two_way`: changes made
    there change our tickets.
    """

    plain_http: bool = False
    timeout: float = Field(default=20.0, ge=1, le=120)
    lang: Literal["en", "zh"] | None = None
    two_way: bool = True

    @model_validator(mode="after")
    def _encrypted(self) -> Sink:
        url = urlsplit(str(getattr(self, "url", "")))
        if url.scheme == "http" and not is_loopback(url.hostname or "") and not self.plain_http:
            raise ValueError("secrets would go unencrypted: use https://, or on a network you trust plain_http = true")
        return self


class Tracker(Sink):
    """An issue tracker. `settle`: seconds after a creation whose response was lost until the tracker is searched for
    it. `poll`: seconds between polls, for trackers that cannot reach us; None: never. `comments`: report changes of a
    ticket as comments. `labels`: of every issue; `severity_labels`: per severity, and `category_label` with ``{}`` for
    the category (empty: none). `account`: our account there, to recognise our own changes; without it they are
    recognised by what we stored.
    """

    settle: float = Field(default=10.0, ge=0, le=3600)
    poll: float | None = Field(default=None, ge=10, le=86_400)
    comments: bool = True
    labels: list[Label] = Field(default=["whystall"], max_length=20)
    severity_labels: dict[Level, Label] = Field(
        default={level: f"severity::{level}" for level in ("critical", "major", "minor", "info")}
    )
    category_label: str = Field(default="category::{}", max_length=50)
    account: str = Field(default="", max_length=200)


class GitHubSink(Tracker):
    """A repository at GitHub or on GitHub Enterprise Server (``https://HOST/api/v3``). `token`: a fine-grained one with
    "Issues: write". `webhook_secret`: of a webhook that sends issues and issue comments to ``/sinks/NAME``.
    `acknowledged_label`: marks an acknowledged issue, set by us or by people.
    """

    kind: Literal["github"]
    url: Api = "https://api.github.com"
    repository: str
    token: Secret
    webhook_secret: Secret | None = None
    acknowledged_label: Label = "acknowledged"

    @model_validator(mode="after")
    def _named(self) -> GitHubSink:
        if not _REPOSITORY.fullmatch(self.repository):
            raise ValueError("repository: give OWNER/NAME")
        return self


class GitLabSink(Tracker):
    """A project at GitLab. `project`: its number or its path; `token`: of the scope ``api``. For a webhook (issues,
    comments) to ``/sinks/NAME``: `signing_token` (``whsec_...``, GitLab 19 and later), else `webhook_token`.
    `acknowledged_label` as for GitHub.
    """

    kind: Literal["gitlab"]
    url: Api = "https://gitlab.com"
    project: str
    token: Secret
    signing_token: Secret | None = None
    webhook_token: Secret | None = None
    issue_type: Literal["issue", "incident"] = "issue"
    confidential: bool = False
    acknowledged_label: Label = "status::acknowledged"

    @model_validator(mode="after")
    def _named(self) -> GitLabSink:
        if not _PROJECT.fullmatch(self.project):
            raise ValueError("project: give its number or its path: GROUP/NAME")
        return self


class JiraSink(Tracker):
    """A project in Jira: Cloud with `email` and an API token, Data Center with a personal access token alone.

    `priorities`: per severity; one that the project does not have is left out. `resolution`: set when an issue is done,
    if its screen requires one. `done`, `reopened`, `started`: names of transitions; None: the first one into a status
    of that category. For a webhook: `webhook_secret` (X-Hub-Signature), else `webhook_token`, sent as ``?token=``.
    `settle` is longer than for others: Jira's search index is seconds to minutes behind.
    """

    kind: Literal["jira"]
    url: Api
    project: str
    issue_type: Word = "Task"
    email: str | None = Field(default=None, max_length=254)
    token: Secret
    webhook_secret: Secret | None = None
    webhook_token: Secret | None = None
    settle: float = Field(default=60.0, ge=0, le=3600)
    priorities: dict[Level, Word] = Field(
        default={"critical": "Highest", "major": "High", "minor": "Medium", "info": "Low"}
    )
    resolution: Word | None = None
    done: Word | None = None
    reopened: Word | None = None
    started: Word | None = None

    @model_validator(mode="after")
    def _named(self) -> JiraSink:
        if not _KEY.fullmatch(self.project):
            raise ValueError("project: give its key: OPS")
        if self.email is not None and (":" in self.email or not self.email.isprintable()):
            raise ValueError("email: give the address of the token's account")
        return self


class PagerDutySink(Sink):
    """A service at PagerDuty, by its Events API v2 (`routing_key`, the "integration key"). `webhook_secret`: of a
    webhook subscription (v3) to ``/sinks/NAME``. `min_severity`: milder tickets are not sent.
    """

    kind: Literal["pagerduty"]
    url: Api = "https://events.pagerduty.com"
    routing_key: Secret
    webhook_secret: Secret | None = None
    source: str = Field(default="", max_length=200)
    min_severity: Level = "info"


class WebhookSink(Sink):
    """Any program that accepts JSON. Signed with `secret`, both ways, as in Standard Webhooks: ``webhook-id``,
    ``webhook-timestamp``, ``webhook-signature``. `authorization`: a whole header, if the receiver requires one.
    """

    kind: Literal["webhook"]
    url: Address
    secret: Secret | None = None
    authorization: Secret | None = None


class CentreSink(Sink):
    """Another whystall server, which keeps the tickets of many hosts (its `[reports]`). `token`: of this host there.
    `host`: the name under which this host reports; empty: its own.
    """

    kind: Literal["centre"]
    url: Api
    token: Secret
    host: Annotated[str, Field(max_length=253, pattern=HOST_NAME)] = ""


SinkSettings = Annotated[
    GitHubSink | GitLabSink | JiraSink | PagerDutySink | WebhookSink | CentreSink, Field(discriminator="kind")
]
TrackerSettings = GitHubSink | GitLabSink | JiraSink
