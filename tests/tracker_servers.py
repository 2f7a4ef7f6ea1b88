"""Trackers on loopback that are as strict as their vendors' documents, and fail in every way when they are told to."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol
from urllib.parse import parse_qs, unquote, urlsplit

from tracker import Answer, Tracker

__all__ = ["Faults", "Gate", "GitHubLike", "JiraLike", "PagerDutyLike", "Receiver", "Tracker", "serving"]


class Vendor(Protocol):
    """What answers requests."""

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer: ...


@dataclass
class Call:
    """One request that came, and what was answered (0: nothing)."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    status: int = 0

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Faults = Callable[[Call], str | Answer | None]
"""What goes wrong with a request. An answer: given in place of the vendor's, who hears nothing. ``drop``: the vendor
hears nothing, the connection ends. ``lost``: the vendor does it, and its answer is lost. ``silent``: as lost, but the
connection stays. ``garbage``: the vendor does it, and the answer is no HTTP. ``huge``: ... and says it has 100 MB.
"""


@dataclass
class Gate:
    """A server, what came to it, and what goes wrong."""

    url: str
    calls: list[Call] = field(default_factory=list)
    faults: Faults | None = None

    def made(self, method: str = "POST") -> list[Call]:
        return [call for call in self.calls if call.method == method]


@contextlib.contextmanager
def serving(vendor: Vendor) -> Iterator[Gate]:
    """`vendor` on a free port of loopback."""
    over = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True  # head and body are written apart

        def handle_one(self) -> None:
            length = int(self.headers.get("content-length") or 0)
            body = self.rfile.read(length)
            call = Call(self.command, self.path, {n.lower(): v for n, v in self.headers.items()}, body)
            gate.calls.append(call)
            fault = gate.faults(call) if gate.faults else None
            if isinstance(fault, tuple):
                call.status = fault[0]
                self.reply(fault)
                return
            if fault == "drop":
                self.cut()
                return
            answer = vendor.answer(call.method, call.target, call.headers, body)
            if fault is None:
                call.status = answer[0]
                self.reply(answer)
            elif fault == "silent":
                over.wait(20)
                self.cut()
            elif fault == "garbage":
                self.wfile.write(b"\x00\x01 what\r\n\r\n")
                self.cut()
            elif fault == "huge":
                self.wfile.write(b"HTTP/1.1 201 Created\r\nContent-Length: 104857600\r\n\r\n" + b"x" * 65536)
                self.cut()
            else:
                self.cut()

        do_GET = do_POST = do_PUT = do_PATCH = handle_one

        def cut(self) -> None:
            self.close_connection = True
            with contextlib.suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def reply(self, answer: Answer) -> None:
            status, headers, body = answer
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(OSError):
                self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            pass  # connections that were cut

    with Server(("127.0.0.1", 0), Handler) as server:
        gate = Gate(f"http://127.0.0.1:{server.server_address[1]}")
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield gate
        finally:
            over.set()
            server.shutdown()
            thread.join()


def reply(status: int, value: Any = None, **headers: str) -> Answer:
    """An answer of JSON."""
    body = b"" if value is None else json.dumps(value).encode()
    return status, {"Content-Type": "application/json", **{n.replace("_", "-"): v for n, v in headers.items()}}, body


