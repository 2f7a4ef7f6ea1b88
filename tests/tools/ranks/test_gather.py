from __future__ import annotations

import gzip
import json
import os
import shutil
from pathlib import Path

import polars as pl
import pytest
from rank_files import KERNEL, STEP_US, write_job, write_rank

from whystall.tools.collect.tables import COLLECTORS
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.files import input as packed_input
from whystall.tools.ranks.job import job_of
from whystall.tools.ranks.traces import parallel
from whystall.tools.ranks.traces.gather import gather, with_before
from whystall.tools.recording.redact import redact
from whystall.tools.recording.store import Recording
from whystall.tools.timeline.rank_data.rank_list import rank_list

pytestmark = pytest.mark.thorough

HOUR_US = 3.6e9


def spots(recording: Recording, collector: str = "ranks") -> dict[str, str]:
    return {spot.code: spot.detail for spot in recording.manifest.collectors[collector].not_seen}


def same(one: Recording, other: Recording) -> bool:
    return one.manifest == other.manifest and all(one.table(t).equals(f) for t, f in other.tables().items())


def test_the_ranks_of_a_job(tmp_path: Path) -> None:
    recording = gather(write_job(tmp_path / "run7", 3))
    manifest, entry = recording.manifest, recording.manifest.collectors["ranks"]
    assert (manifest.id, manifest.host, manifest.clock) == ("run7", "node0", "CLOCK_REALTIME")
    assert manifest.started == "2024-04-07T04:37:26.000Z"
    assert (entry.engine, entry.proven, spots(recording)) == ("kineto", True, {})
    assert entry.seen == entry.kept == 3 * (3 * 5 + 3)
    ranks = recording.table("ranks.ranks")
    assert ranks.select("rank", "path", "files", "device").rows() == [
        (rank, f"rank{rank}.json", 1, True) for rank in range(3)
    ]
    steps = recording.table("ranks.steps")
    assert steps["compute_ns"].to_list() == [4_000_000] * 9
    # from the end of one step's collective to that of the next; the first from the host's own start
    assert (steps["end_ns"] - steps["start_ns"]).to_list() == [8_950_000, 10_000_000, 10_000_000] * 3
    assert (
        recording.table("ranks.operators").select("name", "count", "total_ns").rows() == [(KERNEL, 3, 12_000_000)] * 3
    )
    assert recording.table("ranks.collectives")["seq"].to_list() == [0, 1, 2] * 3
    assert job_of(recording).present == (0, 1, 2)


def test_no_instant_is_zero_which_means_unknown(tmp_path: Path) -> None:
    recording = gather(write_job(tmp_path))
    assert recording.table("ranks.ranks")["start_ns"].to_list() == [1, 1]
    assert recording.table("ranks.collectives")["launch_ns"].min() > 0


@pytest.mark.parametrize("jobs", [1, 2])
def test_other_processes_give_the_same_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, jobs: int) -> None:
    here = gather(write_job(tmp_path, 3))
    monkeypatch.setattr(parallel, "_SMALL", 0)
    assert same(gather(tmp_path, jobs=jobs), here)


def test_it_can_be_kept_and_opened_again(tmp_path: Path) -> None:
    recording = with_before(gather(write_job(tmp_path / "now", 3)), write_job(tmp_path / "then", 2, steps=9))
    recording.save(tmp_path / "kept")
    assert same(Recording.open(tmp_path / "kept", COLLECTORS), recording)


def test_an_operation_that_never_ended_can_be_kept(tmp_path: Path) -> None:
    for rank in range(2):
        write_dump(tmp_path / "dumps" / f"_dump_{rank}", rank)
    recording = gather(tmp_path / "dumps")
    assert recording.table("ranks.collectives").filter(end_ns=0).height > 0
    recording.save(tmp_path / "kept")
    assert same(Recording.open(tmp_path / "kept", COLLECTORS), recording)


