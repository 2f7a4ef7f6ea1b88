"""An issue tracker to try whystall with: it has GitLab's API, and shows its issues in a browser.

    python examples/tracker.py

It accepts what https://docs.gitlab.com/api/issues/ documents and refuses everything else with GitLab's errors. To show
when untrusted text controls a tracker, it interprets text as GitLab does: outside of code, a line like ``/close`` is
executed, and ``@name`` counts as a mention. Issues can be closed, reopened, labelled and commented on in the browser;
with --webhook whystall is notified at once.

In whystall's settings:

    [sinks.tracker]
    kind = "gitlab"
    url = "http://127.0.0.1:8929"
    project = "demo/training"
    token = { file = "token" }        # the token that is printed here, mode 0600

Issues are kept in memory. Only this machine can reach it.
"""

from __future__ import annotations

import argparse
import hmac
import json
import re
import secrets
import signal
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tracker_http import Hook, Server, handler_of
from tracker_page import detail, document, listing

PROJECT = "demo/training"
_TEXTS = ("title", "description")
_NEW = dict.fromkeys((*_TEXTS, "labels", "issue_type"), str) | {"assignee_ids": list, "confidential": bool}
_CHANGES = dict.fromkeys((*_TEXTS, "add_labels", "remove_labels", "state_event"), str) | {"assignee_ids": list}
_FILTERS = ("scope", "state", "updated_after", "created_after", "labels", "search")
_LIST_PARAMETERS = frozenset((*_FILTERS, "order_by", "sort", "per_page", "page"))
# As in GitLab's extractor of quick actions for a long time: a code block ends at any line of three backticks.
_BLOCK = re.compile(r"^```.+?\n```$", re.DOTALL | re.MULTILINE)
_ACTION = re.compile(r"^/(close|reopen|assign|label|confidential|title|duplicate|due)\b(.*)$", re.MULTILINE)
_MENTION = re.compile(r"(?<![\w`.])@([A-Za-z][\w.-]*)")

Answer = tuple[int, dict[str, str], bytes]


@dataclass
class Issue:
    """One issue, with the quick actions and mentions in its text."""

    iid: int
    title: str
    description: str = ""
    state: str = "opened"
    labels: list[str] = field(default_factory=list)
    assignees: list[int] = field(default_factory=list)
    issue_type: str = "issue"
    confidential: bool = False
    created_at: str = ""
    updated_at: str = ""
    author: str = "whystall-bot"
    closed_by: str = ""
    notes: list[dict[str, Any]] = field(default_factory=list)
    actions: list[str] = field(default_factory=list)
    mentions: list[str] = field(default_factory=list)


class Refused(Exception):
    """A request that GitLab would refuse, with its status and message."""

    def __init__(self, status: int, message: Any) -> None:
        super().__init__(str(message))
        self.status = status
        self.message = message