class _Base:
    """What trackers share: a clock that never stands still, one request at a time."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.issues: list[dict[str, Any]] = []
        self.comments: dict[str, list[dict[str, Any]]] = {}
        self._n = 0
        self._lock = threading.RLock()
        self._start = time.time()

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        url = urlsplit(target)
        query = {name: values[-1] for name, values in parse_qs(url.query, keep_blank_values=True).items()}
        with self._lock:
            try:
                given = json.loads(body) if body else None
            except ValueError:
                return reply(400, {"message": "Problems parsing JSON"})
            if method != "GET" and headers.get("content-type") != "application/json":
                return reply(415, {"message": "send JSON"})
            return self.handle(method, url.path, query, headers, given)

    def handle(self, method: str, path: str, query: dict[str, str], headers: Mapping[str, str], given: Any) -> Answer:
        raise NotImplementedError

    def number(self) -> int:
        self._n += 1
        return self._n

    def now(self) -> str:
        return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._start + self.number()))


class GitHubLike(_Base):
    """https://docs.github.com/en/rest/issues; labels that are not there are made, as GitHub does for who may push."""

    repository = "acme/ops"
    people = ("alice", "bob", "whystall-bot")

    def handle(self, method: str, path: str, query: dict[str, str], headers: Mapping[str, str], given: Any) -> Answer:
        if headers.get("authorization") != f"Bearer {self.token}":
            return reply(401, {"message": "Bad credentials"})
        if headers.get("accept") != "application/vnd.github+json" or "x-github-api-version" not in headers:
            return reply(400, {"message": "no version"})
        found = re.fullmatch(rf"/repos/{self.repository}(/issues(?:/(\d+)(/comments)?)?)?", path)
        if not found:
            return reply(404, {"message": "Not Found"})
        if found[1] is None:
            return reply(200, {"full_name": self.repository})
        if found[2] is None:
            return self.create(given) if method == "POST" else self.list(query)
        issue = next((i for i in self.issues if i["number"] == int(found[2])), None)
        if issue is None:
            return reply(404, {"message": "Not Found"})
        if found[3]:
            return self.comment(method, issue, query, given)
        if method == "GET":
            return reply(200, issue)
        return self.change(issue, given) if method == "PATCH" else reply(404, {"message": "Not Found"})

    def create(self, given: dict[str, Any]) -> Answer:
        wrong = self.wrong(given, {"title": str, "body": str, "labels": list, "assignees": list})
        if wrong or "title" not in given:
            return wrong or reply(422, {"message": 'Invalid request. "title" wasn\'t supplied.'})
        now = self.now()
        number = len(self.issues) + 1
        self.issues.append(
            {
                "number": number,
                "html_url": f"https://github.test/{self.repository}/issues/{number}",
                "title": given["title"],
                "body": given.get("body"),
                "state": "open",
                "state_reason": None,
                "labels": [{"name": name} for name in given.get("labels", [])],
                "assignees": [{"login": login} for login in given.get("assignees", [])],
                "user": {"login": "whystall-bot"},
                "created_at": now,
                "updated_at": now,
            }
        )
        return reply(201, self.issues[-1])

    def change(self, issue: dict[str, Any], given: dict[str, Any]) -> Answer:
        wrong = self.wrong(
            given, {"title": str, "body": str, "labels": list, "assignees": list, "state": str, "state_reason": str}
        )
        if wrong:
            return wrong
        if given.get("state_reason") not in (None, "completed", "not_planned", "duplicate", "reopened"):
            return reply(422, {"message": "Validation Failed"})
        issue |= {name: value for name, value in given.items() if name in ("title", "body", "state", "state_reason")}
        if "labels" in given:
            issue["labels"] = [{"name": name} for name in given["labels"]]
        if "assignees" in given:
            issue["assignees"] = [{"login": login} for login in given["assignees"]]
        issue["updated_at"] = self.now()
        return reply(200, issue)

    def wrong(self, given: Any, allowed: dict[str, type]) -> Answer | None:
        if not isinstance(given, dict) or any(type(v) is not allowed.get(n) for n, v in given.items()):
            return reply(422, {"message": "Invalid request.", "errors": []})
        if len(given.get("body", "")) > 65_536:
            return reply(422, {"message": "body is too long (maximum is 65536 characters)"})
        if len(given.get("title", "")) > 256:
            return reply(422, {"message": "title is too long (maximum is 256 characters)"})
        strangers = [login for login in given.get("assignees", []) if login not in self.people]
        if strangers:
            error = {"resource": "Issue", "field": "assignees", "code": "invalid", "value": strangers[0]}
            return reply(422, {"message": "Validation Failed", "errors": [error]})
        return None

    def list(self, query: dict[str, str]) -> Answer:
        if set(query) - {"state", "sort", "direction", "since", "per_page", "page"}:
            return reply(422, {"message": "unknown parameter"})
        by = {"created": "created_at", "updated": "updated_at"}[query.get("sort", "created")]
        found = [i for i in self.issues if i["updated_at"] >= query.get("since", "")]
        found.sort(key=lambda i: str(i[by]), reverse=query.get("direction", "desc") == "desc")
        return _page(found, query)

    def comment(self, method: str, issue: dict[str, Any], query: dict[str, str], given: Any) -> Answer:
        there = self.comments.setdefault(str(issue["number"]), [])
        if method == "GET":
            return _page([c for c in there if c["updated_at"] >= query.get("since", "")], query)
        if not isinstance(given, dict) or set(given) != {"body"} or not given["body"]:
            return reply(422, {"message": "body can't be blank"})
        if len(given["body"]) > 65_536:
            return reply(422, {"message": "body is too long (maximum is 65536 characters)"})
        self.say(str(issue["number"]), "whystall-bot", given["body"])
        return reply(201, there[-1])

    def say(self, ref: str, by: str, text: str) -> None:
        """Somebody comments."""
        now = self.now()
        comment = {"id": self.number(), "body": text, "user": {"login": by}, "created_at": now, "updated_at": now}
        self.comments.setdefault(ref, []).append(comment)
        self.issues[int(ref) - 1]["updated_at"] = now

    def close(self, ref: str, reason: str = "completed") -> None:
        """Somebody closes an issue."""
        self.issues[int(ref) - 1] |= {"state": "closed", "state_reason": reason, "updated_at": self.now()}


