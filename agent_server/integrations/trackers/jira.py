"""Jira: https://developer.atlassian.com/cloud/jira/platform/rest/v2/ (Cloud) and
https://docs.atlassian.com/software/jira/docs/api/REST/9.12.0/ (Data Center). Version 2 of both, with wiki markup.
Webhooks: https://developer.atlassian.com/cloud/jira/platform/webhooks/ (``X-Hub-Signature``).

All listings come from an index that lags by seconds to minutes
(https://developer.atlassian.com/cloud/jira/platform/search-and-reconcile/). An issue whose creation had no response is
therefore searched for twice, `TrackerSettings.settle` apart, before it is created again; if it appears even later,
there are two.
"""

from __future__ import annotations

import base64
import re
from datetime import datetime, timedelta, timezone
from typing import Any
from urllib.parse import urlencode

from whystall.agent_server.integrations.trackers.issue import (
    Edit,
    Issue,
    IssueComment,
    IssueState,
    Page,
    Phase,
    TrackerEvent,
    comment_event,
    state_event,
)
from whystall.agent_server.integrations.trackers.json_values import json_list, json_object, json_objects, json_text
from whystall.agent_server.integrations.trackers.rest import PER_PAGE, RestTracker
from whystall.agent_server.integrations.trackers.text import Wiki
from whystall.agent_server.integrations.trackers.tracker import WebhookRequest
from whystall.agent_server.integrations.trackers.verification import check_hub_signature, check_token, unverifiable
from whystall.agent_server.outbound.request import Request, Response
from whystall.agent_server.settings.sections.trackers import JiraSink
from whystall.knowledge_base.ticket_models import ClosedAs
from whystall.knowledge_base.times import moment

_KEY = re.compile(r"[A-Z][A-Z0-9_]{1,80}-\d{1,15}")
_FIELDS = "summary,description,status,resolution,labels,assignee,created,updated"
_PHASES: dict[str, Phase] = {"done": "over", "indeterminate": "acknowledged"}
_CATEGORIES: dict[Phase, str] = {"over": "done", "acknowledged": "indeterminate", "open": "new"}
_RESOLUTIONS: tuple[tuple[str, ClosedAs], ...] = (
    ("won't", "wont_fix"),
    ("declined", "wont_fix"),
    ("duplicate", "duplicate"),
    ("cannot reproduce", "cannot_reproduce"),
    ("not a bug", "no_fault"),
)


