"""Stored runs with latencies of their operators, by name of the baseline: for `compare_runs --baseline`.

The size is bounded: `RUNS` runs per baseline, of which the oldest give way; `ROWS` operators per run, those with the
most time; `NAMES` baselines.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from whystall.knowledge_base.database import Database
from whystall.tools.contract.errors import ErrorCode, ToolError

if TYPE_CHECKING:
    import polars as pl

RUNS, ROWS, NAMES = 10, 5000, 50
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_COLUMNS = ("rank", "kind", "name", "shape", "count", "per_step", "total_ns", "p10_ns", "p50_ns", "p90_ns", "p99_ns")
_LISTS = ("blocks", "block_steps")


@dataclass(frozen=True)
class StoredBaseline:
    """A baseline: number of runs and operators, and when the first and the last run was stored (RFC 3339)."""

    name: str
    runs: int
    operators: int
    first: str
    last: str


@dataclass(frozen=True)
class Stored:
    """What storing a run did. `new`: False if it was stored before. `left_out`: operators beyond `ROWS`; `dropped`:
    older runs beyond `RUNS`."""

    new: bool
    operators: int
    left_out: int
    dropped: int


class OperatorBaselines:
    """The stored baselines. Every method may raise `ToolError` (database, disk_full)."""

    def __init__(self, file: Database) -> None:
        self._file = file

    def add(self, name: str, tables: Mapping[str, pl.DataFrame], at: str) -> Stored:
        """Store a run in the baseline `name`; the same run counts once.

        Args:
            tables: ``ranks``, ``latencies`` and ``environment`` of the collector ``ranks``.
            at: when, RFC 3339.

        Raises:
            ToolError: bad_argument for a name of other characters, a run without operators, or too many baselines.
        """
        if not _NAME.fullmatch(name):
            raise ToolError(
                ErrorCode.BAD_ARGUMENT,
                f"{name!r} is no name of a baseline",
                "use up to 64 letters, digits, dots, dashes and underscores; a letter or digit first",
            )
        found = tables["latencies"].sort("total_ns", "rank", "kind", "name", "shape", descending=[True, *[False] * 4])
        if found.is_empty():
            raise ToolError(
                ErrorCode.BAD_ARGUMENT,
                "these traces have no operators or kernels",
                "trace with the profiler of the framework (torch.profiler, with record_shapes=True)",
            )
        rows = found.head(ROWS).rows(named=True)
        body = _head(tables)
        digest = hashlib.sha256(json.dumps([body, rows], sort_keys=True).encode()).hexdigest()
        with self._file.write() as db:
            known = db.execute(
                "SELECT count(DISTINCT name), coalesce(max(name = ?), 0) FROM operator_baselines", [name]
            ).fetchone()
            if known[0] >= NAMES and not known[1]:
                raise ToolError(
                    ErrorCode.BAD_ARGUMENT, f"there are {NAMES} baselines already", "whystall baselines delete NAME"
                )
            same = [name, digest]
            if db.execute("SELECT 1 FROM operator_baselines WHERE name = ? AND digest = ?", same).fetchone():
                return Stored(False, len(rows), found.height - len(rows), 0)
            run = db.execute(
                "INSERT INTO operator_baselines (name, digest, at, body) VALUES (?, ?, ?, ?)",
                [name, digest, at, json.dumps(body)],
            ).lastrowid
            marks = ", ".join("?" * (1 + len(_COLUMNS) + len(_LISTS)))
            db.executemany(
                f"INSERT INTO operator_latencies (run, {', '.join((*_COLUMNS, *_LISTS))}) VALUES ({marks})",  # noqa: S608
                ([run, *(row[c] for c in _COLUMNS), *(json.dumps(row[c]) for c in _LISTS)] for row in rows),
            )
            dropped = db.execute(
                "DELETE FROM operator_baselines WHERE name = ?1 AND id NOT IN"
                " (SELECT id FROM operator_baselines WHERE name = ?1 ORDER BY id DESC LIMIT ?2)",
                [name, RUNS],
            ).rowcount
        return Stored(True, len(rows), found.height - len(rows), dropped)

    def all(self) -> list[StoredBaseline]:
        """Return all baselines, by name."""
        with self._file.read() as db:
            rows = db.execute(
                "SELECT b.name, count(*), sum((SELECT count(*) FROM operator_latencies l WHERE l.run = b.id)),"
                " min(b.at), max(b.at) FROM operator_baselines b GROUP BY b.name ORDER BY b.name"
            ).fetchall()
        return [StoredBaseline(*row) for row in rows]

    def delete(self, name: str) -> int:
        """Delete the baseline `name`; return the number of its runs. Raises `ToolError` (not_found)."""
        with self._file.write() as db:
            count = db.execute("DELETE FROM operator_baselines WHERE name = ?", [name]).rowcount
        if not count:
            raise _missing(name)
        return int(count)

    def load(self, name: str) -> dict[str, pl.DataFrame]:
        """Return the tables of the collector ``baseline``. Raises `ToolError` (not_found)."""
        import polars as pl

        from whystall.tools.timeline.rank_data.tables import BASELINE

        with self._file.read() as db:
            heads = db.execute(
                "SELECT id, at, body FROM operator_baselines WHERE name = ? ORDER BY id", [name]
            ).fetchall()
            rows = db.execute(
                f"SELECT run, {', '.join((*_COLUMNS, *_LISTS))} FROM operator_latencies"  # noqa: S608
                " WHERE run IN (SELECT id FROM operator_baselines WHERE name = ?)",
                [name],
            ).fetchall()
        if not heads:
            raise _missing(name)
        places = {id: place for place, (id, _, _) in enumerate(heads)}
        runs, environment = [], []
        for id, at, text in heads:
            body = json.loads(text)
            parts = {key: body[key] for key in ("source", "device", "world_size")}
            runs.append({"run": places[id], "at": at, **parts})
            environment += [{"run": places[id], "rank": r, "what": w, "value": v} for r, w, v in body["environment"]]
        latencies = [
            dict(zip(("run", *_COLUMNS, *_LISTS), (places[run], *values, json.loads(a), json.loads(b)), strict=True))
            for run, *values, a, b in rows
        ]
        found = {"runs": runs, "latencies": latencies, "environment": environment}
        return {key: pl.DataFrame(found[key], schema=schema) for key, schema in BASELINE.items()}


def _head(tables: Mapping[str, pl.DataFrame]) -> dict[str, Any]:
    heads = tables["ranks"]
    return {
        "source": ", ".join(sorted(set(heads["source"].to_list()))),
        "device": bool(heads["device"].any()),
        "world_size": max(heads["world_size"].to_list(), default=-1),
        "environment": tables["environment"].select("rank", "what", "value").rows(),
    }


def _missing(name: str) -> ToolError:
    return ToolError(ErrorCode.NOT_FOUND, f"no baseline {name!r} is stored", "list them with `whystall baselines list`")