class JiraLike(_Base):
    """https://developer.atlassian.com/cloud/jira/platform/rest/v2/ with `cloud`, else Data Center. What was created is
    found once `lag` more searches were made. Its workflow: To Do, In Progress, Done.
    """

    def __init__(self, token: str, *, cloud: bool = True, lag: int = 0) -> None:
        super().__init__(token)
        self.cloud = cloud
        self.lag = lag
        self.project = "OPS"
        self.priorities = ["Highest", "High", "Medium", "Low"]
        self.people = ("5b10a", "5b10b")
        self._hidden: dict[str, int] = {}

    def handle(self, method: str, path: str, query: dict[str, str], headers: Mapping[str, str], given: Any) -> Answer:
        if headers.get("authorization") != self.token:
            return reply(401, {"errorMessages": ["You are not authenticated."]})
        path = path.removeprefix("/rest/api/2")
        if path == f"/project/{self.project}":
            return reply(200, {"key": self.project})
        if path == ("/search/jql" if self.cloud else "/search"):
            return self.search(query)
        if path == "/issue" and method == "POST":
            return self.create(given)
        found = re.fullmatch(r"/issue/([A-Z]+-\d+)(/comment|/transitions)?", path)
        issue = next((i for i in self.issues if found and i["key"] == found[1]), None)
        if found is None or issue is None:
            return reply(404, {"errorMessages": ["Issue does not exist or you do not have permission to see it."]})
        if found[2] == "/comment":
            return self.comment(method, issue, query, given)
        if found[2] == "/transitions":
            return self.transition(method, issue, given)
        return reply(200, issue) if method == "GET" else self.change(issue, given)

    def create(self, given: Any) -> Answer:
        fields = given.get("fields") if isinstance(given, dict) and set(given) == {"fields"} else None
        if not isinstance(fields, dict) or fields.get("project") != {"key": self.project}:
            return reply(400, {"errorMessages": [], "errors": {"project": "project is required"}})
        if set(fields.get("issuetype", {})) != {"name"} or not fields.get("summary"):
            return reply(400, {"errors": {"summary": "You must specify a summary of the issue."}})
        if errors := self.wrong(fields):
            return reply(400, {"errorMessages": [], "errors": errors})
        key = f"{self.project}-{len(self.issues) + 1}"
        now = self.jira_now()
        issue = {"id": str(10_000 + len(self.issues)), "key": key}
        self.issues.append(
            {
                **issue,
                "fields": {**fields, "status": _STATUSES["To Do"], "resolution": None, "created": now, "updated": now},
            }
        )
        self._hidden[key] = self.lag
        return reply(201, {**issue, "self": f"http://jira.test/rest/api/2/issue/{issue['id']}"})

    def wrong(self, fields: dict[str, Any]) -> dict[str, str]:
        errors = {}
        if len(fields.get("summary", "")) > 255:
            errors["summary"] = "Summary must be less than 255 characters."
        if len(fields.get("description", "")) > 32_767:
            errors["description"] = "The entered text is too long. It exceeds the allowed limit of 32,767 characters."
        if "priority" in fields and fields["priority"].get("name") not in self.priorities:
            errors["priority"] = "Field 'priority' cannot be set. It is not on the appropriate screen, or unknown."
        name = "accountId" if self.cloud else "name"
        if fields.get("assignee") is not None and fields["assignee"].get(name) not in self.people:
            errors["assignee"] = "User does not exist."
        if any(" " in label for label in fields.get("labels", [])):
            errors["labels"] = "The label contains spaces which is invalid."
        return errors

    def change(self, issue: dict[str, Any], given: Any) -> Answer:
        if set(given) - {"fields", "update"}:
            return reply(400, {"errorMessages": ["unknown"]})
        fields = given.get("fields", {})
        if errors := self.wrong(fields):
            return reply(400, {"errors": errors})
        issue["fields"] |= fields
        for step in given.get("update", {}).get("labels", []):
            labels = issue["fields"]["labels"]
            labels = [label for label in labels if label != step.get("remove")]
            issue["fields"]["labels"] = [*labels, *([step["add"]] if "add" in step else [])]
        issue["fields"]["updated"] = self.jira_now()
        return reply(204)

    def transition(self, method: str, issue: dict[str, Any], given: Any) -> Answer:
        there = issue["fields"]["status"]["name"]
        steps = {str(n): name for n, name in enumerate(_STATUSES, 11) if name != there}
        if method == "GET":
            shown = [{"id": i, "name": f"to {n}", "to": _STATUSES[n], "fields": {}} for i, n in steps.items()]
            return reply(200, {"transitions": shown})
        step = steps.get(given.get("transition", {}).get("id", ""))
        if step is None:
            return reply(400, {"errorMessages": ["It seems that you have tried to perform an illegal operation"]})
        self.walk(issue["key"], step)
        return reply(204)

    def walk(self, key: str, status: str, resolution: str = "Done") -> None:
        """Somebody takes a step of the workflow."""
        fields = next(i for i in self.issues if i["key"] == key)["fields"]
        fields["status"] = _STATUSES[status]
        fields["resolution"] = {"name": resolution} if status == "Done" else None
        fields["updated"] = self.jira_now()

    def comment(self, method: str, issue: dict[str, Any], query: dict[str, str], given: Any) -> Answer:
        there = self.comments.setdefault(issue["key"], [])
        if method == "GET":
            start, size = int(query.get("startAt", "0")), int(query.get("maxResults", "50"))
            ordered = there[::-1] if query.get("orderBy") == "-created" else there
            return reply(200, {"comments": ordered[start : start + size], "total": len(there)})
        if not isinstance(given, dict) or set(given) != {"body"} or len(given["body"]) > 32_767:
            return reply(400, {"errors": {"comment": "Comment body is not valid!"}})
        self.say(issue["key"], "5b10b", given["body"])
        return reply(201, there[-1])

    def say(self, key: str, by: str, text: str) -> None:
        """Somebody comments."""
        author = {"accountId" if self.cloud else "name": by}
        comment = {"id": str(self.number()), "body": text, "author": author, "created": self.jira_now()}
        self.comments.setdefault(key, []).append(comment)
        next(i for i in self.issues if i["key"] == key)["fields"]["updated"] = self.jira_now()

    def search(self, query: dict[str, str]) -> Answer:
        jql = query.get("jql", "")
        when = r'(?:AND updated >= "\d{4}-\d\d-\d\d \d\d:\d\d" )?'
        known = re.fullmatch(rf'project = "{self.project}" {when}ORDER BY (created|updated) (ASC|DESC)', jql)
        if known is None or not query.get("fields"):
            return reply(400, {"errorMessages": [f"Error in the JQL Query: {jql}"]})
        for key in self._hidden:
            self._hidden[key] -= 1
        found = [i for i in self.issues if self._hidden.get(i["key"], 0) < 0]
        found.sort(key=lambda i: str(i["fields"][known[1]]), reverse=known[2] == "DESC")
        size = int(query.get("maxResults", "50"))
        start = int(query.get("nextPageToken", "0") if self.cloud else query.get("startAt", "0"))
        page, last = found[start : start + size], start + size >= len(found)
        if not self.cloud:
            return reply(200, {"issues": page, "startAt": start, "maxResults": size, "total": len(found)})
        more = {} if last else {"nextPageToken": str(start + size)}
        return reply(200, {"issues": page, "isLast": last, **more})

    def jira_now(self) -> str:
        return self.now().replace("Z", ".000+0000")