def write_dump(path: Path, rank: int) -> None:
    """A Flight Recorder's, as JSON, of an all_reduce that hangs."""
    entry = {
        "record_id": 0, "pg_id": 0, "process_group": ["0", "default_pg"], "collective_seq_id": 1, "p2p_seq_id": 0,
        "op_id": 1, "profiling_name": "nccl:all_reduce", "time_created_ns": 1_711_964_646_000_000_000,
        "input_sizes": [[4]], "input_dtypes": ["Float"], "output_sizes": [[4]], "output_dtypes": ["Float"],
        "state": "started", "time_discovered_started_ns": 1_711_964_646_000_000_500,
        "time_discovered_completed_ns": None, "retired": False, "timeout_ms": 1000, "is_p2p": False, "frames": [],
    }  # fmt: skip
    content = {
        "version": "2.9", "rank": rank, "pg_config": {"0": {"name": "0", "desc": "default_pg", "ranks": "[0, 1]"}},
        "pg_status": {}, "entries": [entry],
    }  # fmt: skip
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content))


def test_a_run_is_called_as_its_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(write_job(tmp_path / "run7"))
    assert gather(".").manifest.id == "run7"


def test_an_earlier_run_beside_it(tmp_path: Path) -> None:
    now, then = write_job(tmp_path / "now"), write_job(tmp_path / "then", compute_us=6000.0, start_us=4e11)
    both = with_before(gather(now), then)
    assert job_of(both).table("steps")["compute_ns"].max() == 4_000_000
    assert job_of(both, "ranks_before").table("steps")["compute_ns"].max() == 6_000_000
    assert both.table("ranks_before.ranks")["start_ns"].to_list() == [1, 1]  # on its own


def test_a_rank_that_is_missing_is_reported(tmp_path: Path) -> None:
    write_job(tmp_path, 5)
    for rank in (1, 2, 4):
        (tmp_path / f"rank{rank}.json").unlink()
    assert spots(gather(tmp_path)) == {"ranks_missing": "1-2, 4"}


def bomb(path: Path) -> None:
    with gzip.open(path, "wb", 9) as file:
        file.write(b'{"traceEvents":[')
        file.write(b" " * (8 << 20))


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:2000]), "it ends in the middle"),
        (lambda path: path.write_bytes(b""), "it is empty"),
        (lambda path: path.write_bytes(b'{"traceEvents": []}'), "no activity in it"),
    ],
    ids=["cut short", "empty", "nothing"],
)
def test_a_rank_that_cannot_be_read_is_reported_and_the_others_count(tmp_path: Path, spoil: object, why: str) -> None:
    write_job(tmp_path, 3)
    spoil(tmp_path / "rank1.json")  # type: ignore[operator]
    recording = gather(tmp_path)
    assert recording.table("ranks.ranks")["rank"].to_list() == [0, 2]
    assert spots(recording) == {"ranks_unread": f"rank1.json: {why}"}


@pytest.mark.parametrize("damage", ["bomb", "cut"])
def test_a_damaged_gzip_file_is_reported(tmp_path: Path, damage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed_input, "_UNPACKED", 1 << 20)
    write_job(tmp_path, 3)
    (tmp_path / "rank1.json").unlink()
    packed = write_rank(tmp_path / "rank1.json.gz", 1, world=3)
    if damage == "bomb":
        bomb(packed)
    else:
        packed.write_bytes(packed.read_bytes()[:40])
    found = spots(gather(tmp_path))
    assert found.keys() == {"ranks_unread"}
    assert ("unpacks to more than 1 MiB, out of proportion" if damage == "bomb" else "cut short") in found[
        "ranks_unread"
    ]


def test_too_few_ranks_left_end_it(tmp_path: Path) -> None:
    write_job(tmp_path)
    (tmp_path / "rank1.json").write_bytes(b"")
    with pytest.raises(ToolError, match=r"1 of 2 traces .* cannot be read: rank1\.json: it is empty") as raised:
        gather(tmp_path)
    assert raised.value.code is ErrorCode.BAD_TRACE


def test_what_cannot_be_read_keeps_its_remedy(tmp_path: Path) -> None:
    write_job(tmp_path, 3)
    (tmp_path / "rank1.json").write_bytes(b"<!DOCTYPE html><html>404</html>")
    (tmp_path / "report.html").write_bytes(b"<html></html>")  # a page beside traces is no matter
    assert list(spots(gather(tmp_path))) == ["ranks_unread"]
    assert spots(gather(tmp_path))["ranks_unread"].startswith("rank1.json: is a web page, no trace (give the trace")
    (tmp_path / "rank2.json").unlink()
    (tmp_path / "b.nsys-rep").write_bytes(b"report")
    with pytest.raises(ToolError, match=r"rank1\.json: is a web page") as raised:
        gather(tmp_path)
    assert "nsys export --type sqlite b.nsys-rep" in raised.value.remedy


