"""Flight Recorder dumps made by hand: what each rank asked for and what became of it, written as PyTorch writes it."""

from __future__ import annotations

import json
import pickle
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

T0 = 1_758_610_505_000_000_000
"""When the jobs made here begin; entries follow each other by a millisecond."""
MS = 1_000_000


@dataclass
class Rank:
    """The recorder of one rank. `groups`: name to description and ranks; all of them must hold `rank`."""

    rank: int
    groups: Mapping[str, tuple[str, Sequence[int]]]
    backend: str = "nccl"
    entries: list[dict[str, Any]] = field(default_factory=list)
    status: dict[str, dict[str, int]] = field(default_factory=dict)
    now: int = T0

    def does(self, group: str, op: str = "all_reduce", state: str = "completed", **more: Any) -> Rank:
        """One operation; its number follows the last one of the group unless `seq` says so."""
        p2p = op.startswith(("send", "recv"))
        of_group = [one for one in self.entries if one["process_group"][0] == group and one["is_p2p"] is p2p]
        name = "p2p_seq_id" if p2p else "collective_seq_id"
        seq = more.pop("seq", of_group[-1][name] + 1 if of_group else 1)
        sizes, dtype = more.pop("sizes", [[1000]]), more.pop("dtype", "Float")
        self.now += more.pop("after_ms", 1) * MS
        done = state == "completed"
        self.entries.append(
            {
                "record_id": len(self.entries),
                "pg_id": list(self.groups).index(group),
                "process_group": (group, self.groups[group][0]),
                "thread_id": "139930279734144",
                "collective_seq_id": 0 if p2p else seq,
                "p2p_seq_id": seq if p2p else 0,
                "op_id": len(self.entries),
                "profiling_name": f"{self.backend}:{op}",
                "time_created_ns": self.now,
                "time_discovered_started_ns": None,
                "time_discovered_completed_ns": self.now + MS // 2 if done else None,
                "input_sizes": sizes,
                "input_dtypes": [dtype] * len(sizes),
                "output_sizes": sizes,
                "output_dtypes": [dtype] * len(sizes),
                "state": state,
                "retired": done,
                "timeout_ms": 600_000,
                "is_p2p": p2p,
                "frames": [{"name": "step", "filename": "train.py", "line": 7}],
                **more,
            }
        )
        return self

    def counts(self, group: str, asked: int, done: int) -> Rank:
        """What the library counted of a group."""
        number = str(list(self.groups).index(group))
        self.status[number] = {
            "last_enqueued_collective": asked,
            "last_started_collective": -1,
            "last_completed_collective": done,
        }
        return self

    def content(self) -> dict[str, Any]:
        """The dump."""
        config = {
            name: {"name": name, "desc": description, "ranks": str(list(ranks))}
            for name, (description, ranks) in self.groups.items()
        }
        return {"version": "2.9", "pg_config": config, "pg_status": self.status, "entries": self.entries}


def write(directory: Path, *ranks: Rank, form: str = "pickle") -> Path:
    """The dumps of some ranks in a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for one in ranks:
        if form == "pickle":
            (directory / f"_dump_{one.rank}").write_bytes(pickle.dumps(one.content(), protocol=2))
        else:
            (directory / f"_dump_{one.rank}.json").write_text(json.dumps(one.content()))
    return directory
