"""The ``ebpf`` engine of the collector ``collectives``: calls of communication libraries, by uprobes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path

import polars as pl

from whystall.bpf.attached import MAX_TARGETS
from whystall.bpf.collective_symbols import ENQUEUES, Search, search
from whystall.bpf.errors import BpfError
from whystall.bpf.functions import FunctionCalls, FunctionConfig, FunctionSession, records, unsupported
from whystall.tools.collect.collective_calls import calls_of
from whystall.tools.collect.ebpf_engine import tool_error, why_unavailable
from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.text import clean
from whystall.tools.node import environment
from whystall.tools.recording.collector import Capture, Engine, Options
from whystall.tools.recording.target import Target, all_pids, children_of, comm_of

_NAMED = 5


class CollectiveEngine(Engine):
    """See the module."""

    name = "ebpf"
    serves = frozenset({"collectives"})
    period_s = 0.1

    def __init__(self) -> None:
        self._session: FunctionSession | None = None
        self._search = Search([], set(), [])
        self._processes: list[tuple[int, str, int, int]] = []

    def unavailable(self) -> str | None:
        """Return why probes cannot work here, without trying."""
        why = why_unavailable("functions")
        if why is not None:
            return why
        try:
            return unsupported()
        except BpfError as error:
            return error.message

    def load(self, wanted: Mapping[str, Options], target: Target) -> None:
        """Find the functions of the target's processes, and attach to them; later processes are not found."""
        pids = all_pids() if target.everything else target.pids
        if target.follow:
            pids = sorted({*pids, *children_of(pids)})
        self._search = search(pids)
        users = sorted(self._search.pids)
        if len(users) > MAX_TARGETS:
            raise ToolError(
                ErrorCode.BAD_ARGUMENT,
                f"{len(users)} communicating processes are too many for one window (at most {MAX_TARGETS})",
                "name the job",
            )
        self._processes = [(pid, clean(comm_of(pid)), *_rank_of(pid)) for pid in users]
        probes = [one.probe for one in self._search.found]
        session = FunctionSession(FunctionConfig(frozenset(users or pids[:1]), probes))
        try:
            session.load()
        except BpfError as error:
            raise tool_error(error) from error
        self._session = session

    def start(self) -> int:
        """Begin to record."""
        if self._session is None:
            raise ValueError("not loaded")
        return self._session.start()

    def poll(self) -> None:
        """Read records."""
        if self._session is not None:
            self._session.poll()

    def stop(self) -> int:
        """End recording."""
        if self._session is None:
            raise ValueError("not loaded")
        return self._session.stop()

    def read(self) -> dict[str, Capture]:
        """Detach; return the capture."""
        session, self._session = self._session, None
        if session is None:
            return {}
        try:
            found = session.read()
        except BpfError as error:
            raise tool_error(error) from error
        finally:
            session.close()
        functions = [one.function for one in self._search.found]
        events = sorted(records(found.records))
        calls = calls_of(events, functions, found.end)
        cost: dict[int, float] = defaultdict(float)
        for event in events:
            cost[event[5]] += found.event_ns[self._search.found[event[7]].probe.emulated]
        processes = [(*row, round(cost[row[0]])) for row in self._processes]
        schemas = COLLECTORS["collectives"]
        table = pl.DataFrame(calls.rows, schemas["calls"], orient="row").sort("queued_ns", maintain_order=True)
        capture = Capture(
            tables={
                "calls": table,
                "processes": pl.DataFrame(processes, schemas["processes"], orient="row"),
            },
            hooks=sorted({one.symbol for one in functions}),
            seen=len(calls.rows) + calls.before,
            kept=table.height,
            lost=found.lost + calls.broken,
            proven=found.own > 0,
            not_seen=self._blind_spots(found, calls.before, table),
        )
        return {"collectives": capture}

    def _blind_spots(self, found: FunctionCalls, before: int, calls: pl.DataFrame) -> list[tuple[str, str]]:
        spots = []
        if not self._search.found:
            spots.append(("collectives_absent", ""))
        if self._search.stripped:
            spots.append(("collectives_stripped", ", ".join(sorted(set(self._search.stripped))[:_NAMED])))
        if found.refused:
            symbols = [self._search.found[probe.number].function.symbol for probe, _ in found.refused]
            spots.append(("collectives_refused", f"{', '.join(symbols[:_NAMED])}: {found.refused[0][1]}"))
        if found.stopped:
            spots.append(("collectives_stopped", f"{(found.stopped - found.start) / 1e9:.1f} s"))
        if before:
            spots.append(("collectives_before", str(before)))
        device = Counter(calls.filter(pl.col("library").is_in(sorted(ENQUEUES)))["library"].to_list())
        if device:
            spots.append(("collectives_enqueued", ", ".join(sorted(device))))
        return spots

    def close(self) -> None:
        """Detach; idempotent."""
        session, self._session = self._session, None
        if session is not None:
            session.close()


def _rank_of(pid: int) -> tuple[int, int]:
    """Return the rank of a process and the number of ranks, by its environment; -1 for what it does not state."""
    try:
        with Path(f"/proc/{pid}/environ").open("rb") as file:
            found = environment.identity(file.read(environment.LIMIT))
    except OSError:
        return -1, -1
    return -1 if found.rank is None else found.rank, -1 if found.world_size is None else found.world_size
