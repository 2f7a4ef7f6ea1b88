"""Apply a tool to a recording, and make the result."""

from __future__ import annotations

import errno
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.findings import Subject
from whystall.tools.contract.params import Params
from whystall.tools.contract.registry import ArtifactContent, Judgement, Tool
from whystall.tools.contract.result import Artifact, BlindSpot, Status, ToolResult
from whystall.tools.node.cgroups import of_path
from whystall.tools.recording.collector import Options
from whystall.tools.recording.followed import of_target
from whystall.tools.recording.home import home
from whystall.tools.recording.manifest import Manifest
from whystall.tools.recording.store import Recording

ARTIFACT_SCHEME = "whystall://artifacts/"
_PARTIAL = frozenset(
    {
        "events_lost",
        "odd_lines",
        "cut_short",
        "target_exited",
        "target_oom_killed",
        "not_proven",
        "sampled",
        "pages_in_part",
        "not_permitted",
        "hidden_processes",
        "no_engine",
        "below_threshold",
        "no_dispatch_thread",
        "ranks_missing",
        "ranks_unheard",
        "ranks_unread",
        "other_time",
    }
)


Draw = Callable[[Recording, Judgement[Any]], Sequence[ArtifactContent]]


def judge(tool: Tool[Any, Any], recording: Recording, params: Params, draw: Draw | None = None) -> ToolResult[Any]:
    """Return the result of `tool` on `recording`; findings get the ids ``<tool>.1``, ``<tool>.2``, ...

    The status is `partial` when part of the answer could not be observed, else `no_data` when collectors that were
    verified to work recorded no event. Artifacts, and those that `draw` makes, are written below the state directory.
    """
    needs = tool.needs(params)
    if not any(getattr(need.options, "follow_wakers", False) for need in needs):
        recording = of_target(recording)
    verdict = tool.judge(recording, params)
    extra = [BlindSpot(code=code, detail=detail) for code, detail in verdict.not_seen]
    extra += [spot for need in needs for spot in _thresholds(need.collector, need.options, recording)]
    coverage = recording.manifest.coverage([need.collector for need in needs], extra)
    if any(spot.code in _PARTIAL for spot in coverage.not_seen):
        status = Status.PARTIAL
    elif verdict.seen == 0:
        status = Status.NO_DATA
    else:
        status = Status.OK
    drawn = draw(recording, verdict) if draw else ()
    places = _Places(recording.manifest)
    return ToolResult[tool.data](  # type: ignore[name-defined]
        tool=tool.name,
        status=status,
        findings=[
            f.model_copy(update={"id": f"{tool.name}.{i}", "subject": places.of(f.subject)})
            for i, f in enumerate(verdict.findings, 1)
        ],
        coverage=coverage,
        data=verdict.data,
        totals=verdict.totals,
        artifacts=[write_artifact(content) for content in [*verdict.artifacts, *drawn]],
    )


class _Places:
    """Adds the container and pod to the subjects of findings."""

    def __init__(self, manifest: Manifest) -> None:
        self._of = {pid: entry for entry in manifest.containers for pid in entry.pids}
        self._containers = {entry.id: entry for entry in manifest.containers if entry.id is not None}
        self._pods = {entry.pod_uid: entry.pod for entry in manifest.containers if entry.pod_uid is not None}

    def of(self, subject: Subject) -> Subject:
        """Return `subject` with the place of its process, else of its control group."""
        entry = self._of.get(subject.pid) if subject.pid is not None else None
        if entry is not None:
            return subject.model_copy(update={"container": entry.id, "pod": entry.pod or entry.pod_uid})
        group = of_path(subject.cgroup) if subject.cgroup is not None else None
        if group is None or (group.container is None and group.pod_uid is None):
            return subject
        entry = self._containers.get(group.container or "")
        pod = entry.pod if entry is not None else self._pods.get(group.pod_uid or "")
        return subject.model_copy(update={"container": group.container, "pod": pod or group.pod_uid})


def _thresholds(collector: str, options: Options, recording: Recording) -> list[BlindSpot]:
    """Return a blind spot if the recording kept only events slower than the requested threshold."""
    entry = recording.manifest.collectors.get(collector)
    wanted, kept = getattr(options, "min_ns", None), entry.options.get("min_ns") if entry else None
    if wanted is None or kept is None or kept <= wanted:
        return []
    return [BlindSpot(code="below_threshold", detail=f"{collector} {kept / 1e6:g} ms")]


def artifact_path(uri: str) -> Path:
    """Return the file of an artifact's `uri`. Raises `ToolError` (not_found)."""
    name = uri.removeprefix(ARTIFACT_SCHEME)
    path = home() / "artifacts" / name
    if not uri.startswith(ARTIFACT_SCHEME) or "/" in name or name.startswith(".") or not path.is_file():
        raise ToolError(ErrorCode.NOT_FOUND, f"no artifact {uri!r}", "use a uri from a result's artifacts")
    return path


def write_artifact(content: ArtifactContent) -> Artifact:
    """Write `content` below the state directory. Raises `ToolError` (disk_full, io_error)."""
    directory = home() / "artifacts"
    name = f"{secrets.token_hex(4)}-{content.name}"
    path = directory / name
    data = content.text.encode()
    try:
        directory.mkdir(mode=0o700, exist_ok=True)
        path.write_bytes(data)
    except OSError as error:
        with suppress(OSError):
            path.unlink()
        raise ToolError(
            ErrorCode.DISK_FULL if error.errno in (errno.ENOSPC, errno.EDQUOT) else ErrorCode.IO_ERROR,
            f"cannot write artifact {path}: {error.strerror}",
            "free space, or set WHYSTALL_HOME to another directory",
        ) from error
    return Artifact(
        uri=ARTIFACT_SCHEME + name,
        title=content.title,
        media_type=content.media_type,
        bytes=len(data),
        path=str(path),
    )
