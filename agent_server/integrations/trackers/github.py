"""GitHub's issues: https://docs.github.com/en/rest/issues/issues, https://docs.github.com/en/rest/issues/comments.

Listings of a repository are read from its database, not from the search index. What stays uncertain: whether a creation
that nobody answered is still under way when we look for it, which `Tracker.settle` waits for; and an edit by people
between our reading of an issue and our writing, since the API has no conditional writes.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from whystall.agent_server.integrations.trackers.issue import (
    Edit,
    Issue,
    Page,
    Said,
    Seen,
    entries,
    malformed,
    next_page,
    rows,
    string,
    table,
)
from whystall.agent_server.integrations.trackers.text import Markdown
from whystall.agent_server.outbound.request import Method, Request, Response, as_json
from whystall.agent_server.settings.sections.trackers import GitHubSink
from whystall.knowledge_base.tickets.models import ClosedAs

_PER_PAGE = 50
_REASONS: dict[str, ClosedAs | None] = {"not_planned": "wont_fix", "duplicate": "duplicate"}


class GitHub:
    """The repository of `settings`, called `name`."""

    title_limit = 256
    comment_limit = 65_536
    acknowledges = "label"
    index_lags = False

    def __init__(self, name: str, settings: GitHubSink, token: str) -> None:
        self.name = name
        self.settings = settings
        self.format = Markdown(65_536, actions=False)
        self._base = f"{settings.url}/repos/{settings.repository}"
        self._token = token

    def create(self, issue: Issue, text: str, left_out: set[str]) -> Request:
        """Make the issue."""
        body: dict[str, Any] = {"title": issue.title, "body": text, "labels": list(issue.labels)}
        if issue.assignees and "assignees" not in left_out:
            body["assignees"] = list(issue.assignees)
        return self._request("POST", "/issues", body)

    def made(self, response: Response) -> Seen:
        """The issue that was made."""
        return self.parsed(response)

    def parsed(self, response: Response) -> Seen:
        """What `read` brought."""
        return self._seen(table(response.json()), response)

    def stamp(self, response: Response) -> str:
        """When a change was made, as the tracker says."""
        return string(table(response.json()).get("updated_at"), 40)

    def read(self, ref: str) -> Request:
        """Read an issue."""
        return self._request("GET", f"/issues/{ref}")

    def edit(self, ref: str, edit: Edit, seen: Seen, left_out: set[str]) -> list[Request]:
        """Change an issue; labels of others are kept."""
        body: dict[str, Any] = {}
        if edit.title is not None:
            body["title"] = edit.title
        if edit.text is not None:
            body["body"] = edit.text
        if edit.add_labels or edit.remove_labels:
            kept = [label for label in seen.labels if label not in edit.remove_labels]
            body["labels"] = list(dict.fromkeys([*kept, *edit.add_labels]))
        if edit.assignees is not None and "assignees" not in left_out:
            body["assignees"] = list(edit.assignees)
        if edit.phase == "over":
            body |= {"state": "closed", "state_reason": _state_reason(edit.closed_as)}
        elif edit.phase is not None and seen.phase == "over":
            body |= {"state": "open", "state_reason": "reopened"}
        return [self._request("PATCH", f"/issues/{ref}", body)] if body else []

    def say(self, ref: str, text: str) -> Request:
        """Comment on an issue."""
        return self._request("POST", f"/issues/{ref}/comments", {"body": text})

    def comments(self, ref: str, since: str, page: str) -> Request:
        """Comments on an issue, changed since the time `since` (empty: all)."""
        query = {"per_page": str(_PER_PAGE), "page": page or "1", **({"since": since} if since else {})}
        return self._request("GET", f"/issues/{ref}/comments?{urlencode(query)}")

    def said(self, response: Response, page: str) -> Page:
        """What `comments` brought."""
        found = rows(response.json())
        comments = [
            Said(
                string(c.get("id")),
                string(table(c.get("user")).get("login"), 200),
                string(c.get("body"), 100_000),
                string(c.get("created_at"), 40),
            )
            for c in found
        ]
        return Page(comments=comments, more=next_page(page, len(found), _PER_PAGE))

    def newest(self, page: str) -> Request:
        """Issues, the newest first."""
        return self._list({"sort": "created", "direction": "desc"}, page)

    def changed(self, since: str, page: str) -> Request:
        """Issues changed since the time `since`."""
        return self._list({"sort": "updated", "direction": "asc", **({"since": since} if since else {})}, page)

    def listed(self, response: Response, page: str) -> Page:
        """What `newest` and `changed` brought; pull requests, which GitHub lists too, left out."""
        found = rows(response.json())
        issues = [self._seen(row, response) for row in found if "pull_request" not in row]
        return Page(issues=issues, more=next_page(page, len(found), _PER_PAGE))

    def refused(self, response: Response) -> str | None:
        """Which optional field an answer 422 does not take; None: something else is wrong."""
        fields = {string(error.get("field")) for error in rows(table(response.json()).get("errors"))}
        return "assignees" if "assignees" in fields else None

    def check(self) -> Request:
        """Whether we are let in."""
        return self._request("GET", "")

    def _list(self, query: dict[str, str], page: str) -> Request:
        query |= {"state": "all", "per_page": str(_PER_PAGE), "page": page or "1"}
        return self._request("GET", f"/issues?{urlencode(query)}")

    def _request(self, method: Method, path: str, body: dict[str, Any] | None = None) -> Request:
        headers = {
            "Authorization": f"Bearer {self._token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
            **({"Content-Type": "application/json"} if body is not None else {}),
        }
        content = as_json(body) if body is not None else b""
        return Request(method, f"{self._base}{path}", headers, content, (self._token,), repeatable=method != "POST")

    def _seen(self, issue: dict[str, Any], response: Response) -> Seen:
        number, state = issue.get("number"), issue.get("state")
        if not isinstance(number, int) or state not in ("open", "closed"):
            raise malformed("an issue of GitHub", response)
        return seen(issue, self.settings)


def seen(issue: dict[str, Any], settings: GitHubSink) -> Seen:
    """An issue of the API or of a webhook."""
    labels = tuple(
        string(label.get("name"), 200) if isinstance(label, dict) else string(label, 200)
        for label in entries(issue.get("labels"))
    )
    over = issue.get("state") == "closed"
    return Seen(
        ref=string(issue.get("number")),
        url=string(issue.get("html_url")),
        title=string(issue.get("title")),
        text=string(issue.get("body"), 200_000),
        phase="over" if over else "acknowledged" if settings.acknowledged_label in labels else "open",
        labels=labels,
        assignees=tuple(string(user.get("login"), 200) for user in rows(issue.get("assignees"))),
        created=string(issue.get("created_at"), 40),
        changed=string(issue.get("updated_at"), 40),
        closed_as=_REASONS.get(string(issue.get("state_reason"))) if over else None,
        by=string(table(issue.get("closed_by")).get("login"), 200),
    )


def _state_reason(closed_as: ClosedAs | None) -> str:
    if closed_as in (None, "fixed"):
        return "completed"
    return "duplicate" if closed_as == "duplicate" else "not_planned"
