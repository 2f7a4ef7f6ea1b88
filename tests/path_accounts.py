"""What the critical path makes of a recording made by hand."""

from __future__ import annotations

from recordings import PID, Scene

from whystall.tools.contract.findings import Finding
from whystall.tools.host.critical_path.tool import TOOL, Data, PathRow
from whystall.tools.recording.judging import judge


def account_of(scene: Scene, **params: object) -> tuple[Data, list[Finding]]:
    """Return the account of the process `PID`, and the findings."""
    result = judge(TOOL, scene.build(), TOOL.params.model_validate({"pid": PID, **params}))
    assert isinstance(result.data, Data)
    return result.data, result.findings


def row(data: Data, what: str) -> PathRow:
    """Return the only row of the kind `what`."""
    (found,) = [one for one in data.rows if one.what == what]
    return found
