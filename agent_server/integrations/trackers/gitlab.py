"""GitLab's issues: https://docs.gitlab.com/api/issues/, https://docs.gitlab.com/api/notes/.
Webhooks: https://docs.gitlab.com/user/project/integrations/webhooks/. Signing tokens are Standard Webhooks: it always
sends ``webhook-id``, and ``webhook-signature`` only if a signing token is set.

Listings come from its database; a replica may lag by a moment (`TrackerSettings.settle` waits for that). The same two
races remain as for GitHub.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import quote, urlencode

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
from whystall.agent_server.integrations.trackers.verification import check_standard_webhook, check_token, unverifiable
from whystall.agent_server.outbound.request import Request, Response
from whystall.agent_server.settings.sections.trackers import GitLabSink


class GitLab(RestTracker[GitLabSink]):
    """The project of `settings`."""

    vendor = "GitLab"
    title_limit = 255
    comment_limit = 1_000_000

    def __init__(self, name: str, settings: GitLabSink) -> None:
        base = f"{settings.url}/api/v4/projects/{quote(settings.project, safe='')}"
        super().__init__(name, settings, Markdown(1_000_000, actions=True), base)  # the limit is 1,048,576 characters

    def create(self, issue: Issue, text: str, left_out: set[str]) -> Request:
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

    def edit(self, ref: str, edit: Edit, state: IssueState, left_out: set[str]) -> list[Request]:
        fields = {"title": edit.title, "description": edit.text}
        body: dict[str, Any] = {name: value for name, value in fields.items() if value is not None}
        if edit.add_labels:
            body["add_labels"] = ",".join(edit.add_labels)
        if edit.remove_labels:
            body["remove_labels"] = ",".join(edit.remove_labels)
        if edit.assignees is not None and "assignees" not in left_out:
            body["assignee_ids"] = _ids(edit.assignees) or [0]  # [0]: unassign all
        if edit.phase == "over":
            body["state_event"] = "close"
        elif edit.phase is not None and state.phase == "over":
            body["state_event"] = "reopen"
        return [self._request("PUT", f"/issues/{ref}", body)] if body else []

    def comment(self, ref: str, text: str) -> Request:
        return self._request("POST", f"/issues/{ref}/notes", {"body": text})

    def list_comments(self, ref: str, page: str) -> Request:
        query = {"sort": "desc", "order_by": "created_at", "per_page": str(PER_PAGE), "page": page or "1"}
        return self._request("GET", f"/issues/{ref}/notes?{urlencode(query)}")

    def list_newest(self, page: str) -> Request:
        return self._list({"order_by": "created_at", "sort": "desc"}, page)

    def list_changed(self, since: str, page: str) -> Request:
        query = {"order_by": "updated_at", "sort": "asc"} | ({"updated_after": since} if since else {})
        return self._list(query, page)

    def user_lookup(self, name: str) -> Request | None:
        """Look up the number by which issues name the user `name`."""
        if name.isascii() and name.isdigit():
            return None
        return self._request("GET", f"/users?{urlencode({'username': name})}", base=f"{self.settings.url}/api/v4")

    def parse_user_id(self, response: Response) -> str:
        """Parse the response to `user_lookup`: ``[{"id": 12, "username": "ann"}]``."""
        return next((json_text(user.get("id")) for user in json_objects(response.json())), "")

    def rejected_field(self, response: Response) -> str | None:
        body = json_object(response.json())
        message = body.get("message")
        text = " ".join(message) if isinstance(message, dict) else json_text(message) or json_text(body.get("error"))
        return "assignees" if "assignee" in text.lower() else None

    def verify(self, webhook: WebhookRequest) -> None:
        """Verify the signature if a signing token is configured, else the webhook token."""
        if self.settings.signing_token:
            check_standard_webhook(self._secret(self.settings.signing_token, "signing_token"), webhook)
        elif self.settings.webhook_token:
            token = self._secret(self.settings.webhook_token, "webhook_token")
            check_token(token, webhook.headers.get("x-gitlab-token", ""))
        else:
            raise unverifiable()

    def parse(self, webhook: WebhookRequest, body: dict[str, Any]) -> TrackerEvent | None:
        """Return a change of state or a comment: ``{"object_kind": "issue", "object_attributes": {"iid": 7}, ...}``."""
        ids = [webhook.headers.get(name) for name in ("webhook-id", "idempotency-key", "x-gitlab-event-uuid")]
        key = next((id for id in ids if id), webhook.digest)
        project = json_object(body.get("project"))
        names = json_text(project.get("id")), json_text(project.get("path_with_namespace"), 1000)
        if self.settings.project not in names:
            return None
        by = json_text(json_object(body.get("user")).get("username"), 200)
        kind, what = body.get("object_kind"), json_object(body.get("object_attributes"))
        if kind in ("issue", "work_item"):
            # Older versions put the labels beside the attributes.
            state = self._state({"labels": body.get("labels"), **what})
            return state_event(key, state, by) if what.get("action") in ("close", "reopen", "update") else None
        if kind == "note" and what.get("noteable_type") == "Issue" and what.get("system") is not True:
            if json_text(what.get("action")) not in ("", "create"):
                return None
            state = self._state(json_object(body.get("issue")))
            return comment_event(key, state, by, json_text(what.get("id")), json_text(what.get("note"), 100_000))
        return None

    def _list(self, query: dict[str, str], page: str) -> Request:
        query |= {"scope": "all", "state": "all", "per_page": str(PER_PAGE), "page": page or "1"}
        return self._request("GET", f"/issues?{urlencode(query)}")

    def _headers(self) -> dict[str, str]:
        return {"PRIVATE-TOKEN": self._token}

    def _is_complete(self, issue: dict[str, Any]) -> bool:
        return isinstance(issue.get("iid"), int) and issue.get("state") in ("opened", "closed")

    def _comment(self, row: dict[str, Any]) -> IssueComment | None:
        if row.get("system") is True:  # written by GitLab itself
            return None
        by = json_text(json_object(row.get("author")).get("username"), 200)
        return self._new_comment(row, by, "body", "created_at")

    def _state(self, issue: dict[str, Any]) -> IssueState:
        """Parse an issue of the API or of a webhook, which differ in a few names."""
        labels = self._label_names(issue, "title")
        return IssueState(
            ref=json_text(issue.get("iid")),
            url=json_text(issue.get("web_url")) or json_text(issue.get("url")),
            title=json_text(issue.get("title")),
            text=json_text(issue.get("description"), 1_100_000),
            phase=self._phase(issue, labels),
            labels=labels,
            assignees=tuple(json_text(user.get("id")) for user in json_objects(issue.get("assignees"))),
            created=json_text(issue.get("created_at"), 40),
            changed=json_text(issue.get("updated_at"), 40),
            by=json_text(json_object(issue.get("closed_by")).get("username"), 200),
        )


def _ids(assignees: tuple[str, ...]) -> list[int]:
    return [int(id) for id in assignees if id.isascii() and id.isdigit()]
