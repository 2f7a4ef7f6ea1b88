"""Check states that a sentence names without a figure: busy or idle, in flight or finished. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence

from whystall.agent_server.diagnosis.grounding.clauses import CLAUSES, DENIED, FLATLY
from whystall.knowledge_base import components
from whystall.tools.contract.findings import Finding

# Utilisation of CPUs and disks in percent: "idle" must not be above, "busy" not below these.
_ALL_CPUS = re.compile(
    r"\ball (?:the |of the )?(?:host['’]s )?(?:cpus|cores)\b|\bevery (?:cpu|core)\b|\bhost['’]s (?:cpus|cores)\b|"
    r"(?:所有|全部) ?的? ?CPU|主机的? ?CPU",
    re.I,
)
_ALLOWED = re.compile(r"\b(?:may|can|allowed|permitted|its)\b|可用|允许", re.I)
_LEVELS = {"cpu.saturated": "busy_pct", "disk.saturated": "util_pct"}
_IDLE_PCT, _BUSY_PCT = 50.0, 30.0
_IS_IDLE = re.compile(r"\bidle\b|\b(?:are|is|stay|stays) (?:mostly |largely )?(?:free|unused)\b|空闲", re.I)
_IS_BUSY = re.compile(r"\b(?:busy|fully used)\b|繁忙|忙碌", re.I)
_PARTLY = re.compile(
    r"\d\s?%|\b(?:half|partly|third|quarter|fifths?|no|not|never|percent)\b|n't|n’t|一半|[成分]|百分|不|部分|没", re.I
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
_NONE = re.compile(r"\bnone\b|\bno longer\b|\bneither\b", re.I)
# Block requests by operation.
_OPERATIONS = {
    "read": re.compile(r"\bread (?:requests?|i/?o)\b|读请求|读 ?I/?O", re.I),
    "write": re.compile(r"\bwrite (?:requests?|i/?o)\b|写请求|写 ?I/?O", re.I),
}
_A_READ = re.compile(r"\b(?:a|its|the|slow|for) reads?\b|\breading\b|读取|读盘", re.I)
_A_WRITE = re.compile(r"\b(?:a|its|the|slow|for) writes?\b|\bwriting\b|写入|写盘", re.I)
_READS, _WRITES = re.compile(r"p?readv?\d*|preadv2"), re.compile(r"p?writev?\d*|pwritev2|f(?:data)?sync|msync")
_WAITING = re.compile(r"\b(?:waits?|waited|waiting|blocks|blocked|blocking|stuck|stalls?|stalled)\b|等|阻塞|卡", re.I)
_GOOD = re.compile(r"\b(?:fast|quick|quickly|smooth|smoothly|prompt|promptly|at once|immediately)\b|快|立即|顺畅", re.I)
# Findings of threads that do not run.
_OFF_CPU = ("offcpu.blocked", "offcpu.lock_wait", "process.io_wait")
_RUNNING = re.compile(
    r"\b(?:spins|spinning|spun|burns?|burning|computes|computing|busy[- ]?(?:loops?|looping|waits?|waiting))\b|"
    r"空转|忙等|自旋|在计算",
    re.I,
)
# Contradicts a call in flight.
_ENDED = re.compile(
    r"\b(?:returned|returns|finished|finishes|completed|completes|came back)\b|"
    r"(?<![未没])(?<!没有)(?:返回|完成|结束)了|(?:已经?|终于)(?:返回|完成|结束)",
    re.I,
)


def contradiction(prose: str, findings: Sequence[Finding]) -> str | None:
    """Return the first words in `prose` that contradict `findings`; None without any."""
    for judge in (_flagged, _ended, _level, _all_cpus, _operation, _call, _nothing, _off_cpu):
        if (words := judge(prose, findings)) is not None:
            return words
    return None


def _undenied(pattern: re.Pattern[str], prose: str) -> str | None:
    """Return the first match of `pattern` in a clause that denies nothing."""
    for clause in CLAUSES.split(prose):
        match = pattern.search(clause)
        if match and not DENIED.search(clause):
            return match.group(0)
    return None


def _flagged(prose: str, findings: Sequence[Finding]) -> str | None:
    """Check states that findings have as a flag: a call did not end, it was direct."""
    for clause in CLAUSES.split(prose):
        for flags, pattern in _FLAGS:
            match = pattern.search(clause)
            if match is None:
                continue
            before = clause[: match.start()]
            flagged = any(f.attributes.get(flag) == "yes" for f in findings for flag in flags)
            if flagged is bool(FLATLY.search(before) or _NONE.search(before)):
                return match.group(0)
    return None


def _ended(prose: str, findings: Sequence[Finding]) -> str | None:
    """Check "it returned" if all that is cited is one call in flight."""
    calls = [f for f in findings if f.attributes.get("in_flight", f.attributes.get("open")) == "yes"]
    if not calls or len(calls) < len(findings) or any(f.metrics.get("count", 0) > 1 for f in calls):
        return None
    return _undenied(_ENDED, prose)


def _level(prose: str, findings: Sequence[Finding]) -> str | None:
    """Check "idle" and "busy" without a figure against the measured utilisation."""
    for clause in CLAUSES.split(prose):
        idle, busy = _IS_IDLE.search(clause), _IS_BUSY.search(clause)
        match = idle or busy
        if match is None or (idle and busy) or _PARTLY.search(clause) or (busy and DENIED.search(clause)):
            continue
        named = {name for name, _ in components.named(clause)}
        kinds = [k for k in _LEVELS if not named & {"cpu", "disk"} or k.partition(".")[0] in named]
        values = [f.metrics[_LEVELS[f.kind]] for f in findings if f.kind in kinds and _LEVELS[f.kind] in f.metrics]
        if values and (min(values) > _IDLE_PCT if idle else max(values) < _BUSY_PCT):
            return match.group(0)
    return None


def _all_cpus(prose: str, findings: Sequence[Finding]) -> str | None:
    """Check claims about all CPUs if the cited finding is about the allowed CPUs only."""
    confined = [f for f in findings if f.kind == "cpu.saturated" and "allowed_cpus" in f.metrics]
    match = _ALL_CPUS.search(prose)
    return match.group(0) if confined and match and not _ALLOWED.search(prose) else None


def _operation(prose: str, findings: Sequence[Finding]) -> str | None:
    """Check "read requests" and "write requests" against the operations of the cited requests."""
    kinds = [f.attributes["operation"] for f in findings if f.kind == "block.slow_io" and "operation" in f.attributes]
    for operation, pattern in _OPERATIONS.items():
        match = pattern.search(prose)
        if match and kinds and len(kinds) == len(findings) and not any(operation in kind for kind in kinds):
            return match.group(0)
    return None


def _call(prose: str, findings: Sequence[Finding]) -> str | None:
    """Check reads if all cited calls are writes or syncs, and the other way round."""
    calls = [f.attributes.get("syscall", "") for f in findings]
    for pattern, others in ((_A_READ, _WRITES), (_A_WRITE, _READS)):
        if all(others.fullmatch(call) for call in calls) and (words := _undenied(pattern, prose)):
            return words
    return None


def _nothing(prose: str, findings: Sequence[Finding]) -> str | None:
    """Check waits if all measured values are zero."""
    if any(value for f in findings for value in f.metrics.values()) or _GOOD.search(prose):
        return None
    return _undenied(_WAITING, prose)


def _off_cpu(prose: str, findings: Sequence[Finding]) -> str | None:
    """Check "it computes" if all findings are of threads off the CPU."""
    return None if any(f.kind not in _OFF_CPU for f in findings) else _undenied(_RUNNING, prose)
