"""The first lines of collective_live: who enters which operation last, and who has not returned."""

from __future__ import annotations

from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import Safe, short
from whystall.prompts.quantities import quantity
from whystall.prompts.render import FORMATS, fill, words

if TYPE_CHECKING:
    from whystall.tools.ranks.collective_live.tool import BeforeRow, Data, KindRow, LateRow, OpenRow

_TEXT = FORMATS["txt"]
_LONG = 120
_LATE, _OPEN, _BEFORE = 5, 3, 4
_LONG_OPEN_S = 1.0  # in a healthy job, too, some call is in progress at any instant


def collective_lines(data: Data, lang: Lang) -> list[Safe]:
    """Return the verdict, what was compared, a line per late rank, and calls in progress for a second or longer."""
    texts = words(lang)
    found = texts["collectives"]
    lines = [Safe(f"{texts['labels']['verdict']}{texts['marks']['colon']}{found['verdicts'][data.verdict]}")]
    if data.calls:
        known = {"calls": Safe(quantity(data.calls, "count")), "matched": Safe(quantity(data.matched, "count"))}
        known["cost"] = Safe(quantity(data.cost_pct, "pct"))
        lines.append(Safe("  " + fill(_TEXT.running, found["calls"], ranks=Safe(data.ranks), **known)))
    if data.absent:
        lines.append(Safe("  " + fill(_TEXT.running, found["absent"], ranks=Safe(data.absent))))
    if data.clock_ms is not None:
        lines.append(Safe("  " + fill(_TEXT.running, found["clocks"], residual=Safe(quantity(data.clock_ms, "ms")))))
    if data.no_clock:
        lines.append(Safe("  " + fill(_TEXT.running, found["no_clock"], ranks=Safe(data.no_clock))))
    for row in data.late[:_LATE]:
        times = {"late": row.late_ms, "low": row.low_ms, "high": row.high_ms, "lost": row.lost_ms}
        blanks = {name: Safe(quantity(value, "ms")) for name, value in times.items()}
        blanks |= {name: Safe(getattr(row, name)) for name in ("last", "compared")} | _who(row)
        lines.append(Safe("- " + fill(_TEXT.running, found["late"], what=_what(row, lang), **blanks)))
    lines += [_open(row, lang) for row in data.open if row.open_s >= _LONG_OPEN_S][:_OPEN]
    for one in data.before[:_BEFORE]:
        lines.append(Safe("- " + fill(_TEXT.running, found["before"], function=_name(one.function), **_who(one))))
    return lines


def _who(row: LateRow | BeforeRow) -> dict[str, Safe]:
    place = Safe(f"{_name(row.host)}, pid {row.pid}" if row.host else f"pid {row.pid}")
    return {"rank": Safe(row.rank), "place": place}


def _open(row: OpenRow, lang: Lang) -> Safe:
    texts = words(lang)
    found = texts["collectives"]
    known = {"seconds": Safe(quantity(row.open_s, "s")), "what": _what(row, lang), "inside": Safe(row.inside)}
    parts = [fill(_TEXT.running, found["open"], **known)]
    if row.outside:
        parts.append(fill(_TEXT.running, found["outside"], ranks=Safe(row.outside)))
    return Safe("- " + str(texts["marks"]["semicolon"]).join(parts))


def _what(row: KindRow, lang: Lang) -> Safe:
    """Return an operation with its group and size, as far as they are known."""
    found = words(lang)["collectives"]
    text = Safe(row.op)
    if row.group:
        text = Safe(fill(_TEXT.running, found["group"], op=text, group=_name(row.group)))
    if row.size_bytes is not None:
        text = Safe(fill(_TEXT.running, found["size"], what=text, size=Safe(quantity(row.size_bytes, "bytes"))))
    return text


def _name(text: str) -> Safe:
    return _TEXT.name(short(text, _LONG))
