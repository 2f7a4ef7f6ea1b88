"""Parse the names of frames as programs write them, and write frames as names.

``GPU:name``, ``NPU:name``, ``name_[G]`` and ``[GPU_Kernel]name`` are work of an accelerator, ``GPU: name`` is a call
into its library; the annotations of the
flamegraph.pl family are ``_[k]`` kernel, ``_[i]`` inlined, ``_[j]`` compiled at run time; ``save (train.py:212)`` is a
Python frame of py-spy and ours; ``process 12:"cmd"`` and ``thread (0x7f..)`` are py-spy's threads.
"""

from __future__ import annotations

import re
from typing import NamedTuple

GPU, NPU = "GPU:", "NPU:"
HOST_CALLS = (f"{GPU} ", f"{NPU} ")
"""Frames of calls into an accelerator's library on the host, ``GPU: launch kernel (cuLaunchKernel)``."""
IDLE = "[idle]"
NAME_LIMIT = 1024
"""Characters kept of a name: names of kernels and C++ differ at their ends."""
UNKNOWN = "[unknown]"

_LINE = re.compile(r"(?P<name>.+) \((?P<file>[^()]*[^()0-9:][^()]*?)(?::(?P<line>[0-9]{1,9}))?\)", re.DOTALL)
_PYTHON_FILE = re.compile(r".*\.py[xdi]?|<(?:frozen [^>]*|string|stdin|ipython[^>]*|doctest[^>]*)>", re.DOTALL)
_BINARY = re.compile(r".*\.so(?:\.[0-9.]+)?", re.DOTALL)
_THREAD = re.compile(r"process [0-9]+(?::.*)?|thread \(?(?:0x[0-9A-Fa-f]+|[0-9]+)\)?(?::.*)?", re.DOTALL)
_ANNOTATED = {"_[k]": "kernel", "_[i]": "native", "_[j]": "other"}


class Name(NamedTuple):
    """A frame of `whystall.tools.stacks.model`, without its number."""

    name: str
    file: str = ""
    line: int = 0
    kind: str = "other"


def named(text: str) -> Name:
    """Return the frame that `text` stands for."""
    if not text.strip():
        return Name(UNKNOWN)
    last = text[-1]
    if last == "]":
        end = text[-4:]
        if end == "_[G]" and len(text) > len(end):
            return device(text[:-4])
        if end in _ANNOTATED and len(text) > len(end):
            return Name(text[:-4], kind=_ANNOTATED[end])
    elif last == ")" and (found := _LINE.fullmatch(text)):
        name, file, line = found["name"], found["file"], int(found["line"] or 0)
        if _THREAD.fullmatch(text):
            return Name(text, kind="thread")
        if _PYTHON_FILE.fullmatch(file):
            return Name(name, file, line, "python")
        if line or _BINARY.fullmatch(file):
            return Name(name, file, line, "native")
    start = text[:4]
    if text.startswith(HOST_CALLS):
        return Name(text, kind=host_call_kind(text))
    if start in (GPU, NPU) and len(text) > len(start):
        return device(text[4:], start)
    if start == "[GPU" and text.startswith("[GPU_Kernel]") and len(text) > len("[GPU_Kernel]"):
        return device(text[len("[GPU_Kernel]") :].strip())
    if start in ("proc", "thre") and _THREAD.fullmatch(text):
        return Name(text, kind="thread")
    return Name(text)


def host_call_kind(text: str) -> str:
    """Return the kind of a frame of `HOST_CALLS`: launches and queued copies are ``launch``, as in an accelerator's
    profile, waits and copies that wait ``native``."""
    return "launch" if text[len(HOST_CALLS[0]) :].startswith(("launch", "queue")) else "native"


def device(name: str, prefix: str = GPU) -> Name:
    """Return the frame of an accelerator's work, or of its idle time."""
    name = name.removeprefix(prefix)
    return Name(prefix + name, kind="idle" if name == IDLE else "device")


def written(name: str, file: str, line: int, kind: str) -> str:
    """Return the frame as text that `named` parses back, as far as text allows."""
    if kind == "kernel":
        return f"{name}_[k]"
    if file and kind in ("python", "native"):
        return f"{name} ({file}:{line})" if line else f"{name} ({file})"
    return name
