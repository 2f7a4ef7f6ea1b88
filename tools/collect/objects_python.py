"""The Python stacks and interpreter locks of processes, read from their memory."""

from __future__ import annotations

from pathlib import Path

from whystall.bpf.python_code import Frame
from whystall.bpf.python_find import NotReady, find
from whystall.bpf.python_offsets import UnknownLayout
from whystall.bpf.python_stacks import PythonThreads
from whystall.bpf.python_walk import Memory, Runtime
from whystall.tools.collect.frames import Call
from whystall.tools.collect.python_merge import label
from whystall.tools.contract.text import PATH_LIMIT, clean

_MOST_LABELS = 50_000


class Interpreters:
    """The interpreters of processes, found once per program that a process executes. `refused`: why the frames of a
    Python process cannot be walked; `unknown_locks`: why its interpreter lock is unknown; both by process id."""

    def __init__(self, root: str = "/proc") -> None:
        self.refused: dict[int, str] = {}
        self.unknown_locks: dict[int, str] = {}
        self._root = root
        self._known: dict[int, tuple[bytes, Runtime | None]] = {}
        self._labels: dict[tuple[str, str, int], str] = {}

    def runtime(self, pid: int, *, named_only: bool = True) -> Runtime | None:
        """Return the interpreter of a process; None if it has none that can be read. `named_only`: search only
        executables named like Python (others may be large), and those where it was found before."""
        try:
            identity = Path(f"{self._root}/{pid}/auxv").read_bytes()  # these addresses change with each exec
        except OSError:
            return None
        known = self._known.get(pid)
        if known is None or known[0] != identity:
            found, final = self._find(pid, named_only)
            if not final:
                return None
            known = self._known[pid] = (identity, found)
        return known[1]

    def _find(self, pid: int, named_only: bool) -> tuple[Runtime | None, bool]:
        """Return the interpreter, and whether looking again is useless."""
        self.refused.pop(pid, None)
        try:
            return find(pid, named_only=named_only), True
        except UnknownLayout as why:
            self.refused[pid] = str(why)
            return None, True
        except PermissionError:
            return None, True  # no permission to read no permission to read its memory, which is reported
        except (NotReady, OSError):
            return None, False

    def threads(self, pid: int, memory: Memory, tasks: dict[int, int]) -> PythonThreads | None:
        """Return the Python threads of a process; None if it is no Python process."""
        runtime = self.runtime(pid)
        if runtime is None:
            return None
        try:
            found = PythonThreads(memory, runtime, tasks)
        except OSError:
            return None  # it ends
        if found.unknown_lock:
            self.unknown_locks[pid] = found.unknown_lock
        return found

    def version(self, pid: int) -> str:
        """Return the version of a process's interpreter: ``3.12``."""
        known = self._known.get(pid)
        return f"3.{known[1].minor}" if known is not None and known[1] is not None else ""

    def labels(self, frames: list[Frame]) -> tuple[str, ...]:
        """Return frames as text: ``save (train.py:212)``."""
        return tuple(self._label(frame) for frame in frames)

    def _label(self, frame: Frame) -> str:
        key = (frame.name, frame.file, frame.line)
        text = self._labels.get(key)
        if text is None:
            text = label(Call(clean(frame.name), clean(frame.file, PATH_LIMIT), frame.line, "python"))
            if len(self._labels) < _MOST_LABELS:
                self._labels[key] = text
        return text
