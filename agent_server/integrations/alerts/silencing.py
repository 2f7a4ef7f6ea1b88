"""Add and expire silences: parse their matchers, check their times, write the audit log."""

from __future__ import annotations

from collections.abc import Sequence

from whystall.agent_server.integrations.alerts.matchers import BadMatcher, Matcher, Matchers, parse
from whystall.agent_server.journal.silences import Silence
from whystall.agent_server.stores import Stores
from whystall.knowledge_base.tickets.human import line
from whystall.tools.contract.errors import ErrorCode, ToolError

LONGEST = 366 * 86_400.0
"""Maximum seconds of a silence."""
_COMMENT, _BY = 1000, 200
_HINT = 'write matchers as for Alertmanager: \'alertname="DiskSlow", node=~"gpu-.*"\''


def matchers_of(texts: Sequence[str]) -> Matchers:
    """Parse matchers; raises `ToolError` (bad_argument) if there are none or they match every alert."""
    made: list[Matcher] = []
    for text in texts:
        try:
            made += parse(text)
        except BadMatcher as error:
            raise ToolError(ErrorCode.BAD_ARGUMENT, f"{text[:100]!r}: {error}", _HINT) from None
    if all(matcher.matches({}) for matcher in made):
        raise ToolError(ErrorCode.BAD_ARGUMENT, "it would silence alerts that have none of these labels", _HINT)
    return tuple(made)


def add(
    kb: Stores,
    matchers: str | Sequence[str],
    ends: float,
    by: str,
    comment: str,
    now: float,
    starts: float | None = None,
) -> Silence:
    """Store a silence from `starts` (default: now) to `ends`.

    Raises `ToolError` (bad_argument): invalid matchers; a time that has passed, or a duration over `LONGEST`.
    """
    made = matchers_of([matchers] if isinstance(matchers, str) else matchers)
    begins = now if starts is None else starts
    if ends <= max(begins, now):
        message = "a silence must end after its start and in the future"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give a later end")
    if ends - begins > LONGEST:
        raise ToolError(
            ErrorCode.BAD_ARGUMENT, "a silence lasts at most a year", "let the routing tree drop these alerts"
        )
    silence = Silence(
        matchers=[str(matcher) for matcher in made],
        starts=begins,
        ends=ends,
        by=line(by, _BY),
        comment=line(comment, _COMMENT),
        created=now,
    )
    with kb.transaction():
        kept = kb.silences.add(silence)
        detail = {"matchers": kept.matchers, "starts": kept.starts, "ends": kept.ends, "comment": kept.comment}
        kb.audit.put(by, "silence.added", f"silence:{kept.id}", detail=detail)
    return kept


def expire(kb: Stores, id: str, by: str, now: float) -> Silence:
    """End the silence `id` now; raises `ToolError`: not_found, bad_argument (it has ended already)."""
    with kb.transaction():
        ended = kb.silences.expire(id, now, line(by, _BY))
        kb.audit.put(by, "silence.expired", f"silence:{ended.id}")
    return ended
