"""GitHub's issues: https://docs.github.com/en/rest/issues/issues, https://docs.github.com/en/rest/issues/comments.
Webhooks: https://docs.github.com/en/webhooks/using-webhooks/validating-webhook-deliveries.

Listings come from the repository's database, not from the search index. Two races remain: a creation without a
response may still be in progress when we search for it (`TrackerSettings.settle` waits for that), and people may edit
an issue between our reading and our writing, since the API has no conditional writes.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from whystall.agent_server.integrations.trackers.issue import (
    Edit,
    Issue,
    IssueComment,
    IssueState,
    TrackerEvent,
    comment_event,
    state_event,
)
from whystall.agent_server.integrations.trackers.json_values import json_object, json_objects, json_text
from whystall.agent_server.integrations.trackers.rest import PER_PAGE, RestTracker
from whystall.agent_server.integrations.trackers.text import Markdown
from whystall.agent_server.integrations.trackers.tracker import WebhookRequest
from whystall.agent_server.integrations.trackers.verification import check_hub_signature, unverifiable
from whystall.agent_server.outbound.request import Request, Response
from whystall.agent_server.settings.sections.trackers import GitHubSink
from whystall.knowledge_base.ticket_models import ClosedAs

_REASONS: dict[str, ClosedAs | None] = {"not_planned": "wont_fix", "duplicate": "duplicate"}


class GitHub(RestTracker[GitHubSink]):
    """The repository of `settings`."""

    vendor = "GitHub"
    title_limit = 256
    comment_limit = 65_536

    def __init__(self, name: str, settings: GitHubSink) -> None:
        base = f"{settings.url}/repos/{settings.repository}"
        super().__init__(name, settings, Markdown(65_536, actions=False), base)

    def create(self, issue: Issue, text: str, left_out: set[str]) -> Request:
        body: dict[str, Any] = {"title": issue.title, "body": text, "labels": list(issue.labels)}
        if issue.assignees and "assignees" not in left_out:
            body["assignees"] = list(issue.assignees)
        return self._request("POST", "/issues", body)

    def edit(self, ref: str, edit: Edit, state: IssueState, left_out: set[str]) -> list[Request]:
        fields = {"title": edit.title, "body": edit.text}
        body: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        if edit.add_labels or edit.remove_labels:
            kept = [label for label in state.labels if label not in edit.remove_labels]
            body["labels"] = list(dict.fromkeys([*kept, *edit.add_labels]))
        if edit.assignees is not None and "assignees" not in left_out:
            body["assignees"] = list(edit.assignees)
        if edit.phase == "over":
            body |= {"state": "closed", "state_reason": _state_reason(edit.closed_as)}
        elif edit.phase is not None and state.phase == "over":
            body |= {"state": "open", "state_reason": "reopened"}
        return [self._request("PATCH", f"/issues/{ref}", body)] if body else []

    def comment(self, ref: str, text: str) -> Request:
        return self._request("POST", f"/issues/{ref}/comments", {"body": text})

    def list_comments(self, ref: str, page: str) -> Request:
        return self._request("GET", f"/issues/{ref}/comments?{urlencode({'per_page': PER_PAGE, 'page': page or '1'})}")

    def list_newest(self, page: str) -> Request:
        return self._list({"sort": "created", "direction": "desc"}, page)

    def list_changed(self, since: str, page: str) -> Request:
        return self._list({"sort": "updated", "direction": "asc", **({"since": since} if since else {})}, page)

    def rejected_field(self, response: Response) -> str | None:
        errors = json_objects(json_object(response.json()).get("errors"))
        return "assignees" if "assignees" in {json_text(error.get("field")) for error in errors} else None

    def verify(self, webhook: WebhookRequest) -> None:
        if self.settings.webhook_secret is None:
            raise unverifiable()
        secret = self._secret(self.settings.webhook_secret, "webhook_secret")
        check_hub_signature(secret, webhook.headers.get("x-hub-signature-256", ""), webhook.body)

    def parse(self, webhook: WebhookRequest, body: dict[str, Any]) -> TrackerEvent | None:
        """Return a change of state or a comment: ``{"action": "closed", "issue": {"number": 7, ...}, ...}``."""
        event, action = webhook.headers.get("x-github-event", ""), json_text(body.get("action"))
        issue = json_object(body.get("issue"))
        repository = json_text(json_object(body.get("repository")).get("full_name"), 300)
        if "pull_request" in issue or repository.casefold() != self.settings.repository.casefold():
            return None
        key = webhook.headers.get("x-github-delivery", "")
        by = json_text(json_object(body.get("sender")).get("login"), 200)
        state = self._state(issue)
        if event == "issues" and action in ("closed", "reopened", "labeled", "unlabeled"):
            return state_event(key, state, by)
        if event == "issue_comment" and action == "created":
            comment = json_object(body.get("comment"))
            return comment_event(key, state, by, json_text(comment.get("id")), json_text(comment.get("body"), 100_000))
        return None

    def _list(self, query: dict[str, str], page: str) -> Request:
        query |= {"state": "all", "per_page": str(PER_PAGE), "page": page or "1"}
        return self._request("GET", f"/issues?{urlencode(query)}")

    def _headers(self) -> dict[str, str]:
        return {
            "Authorization": f"Bearer {self._token}",
            "Accept": "application/vnd.github+json",
            "X-GitHub-Api-Version": "2022-11-28",
        }

    def _is_issue(self, row: dict[str, Any]) -> bool:
        return "pull_request" not in row  # listed with the issues

    def _is_complete(self, issue: dict[str, Any]) -> bool:
        return isinstance(issue.get("number"), int) and issue.get("state") in ("open", "closed")

    def _comment(self, row: dict[str, Any]) -> IssueComment:
        by = json_text(json_object(row.get("user")).get("login"), 200)
        return self._new_comment(row, by, "body", "created_at")

    def _state(self, issue: dict[str, Any]) -> IssueState:
        labels = self._label_names(issue, "name")
        return IssueState(
            ref=json_text(issue.get("number")),
            url=json_text(issue.get("html_url")),
            title=json_text(issue.get("title")),
            text=json_text(issue.get("body"), 200_000),
            phase=self._phase(issue, labels),
            labels=labels,
            assignees=tuple(json_text(user.get("login"), 200) for user in json_objects(issue.get("assignees"))),
            created=json_text(issue.get("created_at"), 40),
            changed=json_text(issue.get("updated_at"), 40),
            closed_as=_REASONS.get(json_text(issue.get("state_reason"))) if issue.get("state") == "closed" else None,
            by=json_text(json_object(issue.get("closed_by")).get("login"), 200),
        )


def _state_reason(closed_as: ClosedAs | None) -> str:
    if closed_as in (None, "fixed"):
        return "completed"
    return "duplicate" if closed_as == "duplicate" else "not_planned"