def test_a_single_process_is_a_job_too(tmp_path: Path) -> None:
    assert gather(write_job(tmp_path, 1)).table("ranks.ranks").height == 1


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match="no profile in") as raised:
        gather(tmp_path)
    assert raised.value.code is ErrorCode.BAD_TRACE


def test_clocks_hours_apart_are_legal(tmp_path: Path) -> None:
    write_job(tmp_path, 3)
    write_rank(tmp_path / "rank2.json", 2, world=3, start_us=5e11 + 7 * HOUR_US)
    recording = gather(tmp_path)
    assert recording.table("ranks.ranks")["rank"].to_list() == [0, 1, 2]
    assert recording.manifest.window_ns > 7 * HOUR_US * 1000


@pytest.mark.parametrize(("host", "recorded"), [("node0", {"other_time": "rank 2"}), ("node1", {})])
def test_two_times_on_one_host_may_be_two_runs(tmp_path: Path, host: str, recorded: dict[str, str]) -> None:
    write_job(tmp_path, 3)
    write_rank(tmp_path / "rank2.json", 2, world=3, start_us=5e11 + 7 * HOUR_US, host=host)
    assert spots(gather(tmp_path)) == recorded


def test_a_rank_of_another_time_and_other_steps_is_of_another_run(tmp_path: Path) -> None:
    write_job(tmp_path, 3)
    write_rank(tmp_path / "rank2.json", 2, world=3, first=70, start_us=5e11 + 7 * HOUR_US)
    with pytest.raises(ToolError, match="rank 2 was recorded at another time than rank 0-1") as raised:
        gather(tmp_path)
    assert raised.value.code is ErrorCode.BAD_ARGUMENT


def test_a_rank_that_no_job_has_is_refused_before_a_list_of_the_absent_fills_the_memory(tmp_path: Path) -> None:
    write_job(tmp_path, 2)
    last = (1 << 31) - 2
    content = json.loads((tmp_path / "rank1.json").read_text())
    content["distributedInfo"]["rank"] = last
    (tmp_path / "other.json").write_text(json.dumps(content))
    with pytest.raises(ToolError, match=rf"other\.json is of rank {last}, of ") as caught:
        gather(tmp_path)
    assert caught.value.code is ErrorCode.BAD_ARGUMENT


def test_ranks_of_jobs_of_different_size_are_refused(tmp_path: Path) -> None:
    write_job(tmp_path, 2)
    write_rank(tmp_path / "rank2.json", 2, world=4)
    with pytest.raises(ToolError, match="0-1 of 2, 2 of 4"):
        gather(tmp_path)


def test_groups_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    write_rank(tmp_path / "rank0.json", 0, world=4, group=[0, 1])
    write_rank(tmp_path / "rank1.json", 1, world=4, group=[1, 2, 3])
    with pytest.raises(ToolError, match="group 0 has ranks 0-1 by rank 0, 1-3 by rank 1"):
        gather(tmp_path)


def test_groups_of_one_name_may_exist_side_by_side(tmp_path: Path) -> None:
    for rank in range(4):
        write_rank(tmp_path / f"rank{rank}.json", rank, world=4, group=[0, 1] if rank < 2 else [2, 3])
    assert gather(tmp_path).table("ranks.groups")["group"].unique().sort().to_list() == ["0|0,1", "0|2,3"]


def test_a_rank_twice_is_refused(tmp_path: Path) -> None:
    write_job(tmp_path)
    (tmp_path / "old").mkdir()
    shutil.copy(tmp_path / "rank1.json", tmp_path / "old")
    with pytest.raises(ToolError, match=r"two traces of rank 1: old/rank1\.json and rank1\.json") as raised:
        gather(tmp_path)
    assert raised.value.code is ErrorCode.BAD_ARGUMENT


