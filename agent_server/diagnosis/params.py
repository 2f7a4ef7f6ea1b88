"""The parameters of a diagnosis, as the command line and MCP declare them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from pydantic import Field

from whystall.agent_server.inputs.calibration import check_source
from whystall.agent_server.settings.engines import Engine
from whystall.tools.collect.serving.scrape import endpoint_of
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import TargetParams
from whystall.tools.ranks.params import BaselineName, RankParams


class DiagnoseParams(TargetParams):
    """What to diagnose: a process, a cgroup or the host; or, with `traces`, the ranks of a job."""

    traces: Annotated[
        str | None,
        Field(min_length=1, max_length=4096, description="path of the traces of a job's ranks, a directory"),
    ] = None
    baseline: Annotated[
        BaselineName | None,
        Field(description="with traces: stored runs to compare with (`whystall baselines`)"),
    ] = None
    topology: Annotated[
        list[str] | None,
        Field(max_length=4096, description="with traces: topology files of their hosts"),
    ] = None
    before: Annotated[
        str | None,
        Field(min_length=1, max_length=4096, description="earlier recording"),
    ] = None
    log: Annotated[
        list[str] | None,
        Field(max_length=4096, description="path of a log of a crashed job or host, or a directory; repeatable"),
    ] = None
    scheduler: Annotated[str | None, RankParams.model_fields["scheduler"]] = None
    jobs: Annotated[int | None, RankParams.model_fields["jobs"]] = None

    duration: Annotated[float, Field(ge=1, le=600, description="seconds to observe in all")] = 12.0
    symptom: Annotated[str, Field(max_length=2000, description="what was noticed, in any words")] = ""
    ticket: Annotated[bool, Field(description="draft a ticket unless healthy or idle")] = False
    profile: Annotated[
        str | None,
        Field(min_length=1, max_length=4096, description="path of an accelerator profile of the same time"),
    ] = None
    metrics_url: Annotated[
        str | None, Field(max_length=2048, description="inference server: http://127.0.0.1:8000/metrics")
    ] = None
    llm: Annotated[bool, Field(description="let the language model of WHYSTALL_LLM_* drive; the rules finish")] = False
    calibrate: Annotated[
        bool, Field(description="also try direct I/O beside buffered: writes a temporary file, 256 MiB in all")
    ] = False
    engine: Annotated[Engine, Field(description="how to observe")] = "auto"

    def check(self, source: Path | None) -> None:
        """Raise `ToolError` (bad_argument) for parameters that would be ignored, given the recording `source`."""
        if self.baseline is not None and self.traces is None and (source is None or not source.is_dir()):
            message = "baseline compares the operators of traces"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give it with traces, or with a recording of gather")
        if self.before is not None and (self.traces is not None or self.log):
            message = "before compares a process with an earlier recording of it: traces and logs exclude it"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "for traces: `whystall run compare_runs`")
        if self.topology and self.traces is None:
            message = "topology states where the ranks of traces run"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give it with traces")
        if self.metrics_url is not None:
            endpoint_of(self.metrics_url)
            if self.log or self.traces is not None or source is not None:
                message = "metrics_url is read while a process is observed: logs, traces and recordings exclude it"
                raise ToolError(ErrorCode.BAD_ARGUMENT, message, "leave it out")
        named = [name for name in ("pid", "comm", "cgroup") if getattr(self, name) is not None]
        if self.log:
            beside = [
                *named,
                *(name for name in ("traces", "profile") if getattr(self, name)),
                *(["a recording"] * bool(source)),
            ]
            if beside:
                message = f"log names what is judged: {', '.join(beside)} cannot"
                raise ToolError(ErrorCode.BAD_ARGUMENT, message, "leave it out")
            return
        if self.traces is not None:
            if source is not None:
                raise ToolError(ErrorCode.BAD_ARGUMENT, "traces and a recording exclude each other", "give one of them")
            if named or self.profile:
                message = f"traces name the job: {', '.join([*named, *(['profile'] if self.profile else [])])} cannot"
                raise ToolError(ErrorCode.BAD_ARGUMENT, message, "leave it out; the slow rank's process is found")
        elif source is not None and self.calibrate:
            check_source(self)
        elif source is not None and named:
            message = f"{named[0]} cannot select a part of a recording"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"leave it out, or record again with --{named[0]}")
        elif self.scheduler or self.jobs:
            raise ToolError(ErrorCode.BAD_ARGUMENT, "scheduler and jobs read traces", "give them together with traces")
