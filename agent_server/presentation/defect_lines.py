"""Sentences about known defects, for results, diagnoses and tickets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from whystall.knowledge_base.models import Diagnosis, Lang
from whystall.prompts.escape import Safe, short
from whystall.prompts.render import FORMATS, render, words
from whystall.tools.known_fixes.catalogue import components
from whystall.tools.known_fixes.rows import DefectRow
from whystall.tools.known_fixes.versions import parsed

if TYPE_CHECKING:
    from whystall.agent_server.inputs.package_sources import Offer
    from whystall.tools.host.known_fix.tool import Data

_LONG = 200


def defect_text(row: DefectRow, suffix: str, lang: Lang) -> Safe:
    """Return the defect, what the case shows of it, and the upgrade with its source; foreign text escaped for the
    format `suffix` (txt, md)."""
    texts, marks = words(lang)["known_fixes"], words(lang)["marks"]
    name = FORMATS[suffix].name
    blank = "" if lang == "zh" else " "
    parts = [
        texts["has" if row.certain else "may"].format(
            component=row.component, version=name(short(row.version, _LONG)), symptom=row.symptom.get(lang)
        )
    ]
    if row.shown:
        shown = [_shown(one, lang) for one in row.shown[:4]]
        parts.append(texts["because"].format(shown=marks["comma"].join(shown)))
    todo = texts["upgrade"].format(upgrade=row.upgrade, fixed=row.fixed) if row.fixed else texts["no_fix"]
    source = texts["source" if row.date else "undated"].format(url=row.source, date=row.date)
    parts.append(f"{todo} {source}")
    return Safe(blank.join(parts))


def _shown(text: str, lang: Lang) -> str:
    """Return what the case shows (``function ncclCommAbort``, a word of the catalogue) in `lang`."""
    kind, _, what = text.partition(" ")
    return str(words(lang)["known_fixes"]["shown"][kind].format(what))


def known_fix_lines(data: Data, lang: Lang) -> list[Safe]:
    """Return the first lines of known_fix: what fits the case, what may, and what is affected by version alone."""
    texts, marks = words(lang)["known_fixes"], words(lang)["marks"]
    lines: list[Safe] = []
    if data.relevant:
        lines += [Safe(f"{texts['heading']}{marks['colon']}".rstrip()), *_list(data.relevant, lang)]
    else:
        lines.append(Safe(texts["none"]))
    if data.possible:
        lines += [Safe(f"{texts['apart']}{marks['colon']}".rstrip()), *_list(data.possible, lang)]
    if data.affected:
        named = marks["comma"].join(f"{row.defect} ({row.component} {row.version})" for row in data.affected)
        lines.append(Safe(texts["affected_only"].format(defects=named)))
    if data.unseen:
        lines.append(Safe(texts["unseen"].format(components=marks["comma"].join(data.unseen))))
    return lines


def _list(rows: Sequence[DefectRow], lang: Lang) -> list[Safe]:
    return [Safe(f"- {defect_text(row, 'txt', lang)}") for row in rows]


def upgrade_plan(diagnosis: Diagnosis, lang: Lang) -> Safe:
    """Return a plan, as Markdown, for each upgrade that would end a defect which the case shows; empty without any.

    A person executes it: nothing here does.
    """
    plans: dict[str, dict[str, object]] = {}
    for row in upgrades(diagnosis):
        plans.setdefault(
            row.upgrade,
            {
                "name": row.upgrade,
                # of another component than the one with the defect no version is known
                "version": row.version if row.upgrade == row.component else f"{row.component} {row.version}",
                "fixed": row.fixed,
                "why": defect_text(row, "md", lang),
                "restart": components()[row.upgrade].restart,
            },
        )
    if not plans:
        return Safe("")
    return Safe(render(f"upgrade_plan.{lang}.md", lang, plans=list(plans.values())).strip())


def upgrades(diagnosis: Diagnosis) -> list[DefectRow]:
    """Return the defects that the case shows and that a version fixes, per component the one with the newest first."""
    rows = [row for row in diagnosis.known_fixes if row.standing == "relevant" and row.fixed]
    return sorted(rows, key=lambda row: parsed(row.fixed), reverse=True)


def check_text(check: Offer, lang: Lang) -> Safe:
    """Return what a package source offers."""
    name = FORMATS["txt"].name
    text = words(lang)["known_fixes"]["check"][check.state]
    return Safe(
        text.format(
            manager=check.manager,
            package=check.package,
            component=check.component,
            version=name(check.version),
            wanted=check.wanted,
            why=name(short(check.why, _LONG)),
        )
    )