class PagerDutyLike(_Base):
    """https://developer.pagerduty.com/docs/send-alert-event: what is sent twice is there once."""

    def __init__(self, token: str) -> None:
        super().__init__(token)
        self.alerts: list[dict[str, Any]] = []

    def handle(self, method: str, path: str, query: dict[str, str], headers: Mapping[str, str], given: Any) -> Answer:
        if (method, path) != ("POST", "/v2/enqueue"):
            return reply(404, {"message": "Not Found"})
        errors = self.wrong(given)
        if errors:
            return reply(400, {"status": "invalid event", "message": "Event object is invalid", "errors": errors})
        alert = next((a for a in self.alerts if a["key"] == given["dedup_key"] and a["state"] != "resolve"), None)
        action = given["event_action"]
        if action == "trigger" and alert is None:
            self.alerts.append({"key": given["dedup_key"], "state": action, **given["payload"]})
        elif alert is not None:
            alert |= given.get("payload", {})
            alert["state"] = action if action != "trigger" or alert["state"] == "resolve" else alert["state"]
        return reply(202, {"status": "success", "message": "Event processed", "dedup_key": given["dedup_key"]})

    def wrong(self, given: Any) -> list[str]:
        if not isinstance(given, dict) or given.get("routing_key") != self.token:
            return ["Length of 'routing_key' is incorrect (should be 32 characters)"]
        if given.get("event_action") not in ("trigger", "acknowledge", "resolve"):
            return ["'event_action' is invalid"]
        if not 0 < len(given.get("dedup_key", "")) <= 255:
            return ["'dedup_key' is missing or too long"]
        if given["event_action"] != "trigger":
            return []
        payload = given.get("payload", {})
        if not 0 < len(payload.get("summary", "")) <= 1024 or not payload.get("source"):
            return ["'payload.summary' or 'payload.source' is missing or blank"]
        return (
            []
            if payload.get("severity") in ("critical", "error", "warning", "info")
            else ["'payload.severity' is invalid"]
        )


class Receiver(_Base):
    """A program that takes webhooks, and remembers their ids, so that it does nothing twice."""

    def __init__(self, token: str = "") -> None:
        super().__init__(token)
        self.taken: dict[str, Any] = {}

    def handle(self, method: str, path: str, query: dict[str, str], headers: Mapping[str, str], given: Any) -> Answer:
        if not headers.get("idempotency-key"):
            return reply(400, {"message": "no Idempotency-Key"})
        self.taken.setdefault(headers["idempotency-key"], given)
        return reply(204)


_STATUSES = {
    "To Do": {"name": "To Do", "statusCategory": {"key": "new"}},
    "In Progress": {"name": "In Progress", "statusCategory": {"key": "indeterminate"}},
    "Done": {"name": "Done", "statusCategory": {"key": "done"}},
}


def _page(found: list[dict[str, Any]], query: dict[str, str]) -> Answer:
    page, size = int(query.get("page", "1")), int(query.get("per_page", "30"))
    if not 1 <= size <= 100:
        return reply(422, {"message": "per_page"})
    return reply(200, found[(page - 1) * size : page * size])


def quoted(target: str) -> str:
    """A target as people read it."""
    return unquote(target)
