"""What was seen of a kernel's row: the windows of one load, and what the load logged of itself.

`observing.py` takes them, in the guest whose kernel is tested; they may be judged on another host.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import anyio

from whystall.agent_server.app import App
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.result import ToolResult
from whystall.tools.recording.store import Recording

EDGE_NS = 300_000_000
_FILE = "windows.json"


@dataclass(frozen=True)
class Look:
    """One window: under which privilege, whether kprobes could have been used, and the recording it left."""

    privilege: str
    kprobes: bool
    place: Path
    trace_engine: str
    throttled: int
    """Periods in which the spinner's cgroup was throttled, at most."""
    softirqs: int
    """How many the kernel counted, at most."""

    @property
    def recording(self) -> Recording:
        return Recording.open(self.place, COLLECTORS)

    def judge(self, tool: str, **arguments: Any) -> ToolResult[Any]:
        """What `tool` says of it."""
        return anyio.run(lambda: App().run_tool(tool, arguments, source=self.place))


@dataclass(frozen=True)
class Load:
    """What the load logged.

    `pids`: its processes by role; `waits`: a thread that waits all the time; `spinning`, `reading`: the control groups
    of two roles; `device`: the disk that is written to.
    """

    pids: dict[str, int]
    waits: int
    spinning: str
    reading: str
    device: str
    lines: list[dict[str, Any]]

    def of(self, event: str) -> list[dict[str, Any]]:
        return [line for line in self.lines if line["event"] == event]

    def acts(self, event: str, look: Look) -> list[dict[str, Any]]:
        """Acts of one kind that lie in the window wholly."""
        start, end = span(look)
        return [line for line in self.of(event) if line["start_mono_ns"] >= start and line["end_mono_ns"] <= end]

    def touching(self, event: str, look: Look) -> list[dict[str, Any]]:
        """And those in part in it, or so near that an engine that began a little earlier may have seen them."""
        start, end = span(look)
        start, end = start - EDGE_NS, end + EDGE_NS
        return [line for line in self.of(event) if line["end_mono_ns"] > start and line["start_mono_ns"] < end]

    def cpu_s(self, look: Look) -> float:
        """CPU time that the spinner took in the window, by its own clock."""
        lines = [(line["at_mono_ns"], line["cpu_s"]) for line in self.of("used")]
        first, last = (_at(lines, moment) for moment in span(look))
        return last - first


def write(place: Path, load: Load, looks: dict[str, Look]) -> None:
    """Note in `place`, which holds the recordings, what belongs to them."""
    found = {name: {**asdict(look), "place": str(look.place.relative_to(place))} for name, look in looks.items()}
    (place / _FILE).write_text(json.dumps({"load": asdict(load), "looks": found}))


def read(place: Path) -> tuple[Load, dict[str, Look]]:
    """Return what `write` noted."""
    found = json.loads((place / _FILE).read_text())
    looks = {name: Look(**{**look, "place": place / look["place"]}) for name, look in found["looks"].items()}
    return Load(**found["load"]), looks


def span(look: Look) -> tuple[int, int]:
    """First and last instant of the window, CLOCK_MONOTONIC."""
    manifest = look.recording.manifest
    return manifest.start_ns, manifest.start_ns + manifest.window_ns


def _at(lines: list[tuple[int, float]], moment: int) -> float:
    """The value at `moment` on the line through the points around it."""
    before = max(line for line in lines if line[0] <= moment)
    after = min(line for line in lines if line[0] >= moment)
    if after == before:
        return before[1]
    return before[1] + (after[1] - before[1]) * (moment - before[0]) / (after[0] - before[0])