class Tracker:
    """The issues of one project, and GitLab's API to them. `users`: ids by name. `on_event`: called with each event
    that people cause, in the form of GitLab's webhooks.
    """

    def __init__(
        self, token: str, project: str = PROJECT, on_event: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        self.token = token
        self.project = project
        self.users = {"root": 1, "whystall-bot": 2, "alice": 3, "bob": 4}
        self.issues: list[Issue] = []
        self.url = ""
        self._on_event = on_event
        self._notes = 0
        self._last = 0.0
        self._lock = threading.RLock()

    # --- the API --------------------------------------------------------------------------------------------------

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Return GitLab's answer to a request; `headers` in lower case."""
        try:
            with self._lock:
                status, value, more = self._api(method, target, headers, body)
        except Refused as refused:
            error = {"message": refused.message if refused.status != 404 else f"404 {refused.message}"}
            return refused.status, {"Content-Type": "application/json"}, json.dumps(error).encode()
        return status, {"Content-Type": "application/json", **more}, json.dumps(value).encode()

    def _api(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        url = urlsplit(target)
        given = headers.get("private-token", "") or headers.get("authorization", "").removeprefix("Bearer ")
        if not hmac.compare_digest(given.encode(), self.token.encode()):
            raise Refused(401, "401 Unauthorized")
        query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        path = url.path.removeprefix("/api/v4")
        if method == "GET" and path == "/users":
            names = [name for name in self.users if name == query.get("username")]
            return 200, [{"id": self.users[n], "username": n, "name": n.title(), "state": "active"} for n in names], {}
        found = re.fullmatch(r"/projects/([^/]+)(?:/issues(?:/(\d+)(/notes)?)?)?", path)
        if found is None:
            raise Refused(404, "Not Found")
        if unquote(found[1]) not in (self.project, "1"):
            raise Refused(404, "Project Not Found")
        if not path.endswith(found[1]) and found[2] is None:
            return self._many(method, query, headers, body)
        if found[2] is None:
            if method != "GET":
                raise Refused(405, "405 Method Not Allowed")
            return 200, {"id": 1, "path_with_namespace": self.project, "web_url": f"{self.url}/{self.project}"}, {}
        issue = next((i for i in self.issues if i.iid == int(found[2])), None)
        if issue is None:
            raise Refused(404, "Not found")
        if found[3]:
            return self._notes_of(method, issue, query, headers, body)
        if method == "GET":
            return 200, self._json_of(issue), {}
        if method != "PUT":
            raise Refused(405, "405 Method Not Allowed")
        return 200, self._change(issue, _json(headers, body, _CHANGES)), {}

    def _many(
        self, method: str, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        if method == "POST":
            return 201, self._create(_json(headers, body, _NEW)), {}
        if method != "GET":
            raise Refused(405, "405 Method Not Allowed")
        unknown = [name for name in query if name not in _LIST_PARAMETERS]
        if unknown:
            raise Refused(400, f"{unknown[0]} is not a parameter of this list")
        listed = [i for i in self.issues if query.get("state", "all") in ("all", i.state)]
        after = _utc(query.get("updated_after", ""))
        listed = [i for i in listed if i.updated_at > after]
        by = query.get("order_by", "created_at")
        if by not in ("created_at", "updated_at"):
            raise Refused(400, "order_by does not have a valid value")
        listed.sort(key=lambda i: (getattr(i, by), i.iid), reverse=query.get("sort", "desc") == "desc")
        return _page([self._json_of(i) for i in listed], query)

    def _create(self, given: dict[str, Any]) -> dict[str, Any]:
        if not given.get("title", "").strip():
            raise Refused(400, {"title": ["can't be blank"]})
        self._check(given)
        now = self._now()
        issue = Issue(
            iid=len(self.issues) + 1,
            title=given["title"],
            description=given.get("description", ""),
            labels=_split(given.get("labels", "")),
            assignees=given.get("assignee_ids", []),
            issue_type=given.get("issue_type", "issue"),
            confidential=given.get("confidential", False),
            created_at=now,
            updated_at=now,
        )
        self.issues.append(issue)
        issue.mentions += _MENTION.findall(issue.title)
        self._run_quick_actions(issue, issue.description)
        return self._json_of(issue)

    def _change(self, issue: Issue, given: dict[str, Any]) -> dict[str, Any]:
        if not given:
            raise Refused(400, "at least one parameter must be provided")
        self._check(given)
        event = given.get("state_event")
        if event not in (None, "close", "reopen"):
            raise Refused(400, "state_event does not have a valid value")
        issue.title = given.get("title", issue.title)
        if "description" in given:
            issue.description = given["description"]
            self._run_quick_actions(issue, issue.description)
        removed = _split(given.get("remove_labels", ""))
        issue.labels = [label for label in issue.labels if label not in removed]
        issue.labels += [label for label in _split(given.get("add_labels", "")) if label not in issue.labels]
        if "assignee_ids" in given:
            issue.assignees = [id for id in given["assignee_ids"] if id != 0]
        if event is not None:
            issue.state = "closed" if event == "close" else "opened"
            issue.closed_by = issue.author if event == "close" else ""
        issue.updated_at = self._now()
        return self._json_of(issue)

    def _check(self, given: dict[str, Any]) -> None:
        if len(given.get("title", "")) > 255:
            raise Refused(400, {"title": ["is too long (maximum is 255 characters)"]})
        if len(given.get("description", "")) > 1_048_576:
            raise Refused(400, {"description": ["is too long (maximum is 1048576 characters)"]})
        if given.get("issue_type", "issue") not in ("issue", "incident", "test_case", "task"):
            raise Refused(400, "issue_type does not have a valid value")
        known = {0, *self.users.values()}
        if any(not isinstance(id, int) or id not in known for id in given.get("assignee_ids", [])):
            raise Refused(400, {"assignee": ["is not a member of the project"]})

    def _notes_of(
        self, method: str, issue: Issue, query: Mapping[str, str], headers: Mapping[str, str], body: bytes
    ) -> tuple[int, Any, dict[str, str]]:
        if method == "GET":
            return _page(sorted(issue.notes, key=lambda n: n["id"], reverse=query.get("sort", "desc") == "desc"), query)
        if method != "POST":
            raise Refused(405, "405 Method Not Allowed")
        given = _json(headers, body, {"body": str})
        if not given.get("body", "").strip():
            raise Refused(400, {"note": ["can't be blank"]})
        return 201, self._note(issue, issue.author, given["body"]), {}

    def _note(self, issue: Issue, by: str, text: str) -> dict[str, Any]:
        self._notes += 1
        now = self._now()
        note = {
            "id": 100 + self._notes,
            "body": text,
            "author": {"id": self.users.get(by, 9), "username": by},
            "created_at": now,
            "updated_at": now,
            "system": False,
            "noteable_type": "Issue",
            "noteable_iid": issue.iid,
        }
        issue.notes.append(note)
        issue.updated_at = now
        self._run_quick_actions(issue, text)
        return note

    def _run_quick_actions(self, issue: Issue, text: str) -> None:
        """Execute quick actions and count mentions outside of code, as GitLab does."""
        for found in _ACTION.finditer(_BLOCK.sub("", text)):
            issue.actions.append(found[0].strip())
            if found[1] in ("close", "duplicate"):
                issue.state, issue.closed_by = "closed", issue.author
        issue.mentions += _MENTION.findall(_outside_code(text))

    def _json_of(self, issue: Issue) -> dict[str, Any]:
        names = {id: name for name, id in self.users.items()}
        return {
            "id": 1000 + issue.iid,
            "iid": issue.iid,
            "project_id": 1,
            "title": issue.title,
            "description": issue.description,
            "state": issue.state,
            "labels": issue.labels,
            "assignees": [{"id": id, "username": names[id]} for id in issue.assignees],
            "author": {"id": self.users[issue.author], "username": issue.author},
            "closed_by": {"username": issue.closed_by} if issue.closed_by else None,
            "created_at": issue.created_at,
            "updated_at": issue.updated_at,
            "issue_type": issue.issue_type,
            "confidential": issue.confidential,
            "web_url": f"{self.url}/{self.project}/-/issues/{issue.iid}",
        }

    def _now(self) -> str:
        """Return a time later than the previous one, so that lists have an order."""
        self._last = max(time.time(), self._last + 0.001)
        moment = datetime.fromtimestamp(self._last, timezone.utc)
        return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")

    # --- people ---------------------------------------------------------------------------------------------------

    def act(self, iid: int, what: str, by: str, text: str = "") -> bool:
        """Do ``close``, ``reopen``, ``comment``, ``label`` or ``describe`` as user `by`; return whether it was done."""
        with self._lock:
            issue = next((i for i in self.issues if i.iid == iid), None)
            if issue is None:
                return False
            if what == "comment" and text.strip():
                note = self._note(issue, by, text)
                self._report(
                    issue, by, "note", {"id": note["id"], "note": text, "noteable_type": "Issue", "action": "create"}
                )
                return True
            if what == "close":
                issue.state, issue.closed_by = "closed", by
            elif what == "reopen":
                issue.state, issue.closed_by = "opened", ""
            elif what == "label" and text.strip():
                issue.labels = [label for label in issue.labels if label != text] + (
                    [] if text in issue.labels else [text]
                )
            elif what == "describe":
                issue.description = text
            else:
                return False
            issue.updated_at = self._now()
            self._report(issue, by, "issue", {"action": what if what in ("close", "reopen") else "update"})
        return True

    def _report(self, issue: Issue, by: str, kind: str, attributes: dict[str, Any]) -> None:
        if self._on_event is None:
            return
        shown = {**self._json_of(issue), "labels": [{"title": label} for label in issue.labels]}
        self._on_event(
            {
                "object_kind": kind,
                "event_type": kind,
                "user": {"username": by},
                "project": {"id": 1, "path_with_namespace": self.project},
                "object_attributes": {**(shown if kind == "issue" else {}), **attributes},
                **({"issue": shown} if kind == "note" else {"labels": shown["labels"]}),
            }
        )

    # --- the page -------------------------------------------------------------------------------------------------

    def page(self, iid: int | None = None) -> str | None:
        """Return the list of issues, or issue `iid`, as HTML; None if it does not exist."""
        with self._lock:
            if iid is None:
                return document(f"Issues of {self.project}", listing(self))
            issue = next((i for i in self.issues if i.iid == iid), None)
            return None if issue is None else document(f"#{issue.iid} {issue.title}", detail(self, issue))


def _json(headers: Mapping[str, str], body: bytes, allowed: Mapping[str, type]) -> dict[str, Any]:
    """Return the body of a request; refuse fields without the documented names and types."""
    if not headers.get("content-type", "").startswith("application/json"):
        raise Refused(415, "The provided content-type is not supported")
    try:
        given = json.loads(body)
    except ValueError:
        raise Refused(400, "invalid JSON") from None
    if not isinstance(given, dict):
        raise Refused(400, "invalid JSON")
    for name, value in given.items():
        if name not in allowed:
            raise Refused(400, f"{name} is not a parameter of this request")
        if type(value) is not allowed[name]:
            raise Refused(400, f"{name} is invalid")
    return given


def _page(found: list[Any], query: Mapping[str, str]) -> tuple[int, Any, dict[str, str]]:
    try:
        page, size = int(query.get("page", "1")), int(query.get("per_page", "20"))
    except ValueError:
        raise Refused(400, "page is invalid") from None
    if not 1 <= size <= 100 or page < 1:
        raise Refused(400, "per_page does not have a valid value")
    more = page * size < len(found)
    return 200, found[(page - 1) * size : page * size], {"X-Next-Page": str(page + 1) if more else ""}


def _outside_code(text: str) -> str:
    """What of Markdown is no code (https://spec.commonmark.org: fenced blocks, code spans) and no comment of HTML."""
    plain, fence = [], ""
    for line in text.split("\n"):
        opens = re.match(r" {0,3}(`{3,}(?=[^`]*$)|~{3,})", line)
        closes = re.match(r" {0,3}(`{3,}|~{3,})\s*$", line)
        if fence:
            if closes and closes[1].startswith(fence):
                fence = ""
        elif opens:
            fence = opens[1]
        else:
            plain.append(re.sub(r"(?<!`)(`+)(?!`)(.+?)(?<!`)\1(?!`)", "", line))
    return re.sub(r"<!--.*?-->", "", "\n".join(plain), flags=re.DOTALL)


def _split(labels: str) -> list[str]:
    return list(dict.fromkeys(label.strip() for label in labels.split(",") if label.strip()))


def _utc(text: str) -> str:
    """Return the time `text` in the format of `Issue.updated_at`; refuse other formats."""
    if text and not re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z", text):
        raise Refused(400, "updated_after is invalid")
    return text if "." in text or not text else text.replace("Z", ".000Z")


def main() -> None:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--port", type=int, default=8929, help="on 127.0.0.1; 0: any free port")
    parser.add_argument("--project", default=PROJECT)
    parser.add_argument("--token-file", type=Path, help="file with the token; without it one is generated and printed")
    parser.add_argument(
        "--webhook", default="", metavar="URL", help="whystall's address: http://127.0.0.1:8321/sinks/tracker"
    )
    parser.add_argument("--webhook-token", default="", help="sent as X-Gitlab-Token")
    parser.add_argument("--signing-token", default="", help="whsec_...: signs as GitLab 19 does")
    given = parser.parse_args()
    token = given.token_file.read_text().strip() if given.token_file else f"glpat-{secrets.token_urlsafe(15)}"
    hook = Hook(given.webhook, given.webhook_token, given.signing_token) if given.webhook else None
    tracker = Tracker(token, given.project, hook)
    with Server(("127.0.0.1", given.port), handler_of(tracker)) as server:
        tracker.url = f"http://127.0.0.1:{server.server_address[1]}"
        print(f"tracker: {tracker.url}/{tracker.project}/-/issues", flush=True)
        if given.token_file is None:
            print(f"token: {token}", flush=True)
        for signum in (signal.SIGINT, signal.SIGTERM):
            # In another thread, since shutdown() waits for the loop that this one runs.
            signal.signal(signum, lambda *_: threading.Thread(target=server.shutdown).start())
        server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main()
