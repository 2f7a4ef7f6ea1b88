"""Open stack samples: from one path, or the two profiles to compare."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel

from whystall.agent_server.inputs.recordings import open_source
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.params import LiveParams, Params
from whystall.tools.contract.registry import Tool
from whystall.tools.contract.text import clean
from whystall.tools.recording.store import Recording

_BEFORE, _AFTER = "before", "after"
_SAMPLES = "samples"
# Events of a recording that are not of its samples.
_OTHER_COLLECTORS = ("off-cpu", "accelerator-calls", "accelerator-time")
# Parameters that select the stacks of a source.
_CHOICES = ("event", "rank", "step", "idle")
_EVENT = "event"
_REMEDY = "give a recording, an accelerator's profile, or stack samples (folded, perf script, pprof, speedscope ...)"


def compares(tool: Tool[Any, Any]) -> bool:
    """Return whether `tool` compares two profiles of stacks, which its parameters name."""
    return tool.reads == "stacks" and {_BEFORE, _AFTER} <= tool.params.model_fields.keys()


def observes(tool: Tool[Any, Any]) -> bool:
    """Return whether `tool` can observe a host itself if there is no source."""
    return issubclass(tool.params, LiveParams)


def open_samples(tool: Tool[Any, Any], params: Params, source: Path | None) -> Recording:
    """Return the stacks for `tool`: at `source`, or the two profiles that `params` names.

    A recording with samples is returned unchanged, with the coverage of its window. Raises `ToolError`: bad_argument if
    both or neither are given; missing_collector for a recording without samples if the tool needs them; what opening
    raises.
    """
    if compares(tool):
        return _both(tool, params, source)
    if source is None:
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{tool.name} needs stack samples to read", _REMEDY)
    options = _options(params)
    if _is_recording(source):
        recording = open_source(source)
        asked = options.keys() - {_EVENT} or options.get(_EVENT) in _OTHER_COLLECTORS
        if recording.has(_SAMPLES) and not asked:
            return recording
        if observes(tool):
            recording.table(f"{_SAMPLES}.samples")  # raises: waits are no substitute for samples
    return _recorded(source, options)


def _both(tool: Tool[Any, Any], params: Params, source: Path | None) -> Recording:
    """Return the profile ``after``, with the profile ``before`` in it."""
    from whystall.tools.profiles.common.open_stacks import open_stacks
    from whystall.tools.stacks.recorded import recording_of

    before, after = (getattr(params, name) for name in (_BEFORE, _AFTER))
    if source is not None:
        message = f"{tool.name} compares two profiles: a single recording cannot be judged"
        raise ToolError(ErrorCode.BAD_ARGUMENT, message, "give before and after instead")
    if not before or not after:
        absent = " and ".join(name for name, given in ((_BEFORE, before), (_AFTER, after)) if not given)
        raise ToolError(ErrorCode.BAD_ARGUMENT, f"{tool.name} needs {absent}", _REMEDY)
    shared = _options(params)
    sides = {}
    for name, path in ((_BEFORE, before), (_AFTER, after)):
        rank = getattr(params, f"{name}_rank", None)
        sides[name] = open_stacks(path, **shared, **({"rank": rank} if rank is not None else {}))
    return recording_of(sides[_AFTER], name=_compared(Path(before), Path(after)), before=sides[_BEFORE])


def _compared(before: Path, after: Path) -> str:
    """Return both names on one line; with their directories if they are equal."""
    names = [path.name for path in (before, after)]
    if names[0] == names[1]:
        names = ["/".join(path.parts[-2:]) for path in (before, after)]
    return " -> ".join(clean(name) for name in names)


def _recorded(source: Path, options: dict[str, Any]) -> Recording:
    from whystall.tools.profiles.common.open_stacks import open_stacks
    from whystall.tools.stacks.recorded import recording_of

    return recording_of(open_stacks(source, **options), name=clean(source.name))


def _options(params: BaseModel) -> dict[str, Any]:
    """Return the parameters that select stacks, as far as they are set."""
    given = {name: getattr(params, name, None) for name in _CHOICES}
    return {name: value for name, value in given.items() if value is not None and value is not False and value != ""}


def _is_recording(source: Path) -> bool:
    try:
        return (source / "manifest.json").is_file()
    except (OSError, ValueError):  # a name that is too long, or with a NUL
        return False
