"""Open the ranks of a job: from the directories of their traces, or from a recording of them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from whystall.agent_server.inputs.recordings import open_source
from whystall.knowledge_base.operator_baselines import OperatorBaselines
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.registry import Tool
from whystall.tools.ranks.traces.gather import gather, with_before
from whystall.tools.recording.manifest import CollectorManifest
from whystall.tools.recording.store import Recording

_BASELINE = "baseline"
_OF_HOST = (
    "compare what two of them waited for with `whystall run critical_path --from AFTER --before BEFORE`, and which"
    " functions ran with `whystall run flamegraph_diff --before BEFORE --after AFTER`"
)
_NOW, _NOW_ALSO, _BEFORE = "traces", "after", "before"


@dataclass(frozen=True)
class Runs:
    """Directories of ranks: `now` of the run in question, `before` of an earlier one. `scheduler`: address of a Dask
    cluster that reads them; `jobs`: number of local processes that do.
    """

    now: str | None = None
    before: str | None = None
    scheduler: str | None = None
    jobs: int | None = None


def runs_named(params: BaseModel) -> Runs:
    """Return the directories that `params` names: ``traces`` or ``after``, and ``before``."""
    given = {name: getattr(params, name, None) for name in (_NOW, _NOW_ALSO, _BEFORE, "scheduler", "jobs")}
    return Runs(given[_NOW] or given[_NOW_ALSO], given[_BEFORE], given["scheduler"], given["jobs"])


def open_job(tool: Tool[Any, Any], params: BaseModel, source: Path | None) -> Recording:
    """Return the ranks for `tool`: from the directories that `params` names, or from the recording `source`.

    Raises `ToolError`: bad_argument if both or neither are given, or one of two runs is missing; what reading raises.
    """
    runs = runs_named(params)
    wanted = [name for name in (_NOW, _BEFORE, _NOW_ALSO) if name in tool.params.model_fields]
    options = " and ".join(wanted)
    named = bool(runs.now or runs.before)
    if source is not None and named:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{options} and a recording exclude each other", "give one of them")
    if source is not None:
        return open_source(source)
    stored = getattr(params, "baseline", None) is not None
    if stored and runs.before is not None:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "before and baseline exclude each other", "give one of them")
    if runs.now is None or (_BEFORE in wanted and runs.before is None and not stored):
        message = f"{tool.name} needs {options}: directories with the traces of the ranks"
        live = ", or observe the running job (live)" if "live" in tool.params.model_fields else ""
        live += ", or a baseline in place of before" if "baseline" in tool.params.model_fields else ""
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"give them, or a recording made by `whystall gather`{live}")
    if _BEFORE in wanted and _of_host(runs.now):
        message = f"{runs.now} is a recording of a host, and has no traces of ranks"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, _OF_HOST)
    return gathered(runs)


def _of_host(place: str) -> bool:
    """Return whether the directory `place` is a recording of `whystall record`."""
    try:
        return "switches" in json.loads((Path(place) / "manifest.json").read_bytes())["collectors"]
    except (OSError, ValueError, KeyError, TypeError):  # traces; also a URL
        return False


def with_baseline(recording: Recording, baselines: OperatorBaselines, name: str) -> Recording:
    """Return a copy of `recording` that also holds the stored runs `name`, as the collector ``baseline``. Raises
    `ToolError` (not_found, database)."""
    tables = baselines.load(name)
    manifest = recording.manifest.model_copy(deep=True)
    count = tables["latencies"].height
    manifest.collectors[_BASELINE] = CollectorManifest(
        engine="knowledge_base", seen=count, kept=count, proven=count > 0, not_seen=[]
    )
    added = {f"{_BASELINE}.{table}": frame for table, frame in tables.items()}
    return Recording.in_memory(manifest, recording.tables() | added)


def gathered(runs: Runs) -> Recording:
    """Read the ranks below ``runs.now``, and those of the earlier run if there is one.

    Raises `ToolError`: bad_argument if no directory is named; what reading raises.
    """
    if runs.now is None:
        raise ToolError(ErrorCode.BAD_ARGUMENT, "no directory of ranks is named", "give the directory of their traces")
    recording = gather(runs.now, scheduler=runs.scheduler, jobs=runs.jobs)
    if runs.before is None:
        return recording
    return with_before(recording, runs.before, scheduler=runs.scheduler, jobs=runs.jobs)
