"""What a sentence says of a state without a figure: busy or idle, still under way or over. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from whystall.agent_server.investigation.grounding_clauses import CLAUSES, DENIED, FLATLY
from whystall.knowledge_base import components
from whystall.tools.contract.findings import Finding

# How busy a host's CPUs or a disk were, in percent: who is called idle is not above, who is called busy not below.
_LEVELS = {"cpu.saturated": "busy_pct", "disk.saturated": "util_pct"}
_IDLE_PCT, _BUSY_PCT = 50.0, 30.0
_IS_IDLE, _IS_BUSY = re.compile(r"\bidle\b|空闲", re.I), re.compile(r"\b(?:busy|fully used)\b|繁忙|忙碌", re.I)
_PARTLY = re.compile(
    r"\d\s?%|\b(?:half|partly|third|quarter|fifths?|not|never|percent)\b|n't|n’t|一半|[成分]|百分|不|部分|没", re.I
)
_FLAGS = (
    (
        ("in_flight", "open"),
        re.compile(
            r"\bin flight\b|\b(?:never|not|n't|n’t)(?: yet| ever)? (?:return|finish|complete|end)(?:ed|"
            r"s)?\b|\bunfinished\b|"
            r"(?:仍|尚|还)?[未没]有?(?:返回|完成|结束)",
            re.I,
        ),
    ),
    (("direct",), re.compile(r"\bdirect i/?o\b|\bo_direct\b|直接 ?I/?O", re.I)),
)
# What came back, where all that a finding tells of was still under way.
_ENDED = re.compile(
    r"\b(?:returned|returns|finished|finishes|completed|completes|came back)\b|"
    r"(?<![未没])(?<!没有)(?:返回|完成|结束)了|(?:已经?|终于)(?:返回|完成|结束)",
    re.I,
)


def wrong(prose: str, findings: Sequence[Finding]) -> str | None:
    """The words in `prose` that `findings` say otherwise; None where there are none."""
    return _flagged(prose, findings) or _ended(prose, findings) or _level(prose, findings)


def _flagged(prose: str, findings: Sequence[Finding]) -> str | None:
    """What a finding either says or not: that a call did not end, that it was direct."""
    for flags, pattern in _FLAGS:
        said = pattern.search(prose)
        held = any(f.attributes.get(flag) == "yes" for f in findings for flag in flags)
        denied = said is not None and FLATLY.search(prose[: said.start()]) is not None
        if said and held is denied:
            return said.group(0)
    return None


def _ended(prose: str, findings: Sequence[Finding]) -> str | None:
    """What came back, where all that is cited was one call and under way."""
    calls = [f for f in findings if f.attributes.get("in_flight", f.attributes.get("open")) == "yes"]
    if not calls or len(calls) < len(findings) or any(f.metrics.get("count", 0) > 1 for f in calls):
        return None
    for clause in CLAUSES.split(prose):
        said = _ENDED.search(clause)
        if said and not DENIED.search(clause):
            return said.group(0)
    return None


def _level(prose: str, findings: Sequence[Finding]) -> str | None:
    """Something busy that is called idle, and the other way round, without a figure."""
    for clause in CLAUSES.split(prose):
        idle, busy = _IS_IDLE.search(clause), _IS_BUSY.search(clause)
        said = idle or busy
        if said is None or (idle and busy) or _PARTLY.search(clause) or (busy and DENIED.search(clause)):
            continue
        told = {name for name, _ in components.named(clause)}
        kinds = [k for k in _LEVELS if not told & {"cpu", "disk"} or k.partition(".")[0] in told]
        values = [f.metrics[_LEVELS[f.kind]] for f in findings if f.kind in kinds and _LEVELS[f.kind] in f.metrics]
        if values and (min(values) > _IDLE_PCT if idle else max(values) < _BUSY_PCT):
            return said.group(0)
    return None
