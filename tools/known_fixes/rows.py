"""What results and tickets state about a known defect."""

from __future__ import annotations

from pydantic import Field

from whystall.tools.contract.result import Model
from whystall.tools.known_fixes.catalogue import DefectKind, Symptom
from whystall.tools.known_fixes.match import Known, Standing


class DefectRow(Model):
    """A known defect and a case.

    `standing`: relevant (the version is affected, and the case shows what identifies the defect), possible (the same
    kind of symptom only), affected (the version alone: no claim), unknown (a version was not seen), fixed. `certain`:
    False if a vendor may have fixed it in this build. `shown`: what the case shows of it; `unseen`: components without
    a version. `fixed`: first version without it, of `upgrade`; empty if the source names none. `where`: see the
    collector ``versions``. `date`: of the source, empty if it states none.
    """

    defect: str
    standing: Standing
    component: str
    version: str = ""
    certain: bool = True
    affected: str
    upgrade: str
    fixed: str = ""
    kind: DefectKind
    shown: list[str] = Field(default_factory=list)
    unseen: list[str] = Field(default_factory=list)
    where: str = ""
    symptom: Symptom
    source: str
    date: str = ""


def defect_row(known: Known) -> DefectRow:
    """Return `known` as a row, with its first source."""
    defect, source = known.defect, known.defect.sources[0]
    return DefectRow(
        defect=defect.id,
        standing=known.standing,
        component=defect.component,
        version=known.version,
        certain=known.certain,
        affected=defect.affected,
        upgrade=defect.fixed_component or defect.component,
        fixed=defect.fixed or "",
        kind=defect.kind,
        shown=list(known.shown),
        unseen=list(known.unseen),
        where=known.where,
        symptom=defect.symptom,
        source=source.url,
        date=source.date.isoformat() if source.date else "",
    )