def test_cycles_of_a_handler_are_one_rank(tmp_path: Path) -> None:
    for rank in range(2):
        for cycle in range(2):
            name = f"node_{40 + rank}.{1700000000 + cycle}.pt.trace.json"
            write_rank(tmp_path / name, rank, first=4 * cycle, start_us=5e11 + cycle * 100 * STEP_US)
    recording = gather(tmp_path)
    assert recording.table("ranks.ranks")["files"].to_list() == [2, 2]
    assert recording.table("ranks.steps")["step"].to_list() == [0, 1, 2, 4, 5, 6] * 2


def test_ranks_that_no_file_has_are_numbered_by_name(tmp_path: Path) -> None:
    for name in ("replica_2", "replica_10", "replica_9"):
        write_rank(tmp_path / f"{name}.json", None)
    recording = gather(tmp_path)
    assert recording.table("ranks.ranks").select("rank", "path").rows() == [
        (0, "replica_2.json"), (1, "replica_9.json"), (2, "replica_10.json"),
    ]  # fmt: skip
    assert spots(recording)["ranks_guessed"] == "3 in the order of their names"


def test_replicas_each_a_job_of_one_are_numbered_by_name(tmp_path: Path) -> None:
    for name in ("a", "b"):
        write_rank(tmp_path / f"{name}.json", 0, world=1)
    assert gather(tmp_path).table("ranks.ranks").select("rank", "path").rows() == [(0, "a.json"), (1, "b.json")]


def test_a_file_of_unknown_rank_among_others_is_refused(tmp_path: Path) -> None:
    write_job(tmp_path)
    write_rank(tmp_path / "other.json", None)
    with pytest.raises(ToolError, match=r"the rank of other\.json is unknown"):
        gather(tmp_path)


def test_dumps_beside_traces_are_left_out_and_reported(tmp_path: Path) -> None:
    write_job(tmp_path)
    write_dump(tmp_path / "_dump_0", 0)
    recording = gather(tmp_path)
    assert recording.manifest.collectors["ranks"].engine == "kineto"
    assert spots(recording)["ranks_unread"] == "1 of flight_recorder, beside others: give their directory alone"


def test_markup_in_names_does_no_harm(tmp_path: Path) -> None:
    write_rank(tmp_path / "rank0.json", 0, host="<b>\x1b[31m")
    write_rank(tmp_path / "rank1.json", 1)
    hosts = gather(tmp_path).table("ranks.ranks")["host"].to_list()
    assert hosts == ["<b>\\x1b[31m", "node0"]


def test_redacted_it_names_no_host_file_or_group(tmp_path: Path) -> None:
    place = tmp_path / "secret_project"
    for rank in range(2):
        path = write_rank(place / f"secret_{rank}" / f"rank{rank}.json", rank, host="secrethost")
        path.write_text(path.read_text().replace("default_pg", "secret_pg"))
    recording = redact(gather(place))
    columns = [column for frame in recording.tables().values() for column in frame.select(pl.col(pl.String))]
    assert [column.name for column in columns if column.str.contains("secret").any()] == []
    assert recording.table("ranks.groups")["group"].to_list() == ["0|0,1"] * 2  # a number is no name
    assert recording.table("ranks.ranks")["host"].n_unique() == 1
    assert recording.manifest.host == recording.table("ranks.ranks")["host"][0] != "secrethost"


def test_what_a_group_is_for_is_no_secret(tmp_path: Path) -> None:
    recording = redact(gather(write_job(tmp_path)))
    assert recording.table("ranks.groups")["description"].to_list() == ["default_pg"] * 2


def test_ranks_as_text() -> None:
    assert [rank_list(ranks) for ranks in ((), (3,), (2, 0, 1), (7, 0, 1, 3, 4))] == ["", "3", "0-2", "0-1, 3-4, 7"]


def children() -> set[str]:
    """Processes that this one started and that are there, ended ones included."""
    return set(" ".join(p.read_text() for p in Path("/proc/self/task").glob("*/children")).split())


def test_no_process_or_file_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parallel, "_SMALL", 0)
    before, processes = set(os.listdir("/proc/self/fd")), children()
    gather(write_job(tmp_path))
    assert set(os.listdir("/proc/self/fd")) == before
    assert children() == processes
