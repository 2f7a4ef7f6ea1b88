"""GitLab's issues: https://docs.gitlab.com/api/issues/, https://docs.gitlab.com/api/notes/.

Listings come from its database (a replica may be a moment behind; `Tracker.settle` waits for that). What stays
uncertain: as for GitHub, a creation that is still under way when we look for it, and an edit by people between our
reading of an issue and our writing.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

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
from whystall.agent_server.settings.sections.trackers import GitLabSink

_PER_PAGE = 50


class GitLab:
    """The project of `settings`, called `name`."""

    title_limit = 255
    comment_limit = 1_000_000
    index_lags = False

    def __init__(self, name: str, settings: GitLabSink, token: str) -> None:
        self.name = name
        self.settings = settings
        self.format = Markdown(1_000_000, actions=True)  # 1,048,576 characters
        self._root = f"{settings.url}/api/v4"
        self._base = f"{self._root}/projects/{quote(settings.project, safe='')}"
        self._token = token

    def create(self, issue: Issue, text: str, left_out: set[str]) -> Request:
        """Make the issue."""
        body: dict[str, Any] = {
            "title": issue.title,
            "description": text,
            "labels": ",".join(issue.labels),
            "issue_type": self.settings.issue_type,
        }
        if self.settings.confidential:
            body["confidential"] = True
        ids = _ids(issue.assignees)
        if ids and "assignees" not in left_out:
            body["assignee_ids"] = ids
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
            body["description"] = edit.text
        if edit.add_labels:
            body["add_labels"] = ",".join(edit.add_labels)
        if edit.remove_labels:
            body["remove_labels"] = ",".join(edit.remove_labels)
        if edit.assignees is not None and "assignees" not in left_out:
            body["assignee_ids"] = _ids(edit.assignees) or [0]  # 0: nobody
        if edit.phase == "over":
            body["state_event"] = "close"
        elif edit.phase is not None and seen.phase == "over":
            body["state_event"] = "reopen"
        return [self._request("PUT", f"/issues/{ref}", body)] if body else []

    def say(self, ref: str, text: str) -> Request:
        """Comment on an issue."""
        return self._request("POST", f"/issues/{ref}/notes", {"body": text})

    def comments(self, ref: str, since: str, page: str) -> Request:
        """Comments on an issue, the newest first; GitLab takes no `since` here."""
        query = {"sort": "desc", "order_by": "created_at", "per_page": str(_PER_PAGE), "page": page or "1"}
        return self._request("GET", f"/issues/{ref}/notes?{urlencode(query)}")

    def said(self, response: Response, page: str) -> Page:
        """What `comments` brought, without what GitLab itself notes."""
        found = rows(response.json())
        comments = [
            Said(
                string(note.get("id")),
                string(table(note.get("author")).get("username"), 200),
                string(note.get("body"), 100_000),
                string(note.get("created_at"), 40),
            )
            for note in found
            if note.get("system") is not True
        ]
        return Page(comments=comments, more=next_page(page, len(found), _PER_PAGE))

    def newest(self, page: str) -> Request:
        """Issues, the newest first."""
        return self._list({"order_by": "created_at", "sort": "desc"}, page)

    def changed(self, since: str, page: str) -> Request:
        """Issues changed since the time `since`."""
        return self._list(
            {"order_by": "updated_at", "sort": "asc", **({"updated_after": since} if since else {})}, page
        )

    def listed(self, response: Response, page: str) -> Page:
        """What `newest` and `changed` brought."""
        found = rows(response.json())
        issues = [self._seen(row, response) for row in found]
        return Page(issues=issues, more=next_page(page, len(found), _PER_PAGE))

    def user(self, name: str) -> Request:
        """Look for the number of a user."""
        return self._request("GET", f"/users?{urlencode({'username': name})}", base=self._root)

    def user_id(self, response: Response) -> str:
        """What `user` brought; empty where there is none."""
        return next((string(user.get("id")) for user in rows(response.json())), "")

    def refused(self, response: Response) -> str | None:
        """Which optional field an answer 400 does not take; None: something else is wrong."""
        message = table(response.json()).get("message")
        said = (
            " ".join(message)
            if isinstance(message, dict)
            else string(message) or string(table(response.json()).get("error"))
        )
        return "assignees" if "assignee" in said.lower() else None

    def check(self) -> Request:
        """Whether we are let in."""
        return self._request("GET", "")

    def _list(self, query: dict[str, str], page: str) -> Request:
        query |= {"scope": "all", "state": "all", "per_page": str(_PER_PAGE), "page": page or "1"}
        return self._request("GET", f"/issues?{urlencode(query)}")

    def _request(self, method: Method, path: str, body: dict[str, Any] | None = None, base: str = "") -> Request:
        headers = {"PRIVATE-TOKEN": self._token, **({"Content-Type": "application/json"} if body is not None else {})}
        content = as_json(body) if body is not None else b""
        return Request(
            method, (base or self._base) + path, headers, content, (self._token,), repeatable=method != "POST"
        )

    def _seen(self, issue: dict[str, Any], response: Response) -> Seen:
        if not isinstance(issue.get("iid"), int) or issue.get("state") not in ("opened", "closed"):
            raise malformed("an issue of GitLab", response)
        return seen(issue, self.settings)


def seen(issue: dict[str, Any], settings: GitLabSink) -> Seen:
    """An issue of the API or of a webhook, which differ in a few names."""
    labels = tuple(
        string(label.get("title"), 300) if isinstance(label, dict) else string(label, 300)
        for label in entries(issue.get("labels"))
    )
    over = issue.get("state") == "closed"
    people = issue.get("assignees")
    return Seen(
        ref=string(issue.get("iid")),
        url=string(issue.get("web_url")) or string(issue.get("url")),
        title=string(issue.get("title")),
        text=string(issue.get("description"), 1_100_000),
        phase="over" if over else "acknowledged" if settings.acknowledged_label in labels else "open",
        labels=labels,
        assignees=tuple(string(user.get("id")) for user in rows(people)),
        created=string(issue.get("created_at"), 40),
        changed=string(issue.get("updated_at"), 40),
        by=string(table(issue.get("closed_by")).get("username"), 200),
    )


def _ids(assignees: tuple[str, ...]) -> list[int]:
    return [int(id) for id in assignees if id.isascii() and id.isdigit()]
