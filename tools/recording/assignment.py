"""Assign collectors to engines, and load and start the engines."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.recording.collector import Engine, Options
from whystall.tools.recording.target import Target


@dataclass
class Assignment:
    """The collectors (with their options) that `engine` serves; `why`: per collector, why no preferred engine does."""

    engine: Engine
    index: int
    """Position among all engines, in order of preference."""
    options: dict[str, Options]
    why: dict[str, str]


@dataclass(frozen=True)
class Request:
    """What a window asks of the engines.

    `engines` are factories in order of preference, `choice` the name of the only engine wanted, or ``auto``. A window
    can do without the collectors in `optional`. `check` raises when the window is cancelled.
    """

    options: dict[str, Options]
    optional: Collection[str]
    target: Target
    engines: Sequence[Callable[[], Engine]]
    choice: str
    check: Callable[[], None]


def can_serve(collector: str, engines: Sequence[Callable[[], Engine]], choice: str = "auto") -> bool:
    """Return whether some engine reports that it can serve `collector` here; it may still fail to start."""
    return any(
        collector in engine.serves and _allowed(engine, collector, engines, choice) and engine.unavailable() is None
        for engine in (make() for make in engines)
    )


def start_engines(request: Request) -> tuple[list[Assignment], int, dict[str, str]]:
    """Load and start engines; when one fails to start, its collectors go to the next engine that can serve them.

    Return the assignments, the start of the window (ns of CLOCK_MONOTONIC), and the optional collectors that no engine
    serves, with the reasons.
    """
    failed: dict[int, ToolError] = {}
    while True:
        assignments, left_out = _load(request, failed)
        starts: list[int] = []
        try:
            for assignment in assignments:
                request.check()
                starts.append(assignment.engine.start())
        except ToolError as error:  # again from the beginning, without this engine
            close_engines(assignments)
            failed[assignment.index] = error
        except BaseException:
            close_engines(assignments)
            raise
        else:
            return assignments, min(starts, default=time.monotonic_ns()), left_out


def close_engines(assignments: list[Assignment]) -> None:
    """Close all engines, the last started first, also when one raises."""
    with ExitStack() as stack:
        for assignment in assignments:
            stack.callback(assignment.engine.close)


def _load(request: Request, failed: dict[int, ToolError]) -> tuple[list[Assignment], dict[str, str]]:
    """Load the engines that serve the requested collectors, without those that `failed` to start (by index).

    Return the assignments, and why the optional collectors left out are not served. An engine that could serve one but
    fails is an error for an optional collector too.
    """
    engines, choice = request.engines, request.choice
    assignments: list[Assignment] = []
    waiting = dict(request.options)
    reasons: dict[str, list[str]] = {name: [] for name in waiting}
    last: ToolError | None = None
    tried: set[str] = set()
    try:
        for index, make in enumerate(engines):
            request.check()
            engine = make()
            own = {n: o for n, o in waiting.items() if n in engine.serves and _allowed(engine, n, engines, choice)}
            if index in failed:
                last = failed[index]
                problem: str | None = _reason(last)
            else:
                problem = engine.unavailable() if own else None
            if problem is None:
                given = set(own)
                own, error = _load_engine(engine, own, request.target, reasons)
                last = error or last
                tried |= given - own.keys() if error else set()
            else:
                for name in own:
                    reasons[name].append(f"{engine.name}: {problem}")
                own = {}
            if not own:
                continue
            assignments.append(Assignment(engine, index, own, {n: "; ".join(reasons[n]) for n in own}))
            waiting = {n: o for n, o in waiting.items() if n not in own}
        left_out = {
            name: "; ".join(reasons[name]) or f"no engine {choice!r} serves it"
            for name in waiting
            if name in request.optional and name not in tried
        }
        unserved = next((name for name in waiting if name not in left_out), None)
        if unserved is not None:
            raise last or _no_engine(unserved, reasons[unserved], request)
    except BaseException:
        close_engines(assignments)
        raise
    return assignments, left_out


def _no_engine(collector: str, reasons: list[str], request: Request) -> ToolError:
    others = list(dict.fromkeys(e.name for e in (make() for make in request.engines) if collector in e.serves))
    if not reasons and request.choice != "auto" and others:
        why, remedy = f"no engine {request.choice!r} serves it", f"choose auto or {' or '.join(others)}"
    else:
        why, remedy = "; ".join(reasons) or "no engine serves it", "run `whystall doctor`"
    return ToolError(ErrorCode.NO_ENGINE, f"nothing can observe {collector}: {why}", remedy)


def _load_engine(
    engine: Engine, options: dict[str, Options], target: Target, reasons: dict[str, list[str]]
) -> tuple[dict[str, Options], ToolError | None]:
    """Load `engine` for those collectors of `options` that it can serve, and return them; append to `reasons` why it
    does not serve the others.

    After a failed load, an engine that reports by `cannot` which collectors failed is loaded once more without them.
    """
    last: ToolError | None = None
    for _ in range(2):
        for name in [n for n in options if engine.cannot(n) is not None]:
            reasons[name].append(f"{engine.name}: {engine.cannot(name)}")
            options.pop(name)
        if not options:
            break
        try:
            engine.load(options, target)
        except ToolError as error:
            engine.close()
            last = error
            if all(engine.cannot(name) is None for name in options):
                break
        except BaseException:
            engine.close()  # interrupted half-way: nothing may stay attached
            raise
        else:
            return options, None
    for name in options:
        reasons[name].append(f"{engine.name}: {_reason(last)}" if last else engine.name)
    return {}, last


def _reason(error: ToolError) -> str:
    return f"{error.code.value}: {error.message}"


def _allowed(engine: Engine, collector: str, engines: Sequence[Callable[[], Engine]], choice: str) -> bool:
    """Return whether `choice` allows `engine` to serve `collector`.

    A collector with a single engine may use it even if `choice` names an earlier one (/proc is read beside all of
    them), but not if it names a later one: with ``procfs`` no program is loaded.
    """
    if choice in ("auto", engine.name):
        return True
    names = [make().name for make in engines]
    if choice not in names or sum(collector in make().serves for make in engines) > 1:
        return False
    return engine.name in names[names.index(choice) :]
