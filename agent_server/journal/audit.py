"""Who sent or changed what, and what came of it. Only ever appended to.

Callers hand over no secrets. What looks like one all the same (somebody pasted a token into a chat, a server repeated
one in its error) is struck before it is kept: by the name it stands under, and by forms that only secrets have.
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
STRUCK = "***"
_NAMES = re.compile(r"(^|[_-])(token|secret|password|passwd|authorization|(api|routing)[_-]?key|sign)$", re.I)
_FORMS = (
    # in addresses and forms: access_token=...
    (r"((?:(?<=_)|\b)(?:token|secret|password|passwd|api_?key|sign)=)(?!\*\*\*)[^\s&\"']{4,}", rf"\1{STRUCK}"),
    (r"\b((?:Bearer|Basic) )(?!\*\*\*)[^\s\"']{4,}", rf"\1{STRUCK}"),
    # the password of an address
    (r"(://[^/\s:@]*:)[^/\s@]+(?=@)", rf"\1{STRUCK}"),
    # tokens that tell what they are of: GitLab, GitHub, Slack, Standard Webhooks, OpenAI
    (r"\b(?:glpat-|gh[pousr]_|github_pat_|xox[abeoprs]-|xapp-|whsec_|(?<!-)sk-)[\w.+/=-]{8,}", STRUCK),
)
_STRIKE = tuple((re.compile(pattern, re.IGNORECASE), by) for pattern, by in _FORMS)


class Entry(BaseModel):
    """One line of the log. `by`: a person, ``engine``, ``sink:NAME``, ``chat:NAME``; `what`: a code such as
    ``ticket.resolved``, ``sink.create``, ``message.sent``, ``silence.added``, ``request.refused``; `target`: of what;
    `outcome`: ``ok``, or the code of what went wrong; `detail`: typed facts without secrets.
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
    """The log in `file`."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def put(
        self, by: str, what: str, target: str, outcome: str = "ok", detail: Mapping[str, Any] | None = None
    ) -> None:
        """Append an entry. Callers hand over no secrets; call it in the transaction of what it tells."""
        with self._file.write() as db:
            db.execute(
                "INSERT INTO audit (at, by, what, target, outcome, detail) VALUES (?, ?, ?, ?, ?, ?)",
                [
                    stamp(),
                    clean(by, 200),
                    what,
                    clean(struck(target[:1000]), 500),
                    clean(struck(outcome[:1000]), 200),
                    json.dumps(_plain(dict(detail or {})), ensure_ascii=False),
                ],
            )

    def entries(self, after: int = 0, limit: int = 100, what: str = "", by: str = "") -> Sequence[Entry]:
        """The newest `limit` entries with a number above `after`, oldest first; `what`: only codes that begin so; `by`:
        only of that one.
        """
        with self._file.read() as db:
            rows = db.execute(
                "SELECT n, at, by, what, target, outcome, detail FROM audit WHERE n > ? AND substr(what, 1, ?) = ?"
                " AND (? = '' OR by = ?) ORDER BY n DESC LIMIT ?",
                [after, len(what), what, by, by, limit],
            ).fetchall()
        names = ("n", "at", "by", "what", "target", "outcome", "detail")
        return [Entry(**{**dict(zip(names, row, strict=True)), "detail": json.loads(row[6])}) for row in reversed(rows)]


def struck(text: str) -> str:
    """`text` without what looks like a secret."""
    for pattern, by in _STRIKE:
        text = pattern.sub(by, text)
    return text


def _plain(value: Any, depth: int = 0) -> Any:
    """`value` as it is kept: texts inert and cut, secrets struck, nothing deeper than anybody reads."""
    if isinstance(value, str):
        return clean(struck(value[: 2 * _TEXT]), _TEXT)
    if isinstance(value, Mapping):
        if depth >= _DEPTH:
            return "…"
        return {
            clean(str(name), 100): STRUCK if _NAMES.search(str(name)) and inner else _plain(inner, depth + 1)
            for name, inner in value.items()
        }
    if isinstance(value, (list, tuple, set)):
        return "…" if depth >= _DEPTH else [_plain(inner, depth + 1) for inner in value]
    return value if value is None or isinstance(value, (bool, int, float)) else clean(str(value), _TEXT)
