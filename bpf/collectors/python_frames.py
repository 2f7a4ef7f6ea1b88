"""The interpreter's frames, at samples and at switches away: finds Python processes and names their code objects."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

from whystall.bpf import layout as lay
from whystall.bpf.capture import Followed
from whystall.bpf.collector import Collector, Window
from whystall.bpf.libbpf import Object
from whystall.bpf.python_code import PythonResult
from whystall.bpf.python_session import Maps, PythonProcesses, every_process

_SEARCH_S = 0.5  # between searches for new Python processes among the targets; four times that on a whole host
_FOLLOWED_BUDGET_S = 0.05  # for reading stacks while the window runs


class PythonFrames(Collector):
    """Walk Python frames for the other collectors of the session."""

    shared_maps = ("python_processes", "python_threads", "python_seeds", "codes_emitted", "python_buffers")

    def __init__(self, search_s: float = _SEARCH_S, keep: Callable[[bytes], object] | None = None) -> None:
        """`search_s`: between searches for new Python processes. `keep`: receives the records of code objects, also of
        those that user space reads, instead of the result."""
        self.processes: PythonProcesses | None = None
        """Set when the session is loaded."""
        self._search_s, self._keep = search_s, keep
        self._searched = 0.0

    @property
    def refused(self) -> list[int]:
        """Python processes whose frames cannot be walked, as far as known now."""
        return sorted(self.processes.result.refused) if self.processes is not None else []

    def constants(self) -> Mapping[str, int]:
        """The switch."""
        return {"python": True}

    def record_handlers(self) -> Mapping[int, Callable[[bytes], object]]:
        """Code objects are decoded as they arrive."""
        return {lay.RECORD_CODE: self._take}

    def loaded(self, made: Object) -> None:
        """Find the Python processes, and read the stacks of threads that do not run."""
        maps = Maps(made.map("python_processes"), made.map("python_seeds"), made.map("codes_emitted"))
        self.processes = PythonProcesses(maps, named_only=self.setup.targets() is None, keep=self._keep)
        self._search(self.processes)
        self.processes.seed()
        self.setup.stacks.update(self.processes.stacks)

    def followed(self, found: Sequence[Followed]) -> None:
        """Find the Python processes among them, and read the stacks of their threads that do not run."""
        if self.processes is None:
            return
        pids = {one.tgid for one in found}
        self.processes.update(pids)
        self.processes.seed(pids, _FOLLOWED_BUDGET_S)
        self.setup.stacks.update(self.processes.stacks)

    def poll(self) -> None:
        """Search again: processes start, and execute other programs, while the window runs."""
        if self.processes is None:
            return
        period_s = self._search_s * (4 if self.setup.targets() is None else 1)
        if time.monotonic() - self._searched >= period_s:
            self._search(self.processes)

    def _search(self, processes: PythonProcesses) -> None:
        self._searched = time.monotonic()
        targets = self.setup.targets()
        processes.update(every_process() if targets is None else targets)

    def _take(self, record: bytes) -> None:
        if self.processes is not None:
            self.processes.take(record)

    def read(self, window: Window) -> PythonResult:
        """Return the Python processes and code objects of the window."""
        return self.processes.result if self.processes is not None else PythonResult()
