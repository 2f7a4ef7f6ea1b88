"""The first lines of hang: whether the job moves, which rank the others wait for, where it is, and for what."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import Safe, short
from whystall.prompts.render import FORMATS, fill, words

if TYPE_CHECKING:
    from whystall.tools.host.hang.tables import Data, LateRow

_TEXT = FORMATS["txt"]
_LONG = 120


def hang_lines(data: Data, lang: Lang) -> list[Safe]:
    """Return the verdict, a line per rank to look at, and what was not read."""
    texts = words(lang)
    hang, marks = texts["hang"], texts["marks"]
    lines = [Safe(f"{texts['labels']['verdict']}{marks['colon']}{hang['verdicts'][data.verdict]}")]
    lines += [line for row in data.late for line in _late(row, data.verdict, lang)]
    if data.absent:
        lines.append(Safe("  " + fill(_TEXT.running, hang["absent"], ranks=_name(data.absent))))
    return lines


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
    missing = hang["differs" if verdict == "mismatch" else "missing"]
    known = {"number": Safe(row.number), "group": _name(row.group), "waiting": Safe(row.waiting)}
    return [
        Safe("- " + str(texts["marks"]["comma"]).join(parts)),
        Safe("    " + fill(_TEXT.running, missing, **known)),
    ]


def _name(text: str) -> Safe:
    return _TEXT.name(short(text, _LONG))
