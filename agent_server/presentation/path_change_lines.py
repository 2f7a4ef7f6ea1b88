"""The comparison of two critical paths as text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from whystall.knowledge_base.models import Lang
from whystall.prompts.escape import Safe, plain_code
from whystall.prompts.quantities import quantity
from whystall.prompts.render import voice, words
from whystall.tools.contract.findings import Finding
from whystall.tools.history.path_data import Comparison, PathChange, PathDifference

CHANGE = "step.change"
_SAME = ("unchanged", "cannot_tell")


class PathText(NamedTuple):
    """`head`: the thread, its steps, and how their length changed; `rows`: a line each; `left`: rows left out."""

    head: list[Safe]
    rows: list[Safe]
    left: int


def path_text(found: PathDifference | None, lang: Lang, most: int, findings: Sequence[Finding] = ()) -> PathText | None:
    """Return the comparison with at most `most` rows, those that changed with the ids of their `findings`; None without
    one."""
    if found is None:
        return None
    ids = iter([f.id for f in findings if f.kind == CHANGE])
    texts = _texts(lang)
    colon = words(lang)["marks"]["colon"]
    heading = texts[found.unit].format(
        who=thread_text(found), line=plain_code(found.step_line), count=found.after.count,
        count_before=found.before.count,
    )  # fmt: skip
    head = [Safe(heading)]
    if found.step is not None:
        head.append(Safe(f"{texts['whole']}{numbers_text(found.step, lang)}"))
    if found.tested is not None:
        head.append(Safe(texts["tested"].format(changed=found.changed, tested=found.tested)))
    rows = [
        Safe(f"{numbers_text(row, lang)}{colon}{part_text(row, lang)}{_cited(row, ids)}") for row in found.rows[:most]
    ]
    return PathText(head, rows, found.left_out + len(found.rows) - len(rows))


def _cited(row: PathChange, ids: Iterator[str]) -> str:
    id = next(ids, "") if row.verdict not in _SAME else ""
    return f" [{id}]" if id else ""


def thread_text(found: PathDifference) -> Safe:
    """Return the thread with its number."""
    return Safe(f"{plain_code(found.comm or '?')} ({found.tid})")


def part_text(row: PathChange, lang: Lang) -> Safe:
    """Return what the thread did, and what the one at the end of its chain of waits did."""
    known = {"mode": row.mode, "detail": row.detail, "function": row.line, "object": row.object}
    known |= {"by": row.by, "chain": row.chain, "root_by": row.root, "root_wait": row.root_what}
    known |= {"root_code": row.root_line, "root_object": row.root_object, "root_detail": row.root_detail}
    known |= {"root_mode": row.root_mode}
    return voice("txt", lang).path.row(row.what, known)


def numbers_text(one: Comparison, lang: Lang) -> Safe:
    """Return by how much a time changed, with its interval, or what could have been found."""
    texts = _texts(lang)
    known = {name: quantity(getattr(one, f"{name}_ms"), "ms") for name in ("before", "after")}
    if one.q_value is None or one.low_ms is None or one.high_ms is None:
        return Safe(texts["untested"].format(**known))
    if one.verdict in _SAME:
        return Safe(texts[one.verdict].format(**known, least=quantity(one.detectable_ms or 0.0, "ms")))
    sign = "+" if one.change_ms > 0 else ""
    known |= {"change": f"{sign}{quantity(one.change_ms, 'ms')}"}
    known |= {"p": f"{one.p_value or 0.0:.2g}", "q": f"{one.q_value:.2g}"}
    return Safe(texts["changed"].format(**known, low=quantity(one.low_ms, "ms"), high=quantity(one.high_ms, "ms")))


def _texts(lang: Lang) -> dict[str, Any]:
    found: dict[str, Any] = words(lang)["history"]["path"]
    return found
