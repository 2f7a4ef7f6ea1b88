"""Pages of a critical path: its flame graph, and the lanes of its threads in time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from whystall.agent_server.presentation.flame_pages import drawn_as
from whystall.prompts.quantities import quantity
from whystall.prompts.render import words
from whystall.tools.contract.registry import ArtifactContent, Judgement
from whystall.tools.contract.text import clean
from whystall.tools.host.common.path_codes import RUNNING
from whystall.tools.host.critical_path.findings import thread_label
from whystall.tools.host.critical_path.lanes import PathLane, Span, path_lanes
from whystall.tools.host.critical_path.rows import INODE_NAMES
from whystall.tools.host.critical_path.stacks import PathFrame, path_stacks
from whystall.tools.stacks.build import Builder
from whystall.tools.stacks.tree import Part, call_tree
from whystall.tools.views.bubble_lanes import MOST_ARROWS, Arrow, Lane, Panel, Slice, short
from whystall.tools.views.path_lanes import path_lanes_page

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from whystall.tools.host.common.timelines import Timeline
    from whystall.tools.host.critical_path.rows import Row
    from whystall.tools.host.critical_path.world import World
    from whystall.tools.recording.store import Recording

Lang = Literal["en", "zh"]
_STACKS = 20_000
_DETAILS = ("cpu_details", "details")
_SLEEPS = ("sleep", "timeout", "poll", "events", "absent")
_NO_CPU = ("cpu", "quota")
_LOOKS = {
    RUNNING: "running",
    "absent": "dead",
    **dict.fromkeys(_NO_CPU, "runnable"),
    **dict.fromkeys(("lock", "interpreter_lock", "file_lock"), "lock"),
    **dict.fromkeys(
        ("queue", "queue_full", "barrier", "join", "pipe", "pipe_full", "child", "start_process"), "handover"
    ),
    **dict.fromkeys(("socket", "socket_full", "connect", "dns", "collective"), "network"),
    **dict.fromkeys(("file", "frozen_files", "page_fault", "swap", "memory", "io_uring"), "uninterruptible"),
    "device": "sync",
    **dict.fromkeys(("sleep", "timeout", "poll", "events", "signal", "terminal"), "sleeping"),
    **dict.fromkeys(("stopped", "traced", "frozen"), "stopped"),
}


def path_pages(recording: Recording, judged: Judgement[Any], lang: Lang) -> list[ArtifactContent]:
    """Draw the critical path; `judged.basis` is (`World`, `Timeline`, rows), None without a thread."""
    if judged.basis is None:
        return []
    world, line, rows = cast("tuple[World, Timeline, list[Row]]", judged.basis)
    texts: dict[str, Any] = words(lang)["path_page"] | {key: words(lang)["path"][key] for key in _DETAILS}
    known = (
        quantity(world.window_ns / 1e9, "s"),
        clean(recording.manifest.target.describe(), 200),
        clean(recording.manifest.host, 100),
    )
    lanes, left = path_lanes(world, line, rows)
    heading = str(texts["heading_lanes"]).format(thread_label(world, line.tid))
    notes = [str(texts["window_lanes"]).format(*known), str(texts["short_waits"])]
    drawn = _panel(world, lanes, left, texts)
    both = {**words(lang)["bubbles_page"], **texts}
    page = path_lanes_page(drawn, both, lang=lang, heading=heading, notes=notes)
    return [
        *_flame(world, line, rows, texts, str(texts["window"]).format(*known), lang),
        ArtifactContent(name="lanes.html", title=heading, media_type="text/html", text=page),
    ]


def _flame(
    world: World, line: Timeline, rows: Sequence[Row], texts: Mapping[str, Any], note: str, lang: Lang
) -> list[ArtifactContent]:
    made = Builder()
    event = made.event("critical_path", "ns")
    for frames, took in path_stacks(world, line, rows).most_common(_STACKS):
        numbers = [made.frame(_label(frame, texts), kind=_kind(frame)) for frame in frames]
        made.sample(made.stack(numbers), event, float(took))
    tree = call_tree(Part(made.profile("critical_path")))
    title = str(texts["heading"]).format(thread_label(world, line.tid))
    return drawn_as(tree, {**words(lang)["flame_page"], **texts}, title, ("ns", 0.0), ["", note], lang)


def _detail(code: str, detail: str, texts: Mapping[str, Any]) -> str:
    """Return the text of a detail that is a code, such as of a reason; others are names."""
    return str(texts["cpu_details" if code == "cpu" else "details"].get(detail, detail))


def _label(frame: PathFrame, texts: Mapping[str, Any]) -> str:
    if frame.sort in ("thread", "line"):
        return frame.text
    known = texts["modes"] if frame.sort == RUNNING else texts["waits"]
    detail = _detail(frame.text, frame.detail, texts)
    name = "" if frame.object.startswith(INODE_NAMES) else frame.object
    about = " ".join(text for text in (detail, name) if text)
    does = known.get(frame.text or "user", frame.text)
    return f"[{does}: {about}]" if about else f"[{does}]"


def _kind(frame: PathFrame) -> str:
    if frame.sort == RUNNING:
        return "native" if frame.text in ("", "user", "spin", "garbage_collection") else "kernel"
    if frame.sort == "wait":
        special = {"device": "device", **dict.fromkeys(_SLEEPS, "idle"), **dict.fromkeys(_NO_CPU, "launch")}
        return special.get(frame.text, "operator")
    return "thread" if frame.sort == "thread" else "python"


def _panel(world: World, lanes: Sequence[PathLane], left: int, texts: Mapping[str, Any]) -> Panel:
    drawn = [
        Lane(
            short(thread_label(world, lane.thread.tid)),
            *("thread", lane.thread.tid),
            [_slice(world, span, texts) for span in lane.spans],
            [],
        )
        for lane in lanes
    ]
    notes = [str(texts["lanes_left_out"]).format(left)] if left else []
    return Panel(0, world.window_ns, world.window_ns, drawn, list(_arrows(lanes))[:MOST_ARROWS], notes)


def _slice(world: World, span: Span, texts: Mapping[str, Any]) -> Slice:
    running = span.code == RUNNING
    name = str(texts["running"] if running else texts["waits"].get(span.code, span.code))
    inode = span.object.startswith(INODE_NAMES)
    text = (span.line or name) if running else f"{name}: {span.object}" if span.object and not inode else name
    more = [] if running or not span.line else [str(texts["code"]).format(span.inner or span.line)]
    if span.inner and span.inner != span.line:
        more += [str(texts["code"]).format(span.inner)] if running else [str(texts["called_by"]).format(span.line)]
    if span.detail:
        had_cpu = span.code == "cpu" and span.detail not in texts["cpu_details"]
        detail = _detail(span.code, span.detail, texts)
        more.append(str(texts["had_cpu"]).format(detail) if had_cpu else detail)
    if inode:
        more.append(span.object)
    if span.by:
        more.append(str(texts["ended_by"]).format(thread_label(world, span.by)))
    if span.joined > 1:
        more.append(str(texts["joined"]).format(span.joined))
    look = _LOOKS.get(span.code, "unknown")
    length = span.end_ns - span.start_ns
    return Slice(span.start_ns, length, look, short(clean(text, 400)), [short(clean(one, 400)) for one in more], 0)


def _arrows(lanes: Sequence[PathLane]) -> Iterator[Arrow]:
    """Yield arrows from the thread that ended a wait to the waiter, those of the first lane and longest waits first."""
    places = {lane.thread.tid: place for place, lane in enumerate(lanes)}
    for place, lane in enumerate(lanes):
        for span in sorted(lane.spans, key=lambda span: span.start_ns - span.end_ns):
            if span.joined == 1 and span.by in places and span.by != lane.thread.tid:
                yield Arrow("wake", places[span.by], span.end_ns, place, span.end_ns)
