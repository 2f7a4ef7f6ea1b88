"""Append-only audit log of changes and of what was sent.

Callers pass no secrets. What looks like one nevertheless (a token pasted into a chat, or repeated in a server's error)
is redacted, by its key or by its format.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from whystall.knowledge_base.database import Database
from whystall.knowledge_base.times import now as stamp
from whystall.tools.contract.text import clean

_TEXT = 2000  # characters of a text in `Entry.detail`
_DEPTH = 6
REDACTED = "***"
_NAMES = re.compile(r"(^|[_-])(token|secret|password|passwd|authorization|(api|routing)[_-]?key|sign)$", re.I)
_FORMS = (
    # in URLs and form data: access_token=...
    (r"((?:(?<=_)|\b)(?:token|secret|password|passwd|api_?key|sign)=)(?!\*\*\*)[^\s&\"']{4,}", rf"\1{REDACTED}"),
    (r"\b((?:Bearer|Basic) )(?!\*\*\*)[^\s\"']{4,}", rf"\1{REDACTED}"),
    # the password of a URL
    (r"(://[^/\s:@]*:)[^/\s@]+(?=@)", rf"\1{REDACTED}"),
    # tokens with a known prefix: GitLab, GitHub, Slack, Standard Webhooks, OpenAI
    (r"\b(?:glpat-|gh[pousr]_|github_pat_|xox[abeoprs]-|xapp-|whsec_|(?<!-)sk-)[\w.+/=-]{8,}", REDACTED),
)
_REDACT = tuple((re.compile(pattern, re.IGNORECASE), by) for pattern, by in _FORMS)


class Entry(BaseModel):
    """An entry. `by`: a person, ``engine``, ``sink:NAME``, ``chat:NAME``; `what`: a code such as ``ticket.resolved``,
    ``sink.create``, ``message.sent``, ``silence.added``, ``request.refused``; `target`: its object; `outcome`: ``ok``
    or the code of the error; `detail`: typed facts without secrets.
    """

    model_config = ConfigDict(extra="forbid")

    n: int
    at: str
    by: str
    what: str
    target: str
    outcome: str
    detail: dict[str, Any]


class Audit:
    def __init__(self, file: Database) -> None:
        self._file = file

    def put(
        self, by: str, what: str, target: str, outcome: str = "ok", detail: Mapping[str, Any] | None = None
    ) -> None:
        """Append an entry, without secrets. Call it in the transaction of the change."""
        with self._file.write() as db:
            db.execute(
                "INSERT INTO audit (at, by, what, target, outcome, detail) VALUES (?, ?, ?, ?, ?, ?)",
                [
                    stamp(),
                    clean(by, 200),
                    what,
                    clean(redacted(target[:1000]), 500),
                    clean(redacted(outcome[:1000]), 200),
                    json.dumps(_plain(dict(detail or {})), ensure_ascii=False),
                ],
            )

    def entries(self, after: int = 0, limit: int = 100, what: str = "", by: str = "") -> Sequence[Entry]:
        """Return the newest `limit` entries numbered above `after`, oldest first; `what`: prefix of the code; `by`:
        exact.
        """
        with self._file.read() as db:
            rows = db.execute(
                "SELECT n, at, by, what, target, outcome, detail FROM audit WHERE n > ? AND substr(what, 1, ?) = ?"
                " AND (? = '' OR by = ?) ORDER BY n DESC LIMIT ?",
                [after, len(what), what, by, by, limit],
            ).fetchall()
        names = ("n", "at", "by", "what", "target", "outcome", "detail")
        return [Entry(**{**dict(zip(names, row, strict=True)), "detail": json.loads(row[6])}) for row in reversed(rows)]


def redacted(text: str) -> str:
    """Return `text` with `REDACTED` for everything that looks like a secret."""
    for pattern, by in _REDACT:
        text = pattern.sub(by, text)
    return text


def _plain(value: Any, depth: int = 0) -> Any:
    """Return `value` with texts inert and cut, secrets redacted, and limited nesting."""
    if isinstance(value, str):
        return clean(redacted(value[: 2 * _TEXT]), _TEXT)
    if isinstance(value, Mapping):
        if depth >= _DEPTH:
            return "…"
        return {
            clean(str(name), 100): REDACTED if _NAMES.search(str(name)) and inner else _plain(inner, depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple, set)):
        return "…" if depth >= _DEPTH else [_plain(inner, depth + 1) for inner in value]
    return value if value is None or isinstance(value, (bool, int, float)) else clean(str(value), _TEXT)
