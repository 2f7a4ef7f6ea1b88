"""Silences as people ask for them: matchers as text, times checked, everything audited."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whystall.agent_server.integrations.alerts.matchers import BadMatcher, Matcher, Matchers, parse
from whystall.agent_server.journal.silences import Silence
from whystall.knowledge_base.tickets.human import line
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    from whystall.agent_server.stores import Stores

LONGEST = 366 * 86_400.0
"""Seconds: what is to be silent for longer is a matter of the routing tree."""
_COMMENT, _BY = 1000, 200
_HINT = 'write matchers as for Alertmanager: \'alertname="DiskSlow", node=~"gpu-.*"\''


def matchers_of(texts: Sequence[str]) -> Matchers:
    """The matchers in `texts`; `ToolError` (bad_argument) where there are none, or they would match every alert."""
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
    """A silence from `starts` (now) to `ends`, stored and audited.

    `ToolError` (bad_argument): no matchers, or some that match everything; times that are over, or too long.
    """
    made = matchers_of([matchers] if isinstance(matchers, str) else matchers)
    begins = now if starts is None else starts
    if ends <= max(begins, now):
        raise ToolError(
            ErrorCode.BAD_ARGUMENT, "a silence ends after it begins, and not before now", "give a later end"
        )
    if ends - begins > LONGEST:
        message = "a silence lasts at most a year"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "let the routing tree drop these alerts")
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
    """End the silence `id` now, audited; `ToolError`: not_found, bad_argument when it is over already."""
    with kb.transaction():
        ended = kb.silences.expire(id, now, line(by, _BY))
        kb.audit.put(by, "silence.expired", f"silence:{ended.id}")
    return ended
