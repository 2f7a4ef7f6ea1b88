"""What the REST clients of trackers share."""

from __future__ import annotations

from functools import cached_property
from typing import Any, ClassVar, Generic, TypeVar

from whystall.agent_server.integrations.trackers.issue import IssueComment, IssueState, Page, Phase
from whystall.agent_server.integrations.trackers.json_values import json_list, json_object, json_objects, json_text
from whystall.agent_server.integrations.trackers.text import TextFormat
from whystall.agent_server.outbound.client import Undelivered
from whystall.agent_server.outbound.request import Method, Request, Response, as_json
from whystall.agent_server.settings.secret import Secret
from whystall.agent_server.settings.sections.trackers import TrackerSettings

PER_PAGE = 50
S = TypeVar("S", bound=TrackerSettings)


class RestTracker(Generic[S]):
    """The tracker `name` with `settings`, whose paths begin with `base`. See `Tracker` for the methods."""

    vendor: ClassVar[str]
    index_lags = False

    def __init__(self, name: str, settings: S, format: TextFormat, base: str) -> None:
        self.name = name
        self.settings = settings
        self.format = format
        self._base = base

    @property
    def acknowledged_label(self) -> str | None:
        return getattr(self.settings, "acknowledged_label", None)

    def created(self, response: Response) -> IssueState:
        return self.parse_issue(response)

    def read(self, ref: str) -> Request:
        return self._request("GET", f"/issues/{ref}")

    def parse_issue(self, response: Response) -> IssueState:
        return self._checked(json_object(response.json()), response)

    def change_time(self, response: Response) -> str:
        return json_text(json_object(response.json()).get("updated_at"), 40)

    def parse_comments(self, response: Response, page: str) -> Page:
        found = json_objects(response.json())
        return Page(comments=[c for row in found if (c := self._comment(row))], more=self._next_page(page, len(found)))

    def parse_issues(self, response: Response, page: str) -> Page:
        found = json_objects(response.json())
        issues = [self._checked(row, response) for row in found if self._is_issue(row)]
        return Page(issues=issues, more=self._next_page(page, len(found)))

    def user_lookup(self, name: str) -> Request | None:
        return None

    def parse_user_id(self, response: Response) -> str:
        return ""

    def list_transitions(self, ref: str) -> Request | None:
        return None

    def transition(self, ref: str, phase: Phase, response: Response) -> Request | None:
        return None

    def check(self) -> Request:
        return self._request("GET", "")

    def _state(self, issue: dict[str, Any]) -> IssueState:
        """Parse an issue of the API or of a webhook."""
        raise NotImplementedError

    def _comment(self, row: dict[str, Any]) -> IssueComment | None:
        """Parse a comment; None if no person wrote it."""
        raise NotImplementedError

    def _new_comment(self, row: dict[str, Any], by: str, text: str, at: str) -> IssueComment:
        """Return a comment by `by`; `text` and `at` name the fields of its text and time."""
        return IssueComment(json_text(row.get("id")), by, json_text(row.get(text), 100_000), json_text(row.get(at), 40))

    def _headers(self) -> dict[str, str]:
        raise NotImplementedError

    def _secrets(self) -> tuple[str, ...]:
        return (self._token,)

    def _label_names(self, issue: dict[str, Any], field: str) -> tuple[str, ...]:
        """Return the labels of an issue, which are strings, or objects with their name in `field`."""
        labels = json_list(issue.get("labels"))
        return tuple(json_text(label.get(field) if isinstance(label, dict) else label, 300) for label in labels)

    def _phase(self, issue: dict[str, Any], labels: tuple[str, ...]) -> Phase:
        if issue.get("state") == "closed":
            return "over"
        return "acknowledged" if self.acknowledged_label in labels else "open"

    def _is_issue(self, row: dict[str, Any]) -> bool:
        return True

    def _is_complete(self, issue: dict[str, Any]) -> bool:
        return True

    def _checked(self, issue: dict[str, Any], response: Response) -> IssueState:
        if not self._is_complete(issue):
            raise self._malformed(response)
        return self._state(issue)

    def _malformed(self, response: Response) -> Undelivered:
        """Return the error of a 2xx response that is not what the vendor documents: the request may have succeeded."""
        message = f"an issue of {self.vendor}: the answer is not what the API documents"
        return Undelivered("bad_answer", message, unknown=True, status=response.status)

    def _next_page(self, page: str, found: int) -> str | None:
        """Return the number of the page after `page`. Counted here: addresses in a response could lead anywhere."""
        return str(int(page or "1") + 1) if found >= PER_PAGE else None

    @cached_property
    def _token(self) -> str:
        return self.settings.token.read(f"sinks.{self.name}.token")

    def _secret(self, secret: Secret, field: str) -> str:
        return secret.read(f"sinks.{self.name}.{field}")

    def _request(self, method: Method, path: str, body: dict[str, Any] | None = None, base: str = "") -> Request:
        headers = {**self._headers(), **({"Content-Type": "application/json"} if body is not None else {})}
        content = as_json(body) if body is not None else b""
        url = (base or self._base) + path
        return Request(method, url, headers, content, self._secrets(), repeatable=method != "POST")