class Jira(RestTracker[JiraSink]):
    """The project of `settings`."""

    vendor = "Jira"
    title_limit = 255
    comment_limit = 32_767
    index_lags = True

    def __init__(self, name: str, settings: JiraSink) -> None:
        super().__init__(name, settings, Wiki(32_767), f"{settings.url}/rest/api/2")

    def create(self, issue: Issue, text: str, left_out: set[str]) -> Request:
        fields: dict[str, Any] = {
            "project": {"key": self.settings.project},
            "issuetype": {"name": self.settings.issue_type},
            "summary": issue.title,
            "description": text,
            "labels": _labels(issue.labels),
            "priority": self._priority(issue.severity.value),
            "assignee": self._person(issue.assignees) if issue.assignees else None,
        }
        given = {name: value for name, value in fields.items() if value is not None and name not in left_out}
        return self._request("POST", "/issue", {"fields": given})

    def created(self, response: Response) -> IssueState:
        """Parse the response to `create`, which holds only the key: ``{"id": "10001", "key": "OPS-7"}``."""
        key = json_text(json_object(response.json()).get("key"), 100)
        if not _KEY.fullmatch(key):
            raise self._malformed(response)
        return IssueState(ref=key, url=f"{self.settings.url}/browse/{key}", title="", text="", phase="open")

    def read(self, ref: str) -> Request:
        return self._request("GET", f"/issue/{ref}?fields={_FIELDS}")

    def edit(self, ref: str, edit: Edit, state: IssueState, left_out: set[str]) -> list[Request]:
        """Change an issue except for its state, which `transition` changes."""
        texts = {"summary": edit.title, "description": edit.text}
        fields: dict[str, Any] = {name: value for name, value in texts.items() if value is not None}
        if edit.assignees is not None:
            fields["assignee"] = self._person(edit.assignees) if edit.assignees else None
        if edit.severity is not None and (priority := self._priority(edit.severity.value)) is not None:
            fields["priority"] = priority
        fields = {name: value for name, value in fields.items() if name not in left_out}
        add, remove = _labels(edit.add_labels), _labels(edit.remove_labels)
        labels = [*({"add": label} for label in add), *({"remove": label} for label in remove)]
        body: dict[str, Any] = {}
        if fields:
            body["fields"] = fields
        if labels and "labels" not in left_out:
            body["update"] = {"labels": labels}
        return [self._request("PUT", f"/issue/{ref}", body)] if body else []

    def list_transitions(self, ref: str) -> Request:
        return self._request("GET", f"/issue/{ref}/transitions?expand=transitions.fields")

    def transition(self, ref: str, phase: Phase, response: Response) -> Request | None:
        s = self.settings
        wanted = {"over": s.done, "open": s.reopened, "acknowledged": s.started}[phase]
        found = json_objects(json_object(response.json()).get("transitions"))
        named = [t for t in found if wanted is not None and json_text(t.get("name")).casefold() == wanted.casefold()]
        matching = [t for t in found if _category(json_object(t.get("to"))) == _CATEGORIES[phase]]
        # A closed issue often has no transition back to "new", but one to "in progress".
        back = [t for t in found if phase == "open" and _category(json_object(t.get("to"))) == "indeterminate"]
        chosen = next(iter(named if wanted is not None else [*matching, *back]), None)
        if chosen is None:
            return None
        body: dict[str, Any] = {"transition": {"id": json_text(chosen.get("id"), 50)}}
        if phase == "over" and s.resolution and "resolution" in json_object(chosen.get("fields")):
            body["fields"] = {"resolution": {"name": s.resolution}}
        return self._request("POST", f"/issue/{ref}/transitions", body)

    def comment(self, ref: str, text: str) -> Request:
        return self._request("POST", f"/issue/{ref}/comment", {"body": text})

    def list_comments(self, ref: str, page: str) -> Request:
        query = {"orderBy": "-created", "startAt": page or "0", "maxResults": str(PER_PAGE)}
        return self._request("GET", f"/issue/{ref}/comment?{urlencode(query)}")

    def parse_comments(self, response: Response, page: str) -> Page:
        found = json_objects(json_object(response.json()).get("comments"))
        return Page(comments=[self._comment(row) for row in found], more=self._next_page(page, len(found)))

    def list_newest(self, page: str) -> Request:
        return self._search("ORDER BY created DESC", page)

    def list_changed(self, since: str, page: str) -> Request:
        """List issues changed since the time `since`, and a day before: JQL uses the unknown zone of our account."""
        then = moment(since) if since else None
        when = f'AND updated >= "{_jql_day(then)}" ' if then is not None else ""
        return self._search(f"{when}ORDER BY updated ASC", page)

    def parse_issues(self, response: Response, page: str) -> Page:
        answer = json_object(response.json())
        found = json_objects(answer.get("issues"))
        issues = [self._state(row) for row in found]
        if self.settings.email is None:
            return Page(issues=issues, more=self._next_page(page, len(found)))
        token = json_text(answer.get("nextPageToken"), 5000)
        return Page(issues=issues, more=token if token and answer.get("isLast") is not True else None)

    def change_time(self, response: Response) -> str:
        """Return nothing: the response has no body."""
        return ""

    def rejected_field(self, response: Response) -> str | None:
        errors = json_object(json_object(response.json()).get("errors"))
        return next((name for name in ("priority", "assignee", "labels") if name in errors), None)

    def check(self) -> Request:
        return self._request("GET", f"/project/{self.settings.project}")

    def _search(self, rest: str, page: str) -> Request:
        query = {"jql": f'project = "{self.settings.project}" {rest}', "fields": _FIELDS, "maxResults": str(PER_PAGE)}
        if self.settings.email is None:
            return self._request("GET", f"/search?{urlencode({**query, 'startAt': page or '0'})}")
        return self._request("GET", f"/search/jql?{urlencode({**query, **({'nextPageToken': page} if page else {})})}")

    def _priority(self, severity: str) -> dict[str, str] | None:
        name = next((name for level, name in self.settings.priorities.items() if level == severity), None)
        return {"name": name} if name else None

    def _person(self, assignees: tuple[str, ...]) -> dict[str, str]:
        return {"accountId" if self.settings.email is not None else "name": assignees[0]}

    def verify(self, webhook: WebhookRequest) -> None:
        """Verify the signature if a secret is configured, else the token in the address."""
        if self.settings.webhook_secret:
            secret = self._secret(self.settings.webhook_secret, "webhook_secret")
            check_hub_signature(secret, webhook.headers.get("x-hub-signature", ""), webhook.body)
        elif self.settings.webhook_token:
            check_token(self._secret(self.settings.webhook_token, "webhook_token"), webhook.query.get("token", ""))
        else:
            raise unverifiable()

    def parse(self, webhook: WebhookRequest, body: dict[str, Any]) -> TrackerEvent | None:
        """Return a change of status or a comment: ``{"webhookEvent": "comment_created", "issue": {...}, ...}``."""
        event = json_text(body.get("webhookEvent"), 100)
        issue = json_object(body.get("issue"))
        project = json_text(json_object(json_object(issue.get("fields")).get("project")).get("key"), 200)
        if (project or json_text(issue.get("key"), 100).rpartition("-")[0]) != self.settings.project:
            return None
        key = webhook.headers.get("x-atlassian-webhook-identifier") or webhook.digest
        state = self._state(issue)
        if event == "jira:issue_updated":
            items = json_objects(json_object(body.get("changelog")).get("items"))
            if any(json_text(item.get("field")) == "status" for item in items):
                return state_event(key, state, _user(body.get("user")))
        comment = json_object(body.get("comment"))
        if event == "comment_created" or (event == "jira:issue_updated" and comment):
            text = json_text(comment.get("body"), 100_000)
            return comment_event(key, state, _user(comment.get("author")), json_text(comment.get("id")), text)
        return None

    def _secrets(self) -> tuple[str, ...]:
        return (self._token, *([self._basic] if self._basic else []))

    @property
    def _basic(self) -> str:
        email = self.settings.email
        return base64.b64encode(f"{email}:{self._token}".encode()).decode() if email else ""

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Basic {self._basic}" if self._basic else f"Bearer {self._token}"}

    def _next_page(self, page: str, found: int) -> str | None:
        return str(int(page or "0") + found) if found >= PER_PAGE else None

    def _is_complete(self, issue: dict[str, Any]) -> bool:
        return bool(_KEY.fullmatch(json_text(issue.get("key"), 100)) and json_object(issue.get("fields")))

    def _comment(self, row: dict[str, Any]) -> IssueComment:
        return self._new_comment(row, _user(row.get("author")), "body", "created")

    def _state(self, issue: dict[str, Any]) -> IssueState:
        key, fields = json_text(issue.get("key"), 100), json_object(issue.get("fields"))
        phase = _PHASES.get(_category(json_object(fields.get("status"))), "open")
        resolution = json_text(json_object(fields.get("resolution")).get("name")).casefold().replace("\u2019", "'")
        closed_as = next((as_ for word, as_ in _RESOLUTIONS if word in resolution), None)
        return IssueState(
            ref=key,
            url=f"{self.settings.url}/browse/{key}",
            title=json_text(fields.get("summary")),
            text=json_text(fields.get("description"), 200_000),
            phase=phase,
            labels=tuple(label for label in json_list(fields.get("labels")) if isinstance(label, str)),
            assignees=tuple(user for user in [_user(fields.get("assignee"))] if user),
            created=json_text(fields.get("created"), 40),
            changed=json_text(fields.get("updated"), 40),
            closed_as=closed_as if phase == "over" else None,
        )


def _user(user: Any) -> str:
    """Return how the API names a user: the account id in Cloud, the name in Data Center."""
    return json_text(json_object(user).get("accountId"), 200) or json_text(json_object(user).get("name"), 200)


def _category(status: dict[str, Any]) -> str:
    return json_text(json_object(status.get("statusCategory")).get("key"), 50)


def _labels(labels: tuple[str, ...]) -> list[str]:
    """Replace blanks, which labels of Jira cannot have."""
    return ["_".join(label.split()) for label in labels]


def _jql_day(then: datetime) -> str:
    return (then.astimezone(timezone.utc) - timedelta(days=1)).strftime("%Y-%m-%d %H:%M")
