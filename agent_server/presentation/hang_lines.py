"""The first lines of hang: whether the job moves, which rank has failed, or which one the others wait for, where it is,
and for what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import Safe, short
from whystall.prompts.quantities import duration
from whystall.prompts.render import FORMATS, fill, words

if TYPE_CHECKING:
    from whystall.tools.host.hang.tables import Data, FailedRow, LateRow

_TEXT = FORMATS["txt"]
_LONG = 120


def hang_lines(data: Data, lang: Lang) -> list[Safe]:
    """Return the verdict, a line per rank that failed or to look at, who waits, and what was not read."""
    texts = words(lang)
    hang, marks = texts["hang"], texts["marks"]
    lines = [Safe(f"{texts['labels']['verdict']}{marks['colon']}{hang['verdicts'][data.verdict]}")]
    late = [line for row in data.late for line in _late(row, data.verdict, lang)]
    failed = [_failed(row, lang) for row in data.failed]
    lines += failed + late if data.verdict == "first_failure" else late + failed
    if data.waiting:
        parts = [fill(_TEXT.running, hang["waiting"], ranks=Safe(data.waiting))]
        if data.waited_s is not None:
            parts.append(fill(_TEXT.running, hang["waited"], time=Safe(duration(data.waited_s))))
        lines.append(Safe("  " + str(marks["comma"]).join(parts)))
    if data.absent:
        lines.append(Safe("  " + fill(_TEXT.running, hang["absent"], ranks=_name(data.absent))))
    return lines


def _failed(row: FailedRow, lang: Lang) -> Safe:
    """Return how a rank ended, and what explains it."""
    texts = words(lang)
    hang = texts["hang"]
    parts = [fill(_TEXT.running, hang["ends"][row.how], rank=Safe(row.rank), code=Safe(row.code))]
    if row.ago_s is not None:
        parts.append(fill(_TEXT.running, hang["ago"], time=Safe(duration(row.ago_s))))
    known = (
        ("process", str(row.pid or "")),
        ("out_of_memory" if row.oom_it else "kills", row.oom_group),
        ("exception", row.exception),
        ("at", row.line),
        ("log", row.log),
    )
    parts += [fill(_TEXT.running, hang[key], what=_name(value)) for key, value in known if value]
    if row.consequence:
        parts.append(Safe(hang["consequence"]))
    return Safe("- " + str(texts["marks"]["comma"]).join(parts))


def _late(row: LateRow, verdict: str, lang: Lang) -> list[Safe]:
    """Return what a rank does, and on a second line who waits for it."""
    texts = words(lang)
    hang = texts["hang"]
    doing = texts["path_waits"].get(row.doing, hang["running"]).format(share="")
    who = {"rank": Safe(row.rank), "pid": Safe(row.pid), "doing": Safe(doing)}
    if row.host:
        who["host"] = _name(row.host)
    parts = [
        fill(_TEXT.running, hang["late_on_host" if row.host else "late"], **who),
        *(
            fill(_TEXT.running, hang[key], what=_name(value))
            for key, value in (("at", row.line), ("of", row.object), ("holder", row.whom))
            if value
        ),
    ]
    if row.idle_s is not None:
        parts.append(fill(_TEXT.running, hang["idle"], time=Safe(duration(row.idle_s))))
    missing = hang[{"mismatch": "differs", "spinning": "ahead"}.get(verdict, "missing")]
    known = {"number": Safe(row.number), "group": _name(row.group), "waiting": Safe(row.waiting)}
    return [
        Safe("- " + str(texts["marks"]["comma"]).join(parts)),
        Safe("    " + fill(_TEXT.running, missing, **known)),
    ]


def _name(text: str) -> Safe:
    return _TEXT.name(short(text, _LONG))
