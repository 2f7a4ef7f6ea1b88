"""Merge the Python frames of a thread into its native stack.

Each native frame of the interpreter's evaluator is replaced by the Python frames it runs. That needs a complete native
stack; most builds of Python and of the C library have no frame pointers, so that only a few innermost frames are known.
Native frames whose place is unknown are left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from whystall.bpf.python_code import Frame
from whystall.tools.collect.frames import Call
from whystall.tools.contract.text import PATH_LIMIT, clean
from whystall.tools.stacks.libraries import short_path
from whystall.tools.stacks.names import host_call_kind

# The evaluator, also as compilers clone and split it; 3.14 can be built as one function per instruction.
_EVALUATOR = re.compile(r"^_?PyEval_EvalFrame(Default)?(\.|$)|^_TAIL_CALL_")
# Symbol of each Python function under `-X perf` (3.12 and later; Doc/howto/perf_profiling.rst): py::save:/job/train.py
_PERF = re.compile(r"^py::([^:]*):(.*)$", re.DOTALL)
_INTERPRETER = re.compile(r"^(lib)?python3?(\.\d+)?[a-z]*($|[-.])")
_NOWHERE = re.compile(r"^\[(unknown\]|anonymous|heap|stack)")

COLLECTOR = "[garbage collector]"

Native = tuple[str, str]
"""Name and module of a native frame."""


def merged(native: Sequence[Native], python: Sequence[Frame]) -> list[Call]:
    """Merge both stacks; all are innermost first."""
    if not python:
        return _from_perf_map(native)
    # with `-X perf` both stacks have the Python frames; those of the interpreter have lines
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


def with_collector(calls: Sequence[Call]) -> list[Call]:
    """Return `frames` (outermost first) with one added for the garbage collector, called by the innermost Python frame:
    stripped interpreters have no names for its functions."""
    at = max((number for number, call in enumerate(calls) if call.kind == "python"), default=-1) + 1
    return [*calls[:at], Call(COLLECTOR, "", 0, "native"), *calls[at:]]


def with_accelerator_call(calls: Sequence[Call], name: str) -> list[Call]:
    """Return `calls` (outermost first) with the call into an accelerator's library, ``GPU: launch kernel
    (cuLaunchKernel)``: in place of the native frame of its function if that is known, else beneath the innermost Python
    frame, of a thread without any innermost."""
    made = Call(name, "", 0, host_call_kind(name))
    function = name.rpartition("(")[2].removesuffix(")")
    known = next((at for at, call in enumerate(calls) if call.kind == "native" and call.name.startswith(function)), -1)
    if known >= 0:
        return [*calls[:known], made, *calls[known + 1 :]]
    lines = [at for at, call in enumerate(calls) if call.kind == "python"]
    at = lines[-1] + 1 if lines else len(calls)
    return [*calls[:at], made, *calls[at:]]


def label(call: Call) -> str:
    """Return a frame as text: ``save (train.py:212)``, ``get (python3.11/queue.py:171)``."""
    if call.kind != "python" or not call.file:
        return call.name
    file = short_path(call.file)
    return f"{call.name} ({file}:{call.line})" if call.line else f"{call.name} ({file})"


def _runs(python: Sequence[Frame]) -> list[list[Frame]]:
    """Group the frames by the call of the evaluator that runs them."""
    runs: list[list[Frame]] = [[]]
    for frame in python:
        runs[-1].append(frame)
        if frame.entry:
            runs.append([])
    return [run for run in runs if run]


def _leaf(native: Sequence[Native], end: int) -> list[Call]:
    """Return the native frames that surely lie within the innermost Python frame: the first, and its callers up to the
    interpreter, since frames may have been skipped there."""
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


def _from_perf_map(native: Sequence[Native]) -> list[Call]:
    """Return the native frames, with Python functions by their symbols, without lines."""
    calls: list[Call] = []
    for name, module in native:
        found = _PERF.match(name)
        if found is None:
            calls.append(Call(name, module, 0, "native"))
            continue
        if calls and _EVALUATOR.match(calls[-1].name):  # it runs this function
            calls.pop()
        calls.append(Call(clean(found[1]), _path(found[2]), 0, "python"))
    return calls
