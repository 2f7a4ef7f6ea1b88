"""known_fix: which known defects do the versions of this host and job have, and does the case show one of them?"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, model_validator

from whystall.tools.contract.findings import Finding, Severity, Subject
from whystall.tools.contract.params import LiveParams
from whystall.tools.contract.registry import Judgement, Tool
from whystall.tools.contract.result import Model
from whystall.tools.host.common.findings import finding, window
from whystall.tools.host.known_fix.case import COLLECTOR, signature_of, versions_of
from whystall.tools.known_fixes.match import known_defects
from whystall.tools.known_fixes.rows import DefectRow, defect_row
from whystall.tools.recording.collector import Need
from whystall.tools.recording.store import Recording

_PATH, _TEXT = 4096, 2000


class Params(LiveParams):
    """Parameters of known_fix."""

    duration: Annotated[float, Field(ge=0.1, le=600, description="seconds to observe")] = 0.1
    cause: Annotated[
        str | None, Field(min_length=1, max_length=100, description="id of the cause of a diagnosis: collective_hang")
    ] = None
    signature: Annotated[
        list[str] | None,
        Field(max_length=100, description="text that the case shows: error, function, frame; may be repeated"),
    ] = None
    xid: Annotated[
        list[str] | None, Field(max_length=100, description="number of an Xid of the driver: 119; may be repeated")
    ] = None
    log: Annotated[
        list[str] | None,
        Field(max_length=64, description="path of a log with the crash; versions in it count first; may be repeated"),
    ] = None

    @model_validator(mode="after")
    def _bounded(self) -> Params:
        if any(not 0 < len(path) <= _PATH for path in self.log or ()):
            raise ValueError(f"a path of log has 1 to {_PATH} characters")
        if any(not 0 < len(text) <= _TEXT for text in self.signature or ()):
            raise ValueError(f"a text of signature has 1 to {_TEXT} characters")
        if any(not (text.isascii() and text.isdigit() and 0 < len(text) < 4) for text in self.xid or ()):
            raise ValueError("an Xid is a number up to 999")
        return self


class VersionRow(Model):
    """A version of a component, and where it was found; `vendor_built`: a vendor may have changed it."""

    component: str
    version: str
    where: str
    vendor_built: bool = False


class Data(Model):
    """Defects by their standing (see `DefectRow`); only `relevant` ones may explain the case. `unseen`: components
    with known defects whose version was not found."""

    relevant: list[DefectRow] = Field(default_factory=list)
    possible: list[DefectRow] = Field(default_factory=list)
    affected: list[DefectRow] = Field(default_factory=list)
    fixed: list[DefectRow] = Field(default_factory=list)
    versions: list[VersionRow] = Field(default_factory=list)
    unseen: list[str] = Field(default_factory=list)


def judge(recording: Recording, params: Params) -> Judgement[Data]:
    """Return how the known defects stand to what `recording` and `params` state."""
    versions = versions_of(recording)
    signature = signature_of(
        recording,
        [params.cause] if params.cause else [],
        params.signature or (),
        [int(text) for text in params.xid or ()],
    )
    rows = [defect_row(one) for one in known_defects(versions, signature, recording.manifest.machine)]
    by = {name: [row for row in rows if row.standing == name] for name in ("relevant", "possible", "affected", "fixed")}
    found = [
        VersionRow(component=name, version=one.version, where=one.where, vendor_built=one.vendor_built)
        for name, several in sorted(versions.items())
        for one in several
    ]
    unseen = sorted({name for row in rows if row.standing == "unknown" for name in row.unseen})
    return Judgement(
        findings=[_finding(row, recording) for row in by["relevant"]],
        data=Data(**{name: some[: params.top] for name, some in by.items()}, versions=found, unseen=unseen),
        seen=sum(len(several) for several in versions.values()),
        totals={name: len(some) for name, some in by.items()} | {"versions": len(found)},
    )


def _finding(row: DefectRow, recording: Recording) -> Finding:
    target = recording.manifest.target
    subject = Subject(type="host", host=recording.manifest.host or None, pid=target.sole_pid)
    words = {"name": row.defect, "component": row.component, "version": row.version, "fixed": row.fixed}
    kept = {name: text for name, text in words.items() if text}
    bad = Severity.MAJOR if row.certain else Severity.MINOR
    return finding(
        "software.defect", subject, window(recording.manifest.window_ns), {"signs": len(row.shown)}, bad, kept
    )


TOOL = Tool(
    name="known_fix",
    title="Known defects and fixes",
    description=(
        "Known defects of the versions of kernel, driver, NCCL, PyTorch, vLLM and others that a host and a process "
        "have, matched with what the case shows (cause, error, function, Xid, log), and the versions that fix them."
    ),
    params=Params,
    data=Data,
    needs=lambda params: [Need(COLLECTOR), Need("device_log", optional=True)],
    judge=judge,
    kinds=frozenset({"software.defect"}),
)
