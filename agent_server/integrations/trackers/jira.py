"""Jira: https://developer.atlassian.com/cloud/jira/platform/rest/v2/ (Cloud) and
https://docs.atlassian.com/software/jira/docs/api/REST/9.12.0/ (Data Center). Version 2 of both, since its text is wiki
markup.

What Jira finds comes from an index that is seconds to minutes behind
(https://developer.atlassian.com/cloud/jira/platform/search-and-reconcile/), and there is no other listing. An issue
whose creation nobody answered is therefore looked for twice, `Tracker.settle` apart, before it is made again; that it
appears later still cannot be ruled out, and would leave two.
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
    Page,
    Phase,
    Said,
    Seen,
    entries,
    malformed,
    rows,
    string,
    table,
)
from whystall.agent_server.integrations.trackers.text import Wiki
from whystall.agent_server.outbound.request import Method, Request, Response, as_json
from whystall.agent_server.settings.sections.trackers import JiraSink
from whystall.knowledge_base.tickets.models import ClosedAs
from whystall.knowledge_base.times import moment

_PER_PAGE = 50
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


class Jira:
    """The project of `settings`, called `name`."""

    title_limit = 255
    comment_limit = 32_767
    index_lags = True

    def __init__(self, name: str, settings: JiraSink, token: str) -> None:
        self.name = name
        self.settings = settings
        self.format = Wiki(32_767)
        self._base = f"{settings.url}/rest/api/2"
        basic = base64.b64encode(f"{settings.email}:{token}".encode()).decode() if settings.email else ""
        self._authorization = f"Basic {basic}" if basic else f"Bearer {token}"
        self._secrets = (token, *([basic] if basic else []))

    def create(self, issue: Issue, text: str, left_out: set[str]) -> Request:
        """Make the issue."""
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

    def made(self, response: Response) -> Seen:
        """The issue that was made: Jira tells its key alone."""
        key = string(table(response.json()).get("key"), 100)
        if not _KEY.fullmatch(key):
            raise malformed("an issue of Jira", response)
        return Seen(ref=key, url=f"{self.settings.url}/browse/{key}", title="", text="", phase="open")

    def read(self, ref: str) -> Request:
        """Read an issue."""
        return self._request("GET", f"/issue/{ref}?fields={_FIELDS}")

    def edit(self, ref: str, edit: Edit, seen: Seen, left_out: set[str]) -> list[Request]:
        """Change an issue but for its state, which takes two steps; labels of others are kept."""
        fields: dict[str, Any] = {}
        if edit.title is not None:
            fields["summary"] = edit.title
        if edit.text is not None:
            fields["description"] = edit.text
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

    def transitions(self, ref: str) -> Request:
        """Ask which steps the workflow has for an issue now."""
        return self._request("GET", f"/issue/{ref}/transitions?expand=transitions.fields")

    def step(self, ref: str, phase: Phase, response: Response) -> Request | None:
        """The step to `phase` among what `transitions` brought; None: there is none."""
        wanted = {"over": self.settings.done, "open": self.settings.reopened, "acknowledged": self.settings.started}[
            phase
        ]
        steps = rows(table(response.json()).get("transitions"))
        named = [s for s in steps if wanted is not None and string(s.get("name")).casefold() == wanted.casefold()]
        fitting = [s for s in steps if _category(table(s.get("to"))) == _CATEGORIES[phase]]
        # What was over and is not any more has often no step back to "new", but one to "in progress".
        back = [s for s in steps if phase == "open" and _category(table(s.get("to"))) == "indeterminate"]
        step = next(iter(named if wanted is not None else [*fitting, *back]), None)
        if step is None:
            return None
        body: dict[str, Any] = {"transition": {"id": string(step.get("id"), 50)}}
        if phase == "over" and self.settings.resolution and "resolution" in table(step.get("fields")):
            body["fields"] = {"resolution": {"name": self.settings.resolution}}
        return self._request("POST", f"/issue/{ref}/transitions", body)

    def say(self, ref: str, text: str) -> Request:
        """Comment on an issue."""
        return self._request("POST", f"/issue/{ref}/comment", {"body": text})

    def comments(self, ref: str, since: str, page: str) -> Request:
        """Comments on an issue, the newest first; Jira takes no `since` here."""
        query = {"orderBy": "-created", "startAt": page or "0", "maxResults": str(_PER_PAGE)}
        return self._request("GET", f"/issue/{ref}/comment?{urlencode(query)}")

    def said(self, response: Response, page: str) -> Page:
        """What `comments` brought."""
        found = rows(table(response.json()).get("comments"))
        comments = [
            Said(
                string(c.get("id")),
                person(c.get("author")),
                string(c.get("body"), 100_000),
                string(c.get("created"), 40),
            )
            for c in found
        ]
        return Page(comments=comments, more=_next(page, len(found)))

    def newest(self, page: str) -> Request:
        """Issues, the newest first."""
        return self._search("ORDER BY created DESC", page)

    def changed(self, since: str, page: str) -> Request:
        """Issues changed since the time `since`. JQL reads times to the minute in the zone of our account, which we do
        not know: a day more is asked for.
        """
        then = moment(since) if since else None
        when = f'AND updated >= "{_jql_day(then)}" ' if then is not None else ""
        return self._search(f"{when}ORDER BY updated ASC", page)

    def listed(self, response: Response, page: str) -> Page:
        """What `newest` and `changed` brought."""
        answer = table(response.json())
        found = rows(answer.get("issues"))
        issues = [seen(row, self.settings) for row in found]
        if self.settings.email is None:
            return Page(issues=issues, more=_next(page, len(found)))
        token = string(answer.get("nextPageToken"), 5000)
        return Page(issues=issues, more=token if token and answer.get("isLast") is not True else None)

    def parsed(self, response: Response) -> Seen:
        """What `read` brought."""
        issue = table(response.json())
        if not _KEY.fullmatch(string(issue.get("key"), 100)) or not table(issue.get("fields")):
            raise malformed("an issue of Jira", response)
        return seen(issue, self.settings)

    def stamp(self, response: Response) -> str:
        """When a change was made, as the tracker says; Jira does not."""
        return ""

    def refused(self, response: Response) -> str | None:
        """Which optional field an answer 400 does not take; None: something else is wrong."""
        errors = table(table(response.json()).get("errors"))
        return next((name for name in ("priority", "assignee", "labels") if name in errors), None)

    def check(self) -> Request:
        """Whether we are let in."""
        return self._request("GET", f"/project/{self.settings.project}")

    def _search(self, rest: str, page: str) -> Request:
        query = {"jql": f'project = "{self.settings.project}" {rest}', "fields": _FIELDS, "maxResults": str(_PER_PAGE)}
        if self.settings.email is None:
            return self._request("GET", f"/search?{urlencode({**query, 'startAt': page or '0'})}")
        return self._request("GET", f"/search/jql?{urlencode({**query, **({'nextPageToken': page} if page else {})})}")

    def _priority(self, severity: str) -> dict[str, str] | None:
        name = next((name for level, name in self.settings.priorities.items() if level == severity), None)
        return {"name": name} if name else None

    def _person(self, assignees: tuple[str, ...]) -> dict[str, str]:
        return {"accountId" if self.settings.email is not None else "name": assignees[0]}

    def _request(self, method: Method, path: str, body: dict[str, Any] | None = None) -> Request:
        headers = {
            "Authorization": self._authorization,
            **({"Content-Type": "application/json"} if body is not None else {}),
        }
        content = as_json(body) if body is not None else b""
        return Request(method, f"{self._base}{path}", headers, content, self._secrets, repeatable=method != "POST")


def seen(issue: dict[str, Any], settings: JiraSink) -> Seen:
    """An issue of the API or of a webhook."""
    key, fields = string(issue.get("key"), 100), table(issue.get("fields"))
    phase = _PHASES.get(_category(table(fields.get("status"))), "open")
    resolution = string(table(fields.get("resolution")).get("name")).casefold().replace("\u2019", "'")
    return Seen(
        ref=key,
        url=f"{settings.url}/browse/{key}",
        title=string(fields.get("summary")),
        text=string(fields.get("description"), 200_000),
        phase=phase,
        labels=tuple(label for label in entries(fields.get("labels")) if isinstance(label, str)),
        assignees=tuple(p for p in [person(fields.get("assignee"))] if p),
        created=string(fields.get("created"), 40),
        changed=string(fields.get("updated"), 40),
        closed_as=next((as_ for word, as_ in _RESOLUTIONS if word in resolution), None) if phase == "over" else None,
    )


def person(user: Any) -> str:
    """What the API calls a user: the account id in Cloud, the name in Data Center."""
    return string(table(user).get("accountId"), 200) or string(table(user).get("name"), 200)


def _category(status: dict[str, Any]) -> str:
    return string(table(status.get("statusCategory")).get("key"), 50)


def _labels(labels: tuple[str, ...]) -> list[str]:
    """Jira's labels have no blanks."""
    return ["_".join(label.split()) for label in labels]


def _next(page: str, found: int) -> str | None:
    return str(int(page or "0") + found) if found >= _PER_PAGE else None


def _jql_day(then: datetime) -> str:
    return (then.astimezone(timezone.utc) - timedelta(days=1)).strftime("%Y-%m-%d %H:%M")
