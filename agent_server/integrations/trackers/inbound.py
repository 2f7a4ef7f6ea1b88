"""Webhooks of trackers: whom to believe, and what they say. Pure, on the bytes as they came.

* GitHub: https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries
* GitLab: https://docs.gitlab.com/user/project/integrations/webhooks/ (signing tokens are Standard Webhooks; it sends
  ``webhook-id`` always and ``webhook-signature`` only where a signing token is set)
* Jira: https://developer.atlassian.com/cloud/jira/platform/webhooks/ (``X-Hub-Signature``)
* PagerDuty: https://developer.pagerduty.com/docs/verifying-webhook-signatures
* Standard Webhooks for the generic one.

Only Standard Webhooks sign a time; with the others a replay is known by its id (`Heard.key`), which is kept for longer
than our tickets change. What is heard twice changes nothing either way: it says how an issue is, not what to do.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

from whystall.agent_server.integrations.messages import Answered, Refused
from whystall.agent_server.integrations.trackers import github, gitlab, jira
from whystall.agent_server.integrations.trackers.issue import Heard, Phase, Seen, rows, string, table
from whystall.agent_server.outbound.standard_webhooks import WINDOW_S, matches
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.sections.trackers import (
    GitHubSink,
    GitLabSink,
    JiraSink,
    PagerDutySink,
    SinkSettings,
    WebhookSink,
)
from whystall.knowledge_base.tickets.models import ClosedAs

BODY_LIMIT = 8 << 20
"""Bytes of a webhook: GitHub sends up to 25 MB, of which an issue and its comment are the least."""
_TEXT = 4000
_ACTIONS: dict[str, Phase] = {"reopen": "open", "acknowledge": "acknowledged", "resolve": "over", "close": "over"}
_CLOSED_AS: tuple[ClosedAs, ...] = ("fixed", "no_fault", "wont_fix", "cannot_reproduce", "stale")


def receive(
    name: str,
    settings: SinkSettings,
    headers: Mapping[str, str],
    query: Mapping[str, str],
    body: bytes,
    now: float,
) -> list[Heard] | Answered:
    """What the tracker `name` says. `headers` in lower case. Raises `Refused`; `ToolError` (bad_argument) where our
    secret cannot be read.
    """
    if len(body) > BODY_LIMIT:
        raise Refused(413, "too_large")
    if not settings.two_way:
        raise Refused(404, "off", "two_way is off")
    _verify(name, settings, headers, query, body, now)
    try:
        said = table(json.loads(body))
    except (ValueError, RecursionError):
        raise Refused(400, "malformed", "no JSON") from None
    if not said:
        raise Refused(400, "malformed", "no object of JSON")
    if isinstance(settings, GitHubSink):
        heard = _github(settings, headers, said)
    elif isinstance(settings, GitLabSink):
        heard = _gitlab(settings, headers, said, body)
    elif isinstance(settings, JiraSink):
        heard = _jira(settings, headers, said, body)
    elif isinstance(settings, PagerDutySink):
        heard = _pagerduty(said)
    else:
        heard = _generic(headers, said)
    return [heard] if heard is not None else Answered()


def _verify(
    name: str, settings: SinkSettings, headers: Mapping[str, str], query: Mapping[str, str], body: bytes, now: float
) -> None:
    """Raises `Refused` unless whoever sent `body` knows the secret."""

    def read(secret: Secret, field: str) -> str:
        return secret.read(f"sinks.{name}.{field}")

    if isinstance(settings, GitHubSink) and settings.webhook_secret:
        _hub(read(settings.webhook_secret, "webhook_secret"), headers.get("x-hub-signature-256", ""), body)
    elif isinstance(settings, GitLabSink) and settings.signing_token:
        _standard(read(settings.signing_token, "signing_token"), headers, body, now)
    elif isinstance(settings, GitLabSink) and settings.webhook_token:
        _token(read(settings.webhook_token, "webhook_token"), headers.get("x-gitlab-token", ""))
    elif isinstance(settings, JiraSink) and settings.webhook_secret:
        _hub(read(settings.webhook_secret, "webhook_secret"), headers.get("x-hub-signature", ""), body)
    elif isinstance(settings, JiraSink) and settings.webhook_token:
        _token(read(settings.webhook_token, "webhook_token"), query.get("token", ""))
    elif isinstance(settings, PagerDutySink) and settings.webhook_secret:
        secret = read(settings.webhook_secret, "webhook_secret")
        wanted = "v1=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest()
        given = [part.strip() for part in headers.get("x-pagerduty-signature", "").split(",")]
        right = [_same(wanted, one) for one in given[:10]]  # two while a secret is changed
        if not any(right):
            raise Refused(401, "signature")
    elif isinstance(settings, WebhookSink) and settings.secret:
        _standard(read(settings.secret, "secret"), headers, body, now)
    else:
        raise Refused(404, "off", "no secret of a webhook is set")


def _hub(secret: str, given: str, body: bytes) -> None:
    if not _same("sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest(), given):
        raise Refused(401, "signature")


def _token(secret: str, given: str) -> None:
    if not _same(secret, given):
        raise Refused(401, "signature")


def _standard(secret: str, headers: Mapping[str, str], body: bytes, now: float) -> None:
    id, timestamp = headers.get("webhook-id", ""), headers.get("webhook-timestamp", "")
    if not id or not matches(headers.get("webhook-signature", ""), secret, id, timestamp, body):
        raise Refused(401, "signature")
    if not (timestamp.isascii() and timestamp.isdigit() and len(timestamp) < 16):
        raise Refused(401, "malformed")
    if abs(now - int(timestamp)) > WINDOW_S:
        raise Refused(401, "too_old")


def _same(one: str, other: str) -> bool:
    """Compared in constant time."""
    return hmac.compare_digest(one.encode(), other.encode("utf-8", "replace"))


def _github(settings: GitHubSink, headers: Mapping[str, str], said: dict[str, Any]) -> Heard | None:
    event, action = headers.get("x-github-event", ""), string(said.get("action"))
    issue = table(said.get("issue"))
    repository = string(table(said.get("repository")).get("full_name"), 300)
    if "pull_request" in issue or repository.casefold() != settings.repository.casefold():
        return None
    key, by = headers.get("x-github-delivery", ""), string(table(said.get("sender")).get("login"), 200)
    seen = github.seen(issue, settings)
    if event == "issues" and action in ("closed", "reopened", "labeled", "unlabeled"):
        return _state(key, seen, by)
    if event == "issue_comment" and action == "created":
        comment = table(said.get("comment"))
        return _comment(key, seen, by, string(comment.get("id")), comment.get("body"))
    return None


def _gitlab(settings: GitLabSink, headers: Mapping[str, str], said: dict[str, Any], body: bytes) -> Heard | None:
    key = (
        headers.get("webhook-id") or headers.get("idempotency-key") or headers.get("x-gitlab-event-uuid") or _hash(body)
    )
    project = table(said.get("project"))
    if settings.project not in (string(project.get("id")), string(project.get("path_with_namespace"), 1000)):
        return None
    by = string(table(said.get("user")).get("username"), 200)
    what = table(said.get("object_attributes"))
    if said.get("object_kind") in ("issue", "work_item"):
        # Its labels stand beside the attributes in older versions.
        seen = gitlab.seen({"labels": said.get("labels"), **what}, settings)
        return _state(key, seen, by) if what.get("action") in ("close", "reopen", "update") else None
    if said.get("object_kind") == "note" and what.get("noteable_type") == "Issue" and what.get("system") is not True:
        if string(what.get("action")) not in ("", "create"):
            return None
        seen = gitlab.seen(table(said.get("issue")), settings)
        return _comment(key, seen, by, string(what.get("id")), what.get("note"))
    return None


def _jira(settings: JiraSink, headers: Mapping[str, str], said: dict[str, Any], body: bytes) -> Heard | None:
    event = string(said.get("webhookEvent"), 100)
    issue = table(said.get("issue"))
    project = string(table(table(issue.get("fields")).get("project")).get("key"), 200)
    if (project or string(issue.get("key"), 100).rpartition("-")[0]) != settings.project:
        return None
    key = headers.get("x-atlassian-webhook-identifier") or _hash(body)
    seen = jira.seen(issue, settings)
    if event == "jira:issue_updated":
        items = rows(table(said.get("changelog")).get("items"))
        if any(string(item.get("field")) == "status" for item in items):
            return _state(key, seen, jira.person(said.get("user")))
    comment = table(said.get("comment"))
    if event == "comment_created" or (event == "jira:issue_updated" and comment):
        by = jira.person(comment.get("author"))
        return _comment(key, seen, by, string(comment.get("id")), comment.get("body"))
    return None


def _pagerduty(said: dict[str, Any]) -> Heard | None:
    event = table(said.get("event"))
    data, what = table(event.get("data")), string(event.get("event_type"), 100)
    agent = table(event.get("agent"))
    key, by = string(event.get("id"), 200), string(agent.get("summary"), 200)
    at = string(event.get("occurred_at"), 40)
    phases: dict[str, Phase] = {
        "incident.acknowledged": "acknowledged",
        "incident.resolved": "over",
        "incident.reopened": "open",
    }
    remote = string(data.get("incident_key"), 300)
    if not key or not remote or agent.get("type") != "user_reference":
        return None  # what no person did is an echo of our own events, or a timer
    if what in phases:
        return Heard(key=key, remote=remote, by=by, phase=phases[what], changed=at)
    return None


def _generic(headers: Mapping[str, str], said: dict[str, Any]) -> Heard | None:
    """``{"ticket": "12", "action": "acknowledge|resolve|close|reopen|comment", "by", "text", "closed_as"}``."""
    action, ticket = string(said.get("action"), 50), string(said.get("ticket"), 20)
    by, text = string(said.get("by"), 200), string(said.get("text"), _TEXT)
    key = headers.get("webhook-id", "")[:200]
    if not ticket:
        raise Refused(400, "malformed", "no ticket")
    if action == "comment" and text:
        return Heard(key=key, ticket=ticket, by=by, comment=key, text=text)
    if action not in _ACTIONS:
        raise Refused(400, "malformed", "no action")
    named = string(said.get("closed_as"), 50)
    closed_as = next((as_ for as_ in _CLOSED_AS if as_ == named), "wont_fix" if action == "close" else None)
    phase = _ACTIONS[action]
    return Heard(
        key=key, ticket=ticket, by=by, phase=phase, closed_as=closed_as if phase == "over" else None, text=text
    )


def _state(key: str, seen: Seen, by: str) -> Heard | None:
    if not seen.ref or not key:
        return None
    return Heard(
        key=key[:200], remote=seen.ref, by=by, phase=seen.phase, closed_as=seen.closed_as, changed=seen.changed
    )


def _comment(key: str, seen: Seen, by: str, id: str, text: Any) -> Heard | None:
    if not seen.ref or not id or not key:
        return None
    return Heard(key=key[:200], remote=seen.ref, by=by, comment=id, text=string(text, 100_000))


def _hash(body: bytes) -> str:
    return hashlib.sha256(body).hexdigest()
