"""One stack per instant: Python frames among the native ones of the same thread.

Each frame of the interpreter's evaluator stands for the Python frames it runs, up to where C called it. That is known
only where the native stack is whole; most builds of Python and of the C library keep no frame pointers, and then a few
innermost native frames are all there is. Nothing is guessed: what cannot be placed is left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from whystall.bpf.python_code import Frame
from whystall.tools.collect.samples_decode import Call
from whystall.tools.contract.text import PATH_LIMIT, clean

# The evaluator, also as compilers clone and split it; 3.14 can be built as one function per instruction.
_EVALUATOR = re.compile(r"^_?PyEval_EvalFrame(Default)?(\.|$)|^_TAIL_CALL_")
# What `-X perf` (3.12 and later) calls the code it makes for each Python function (Doc/howto/perf_profiling.rst).
_PERF = re.compile(r"^py::([^:]*):(.*)$", re.DOTALL)
_INTERPRETER = re.compile(r"^(lib)?python3?(\.\d+)?[a-z]*($|[-.])")
_NOWHERE = re.compile(r"^\[(unknown\]|anonymous|heap|stack)")

Native = tuple[str, str]
"""Name and module of a native frame."""


def merged(native: Sequence[Native], python: Sequence[Frame]) -> list[Call]:
    """The frames of one instant, innermost first, as both are given."""
    if not python:
        return _as_perf_says(native)
    # with `-X perf` both know the Python frames: the interpreter knows their lines
    native = [frame for frame in native if not _PERF.match(frame[0])]
    runs = _runs(python)
    at = [number for number, (name, _) in enumerate(native) if _EVALUATOR.match(name)]
    if len(at) != len(runs):
        return _leaf(native, at[0] if at else len(native)) + _python(python)
    calls: list[Call] = []
    reached = 0
    for position, run in zip(at, runs, strict=True):
        calls += _native(native[reached:position]) + _python(run)
        reached = position + 1
    return calls + _native(native[reached:])


def label(call: Call) -> str:
    """How a frame is called in text: ``save (train.py:212)``."""
    if call.kind != "python" or not call.file:
        return call.name
    file = os.path.basename(call.file) or call.file
    return f"{call.name} ({file}:{call.line})" if call.line else f"{call.name} ({file})"


def _runs(python: Sequence[Frame]) -> list[list[Frame]]:
    """Frames that one call of the evaluator runs, together."""
    runs: list[list[Frame]] = [[]]
    for frame in python:
        runs[-1].append(frame)
        if frame.entry:
            runs.append([])
    return [run for run in runs if run]


def _leaf(native: Sequence[Native], end: int) -> list[Call]:
    """The innermost native frames, as far as they surely lie within the innermost Python frame: the first is where the
    thread was; of its callers those that are no part of the interpreter, which may have been skipped over.
    """
    kept: list[Native] = []
    for number, (name, module) in enumerate(native[:end]):
        if number and (_NOWHERE.match(name) or _INTERPRETER.match(os.path.basename(module))):
            break
        kept.append((name, module))
    return _native(kept)


def _native(native: Iterable[Native]) -> list[Call]:
    return [Call(name, module, 0, "native") for name, module in native]


def _python(python: Iterable[Frame]) -> list[Call]:
    return [Call(clean(frame.name), _path(frame.file), frame.line, "python") for frame in python]


def _path(file: str) -> str:
    return clean(file, PATH_LIMIT)


def _as_perf_says(native: Sequence[Native]) -> list[Call]:
    """Without frames of the interpreter: those that a perf map names, whose lines are not known."""
    calls: list[Call] = []
    for name, module in native:
        found = _PERF.match(name)
        if found is None:
            calls.append(Call(name, module, 0, "native"))
            continue
        if calls and _EVALUATOR.match(calls[-1].name):  # runs this very function
            calls.pop()
        calls.append(Call(clean(found[1]), _path(found[2]), 0, "python"))
    return calls
