"""The check on tables of ranks: a slow rank is named, a healthy job not accused, what is not seen is left open."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import rank_tables as tables
from rank_tables import job

from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.ranks.compare_runs import tool as compare_runs
from whystall.tools.ranks.slow_node_check.tables import Data
from whystall.tools.ranks.slow_node_check.tool import Params, judge
from whystall.tools.ranks.traces.gather import gather, with_before
from whystall.tools.timeline.profiles import open_profile

pytestmark = pytest.mark.thorough

SAMPLES = Path(__file__).parents[4] / "shared" / "data"
sampled = pytest.mark.skipif(not SAMPLES.is_dir(), reason="the public samples are not here")

Writer = Callable[[Path, list[tables.Part]], Any]


def answer(place: Path) -> Data:
    return judge(gather(place, jobs=1), Params()).data


def blind(place: Path) -> dict[str, str]:
    recording = gather(place, jobs=1)
    spots = {spot.code: spot.detail for spot in recording.manifest.collectors["ranks"].not_seen}
    return spots | dict(judge(recording, Params()).not_seen)


def accused(data: Data) -> list[tuple[int, str]]:
    return [(one.rank, one.slow_class) for one in data.accused]


def one_rank_a_file(directory: Path, parts: list[tables.Part]) -> None:
    for rank in tables.ranks_of(parts):
        path = tables.plain(directory / f"timings{rank}.csv", tables.of(parts, rank))
        (directory / f"timings{rank}.csv.gz").write_bytes(gzip.compress(path.read_bytes()))
        path.unlink()


def one_rank_a_named_file(directory: Path, parts: list[tables.Part]) -> None:
    """The file's name has the rank, and no column."""
    for rank in tables.ranks_of(parts):
        path = tables.plain(directory / f"rank{rank}.csv", tables.of(parts, rank))
        pl.read_csv(path).drop("rank").write_csv(path)


def unicode_text(directory: Path, parts: list[tables.Part]) -> None:
    """As spreadsheets save it."""
    path = tables.plain(directory / "run.csv", parts)
    path.write_bytes(path.read_text().replace(",", "\t").encode("utf-16"))


def instants(directory: Path, parts: list[tables.Part], shown: Callable[[datetime], Any], suffix: str) -> None:
    """Instants instead of numbers."""
    rows = pl.read_csv(tables.plain(directory / "run.csv", parts))
    (directory / "run.csv").unlink()
    for name in ("start", "end"):
        values = [shown(datetime(2026, 10, 25, 0, 59, 30) + timedelta(seconds=value)) for value in rows[name]]
        rows = rows.with_columns(pl.Series(name, values))
    rows.write_csv(directory / "run.csv") if suffix == "csv" else rows.write_parquet(directory / "run.parquet")


def cluster_of_both(directory: Path, parts: list[tables.Part]) -> None:
    tables.ascend_cluster(directory / "cluster_analysis_output", parts)
    tables.ascend_cluster_operations(directory / "cluster_analysis_output", parts)


TIMELINES: dict[str, Writer] = {
    "csv": lambda at, parts: tables.plain(at / "run.csv", parts),
    "csv_per_rank": one_rank_a_file,
    "csv_per_named_rank": one_rank_a_named_file,
    "utf16": unicode_text,
    "iso": lambda at, parts: instants(at, parts, lambda when: when.isoformat(), "csv"),
    "iso_zone": lambda at, parts: instants(at, parts, lambda when: f"{when} +08:00", "csv"),
    "parquet_instants": lambda at, parts: instants(at, parts, lambda when: when, "parquet"),
    "parquet": lambda at, parts: tables.plain_parquet(at / "run.parquet", parts),
    "chrome": lambda at, parts: tables.chrome(at / "run.json", parts),
    "chrome_numbered": lambda at, parts: tables.chrome(at / "run.json", parts, named=False),
    "ndtimeline": tables.ndtimeline,
    "ndtimeline_trace": lambda at, parts: tables.ndtimeline_trace(at / "timeline-T.json.gz", parts),
    "ascend_exports": tables.ascend_exports,
    "ascend_cluster_operations": cluster_of_both,
}
SUMS: dict[str, Writer] = {
    "csv": lambda at, parts: tables.plain_sums(at / "sums.csv", parts),
    "ascend_exports": lambda at, parts: tables.ascend_exports(at, parts, operations=False),
    "ascend_cluster": tables.ascend_cluster,
    "mindspore": tables.mindspore,
    "mindspore_without_hccl": lambda at, parts: tables.mindspore(at, parts, hccl=False),
}
ALL = {**TIMELINES, **{f"sums_{name}": writer for name, writer in SUMS.items()}}


@pytest.mark.parametrize("name", ALL)
def test_a_rank_that_computes_longer_is_named(name: str, tmp_path: Path) -> None:
    ALL[name](tmp_path, job(slow=[2]))
    found = answer(tmp_path)
    assert (found.verdict, accused(found), found.steps) == ("rank", [(2, "compute_slow")], 20)
    assert found.accused[0].lost_ms_per_step == pytest.approx(0.4 * tables.COMPUTE, rel=0.1)
    assert found.accused[0].confidence == ("medium" if name.startswith("sums") else "high")
    assert ("step_sums" in found.reasons) == name.startswith("sums")


@pytest.mark.parametrize("name", ALL)
def test_a_healthy_job_accuses_nobody(name: str, tmp_path: Path) -> None:
    ALL[name](tmp_path, job(jitter=0.05, seed=len(name)))
    found = answer(tmp_path)
    assert (found.verdict, found.accused) == ("none", [])


@pytest.mark.parametrize("name", [name for name in TIMELINES if not name.startswith(("ndtimeline", "ascend"))])
def test_a_rank_that_waits_for_its_data_is_named(name: str, tmp_path: Path) -> None:
    TIMELINES[name](tmp_path, job(slow=[1], fault="data"))
    found = answer(tmp_path)
    assert (found.verdict, [one.rank for one in found.accused]) == ("rank", [1])
    loader = {row.what: row.mine - row.peers for row in found.accused[0].evidence}["loader"]
    assert loader == pytest.approx(0.4 * tables.COMPUTE, rel=0.1)


def test_waiting_for_data_in_sums_is_measured(tmp_path: Path) -> None:
    tables.plain_sums(tmp_path / "sums.csv", job(slow=[1], fault="data"))
    found = answer(tmp_path)
    assert (found.verdict, [one.rank for one in found.accused]) == ("rank", [1])


@pytest.mark.parametrize("name", SUMS)
def test_idle_time_of_sums_accuses_nobody(name: str, tmp_path: Path) -> None:
    """It is what is left of the step: a rank whose communication was not recorded would look the same."""
    SUMS[name](tmp_path, job(slow=[1], fault="idle"))
    found = answer(tmp_path)
    assert (found.verdict, found.accused) == ("cannot_tell", [])
    assert "mixed_signals" in found.reasons


# --- stages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["parquet", "ndtimeline", "ndtimeline_trace", "sums_csv", "sums_ascend_cluster"])
def test_a_stage_with_more_work_is_no_slow_rank(name: str, tmp_path: Path) -> None:
    ALL[name](tmp_path, job(8, stages=2, stage_factor=1.5))
    found = answer(tmp_path)
    assert found.accused == []
    assert {one.peers for one in found.ranks} != {"all"}
    place = tmp_path / "slow"
    place.mkdir()
    ALL[name](place, job(8, stages=2, stage_factor=1.5, slow=[1]))
    assert accused(answer(place)) == [(1, "compute_slow")]


def test_a_pipeline_of_unknown_stages_is_not_compared(tmp_path: Path) -> None:
    parts = job(4, stages=2, stage_factor=1.5)
    found = answer(tables.ascend_cluster(tmp_path, parts, stages=False, bubble=1.0))
    assert (found.verdict, found.accused) == ("cannot_tell", [])
    assert "few_ranks" in found.reasons


# --- no verdict ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ALL)
def test_few_steps_are_no_evidence(name: str, tmp_path: Path) -> None:
    ALL[name](tmp_path, job(steps=2, slow=[2]))
    found = answer(tmp_path)
    assert (found.verdict, found.accused) == ("cannot_tell", [])
    assert "few_steps" in found.reasons


def test_steps_without_communication_show_no_waiting(tmp_path: Path) -> None:
    tables.mindspore(tmp_path, job(slow=[2]), cluster=False, hccl=False)
    found = answer(tmp_path)
    assert (found.verdict, found.accused, found.reasons) == ("cannot_tell", [], ["no_waits"])


def test_waits_alone_are_one_number(tmp_path: Path) -> None:
    tables.mindspore(tmp_path, job(slow=[2]), cluster=False)
    found = answer(tmp_path)
    assert (found.verdict, found.accused, found.reasons) == ("cannot_tell", [], ["no_work_seen"])


def test_calls_of_nccl_have_no_duration(tmp_path: Path) -> None:
    tables.nccl_calls(tmp_path / "nccl.log", job(slow=[2]))
    recording = gather(tmp_path, jobs=1)
    operations = recording.tables()["ranks.collectives"]
    assert operations.height == 4 * 20
    assert set(operations["op"]) == {"all_reduce"}
    assert operations["bytes"].unique().to_list() == [25165824]
    first = operations.filter(pl.col("rank") == 0)["launch_ns"].sort()
    expected = [one.arrived for one in tables.of(job(slow=[2]), 0)]
    assert (first[19] - first[0]) / 1e6 == pytest.approx(expected[19] - expected[0], abs=0.001)
    found = judge(recording, Params()).data
    assert (found.verdict, found.accused, found.reasons) == ("cannot_tell", [], ["no_durations"])


def test_a_snapshot_of_averages_accuses_nobody(tmp_path: Path) -> None:
    tables.xpu_timer(tmp_path / "xpu_timer_metric_0", 4, hung=[3])
    found = answer(tmp_path)
    assert (found.verdict, found.accused, found.reasons) == ("cannot_tell", [], ["no_durations"])
    assert blind(tmp_path)["hang_reported"] == "rank 3"


def test_a_rank_that_nobody_waits_for_costs_nothing(tmp_path: Path) -> None:
    """Ranks that do not wait: one works longer, all communicate equally long."""
    rows = ["rank,step,phase,duration_ms"]
    for step in range(20):
        for rank in range(4):
            rows.append(f"{rank},{step},compute,{60 + 30 * (rank == 1) + step % 3}")
            rows.append(f"{rank},{step},communication,{5 + (step + rank) % 2}")
    (tmp_path / "sums.csv").write_text("\n".join(rows))
    assert answer(tmp_path).accused == []


# --- files as people have them --------------------------------------------------------------------------------------


def test_tables_made_from_profiles_are_left_out_beside_them(tmp_path: Path) -> None:
    tables.ascend_exports(tmp_path, job(slow=[2]))
    tables.ascend_cluster(tmp_path / "cluster_analysis_output", job(slow=[1]))
    assert accused(answer(tmp_path)) == [(2, "compute_slow")]


def test_bad_lines_are_counted(tmp_path: Path) -> None:
    path = tables.plain(tmp_path / "run.csv", job(slow=[2]))
    lines = path.read_text().splitlines()
    lines[7:7] = ['"', "1,2,compute,later,never", "x,1,compute,1,2", "1", "", "0,1,compute,5,4"]
    path.write_text("\ufeff" + "\n".join(lines).replace("rank,step", " Rank ,STEP", 1))
    assert accused(answer(tmp_path)) == [(2, "compute_slow")]
    assert int(blind(tmp_path)["odd_lines"]) >= 4


def test_other_separators_units_and_names(tmp_path: Path) -> None:
    rows = ["Rank;iteration;phase;start_us;dur_us;hostname"]
    for rank, step, phase, begin, end in tables.intervals(job(slow=[2])):
        name = {"compute": "forward", "data": "load_batch", "communication": "nccl:all_reduce"}[phase]
        rows.append(f"rank {rank};{step}.0;{name};{begin * 1e6:.3f};{(end - begin) * 1e6:.3f};node{rank // 2}")
    (tmp_path / "odd name.TXT").write_text("\r\n".join(rows))
    found = answer(tmp_path)
    assert accused(found) == [(2, "compute_slow")]
    assert found.accused[0].host == "node1"


def test_the_documented_table_is_read(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "ranks.md").read_text()
    (tmp_path / "run.csv").write_text(page.split("```csv\n")[1].split("```")[0])
    steps = gather(tmp_path, jobs=1).tables()["ranks.steps"].sort("rank")
    assert (steps["end_ns"] - steps["start_ns"]).to_list() == [94_000_000] * 2
    assert steps["compute_ns"].to_list() == [60_000_000, 85_000_000]
    assert steps["loader_ns"].to_list() == [5_000_000] * 2


def spreadsheet(parts: list[tables.Part], decimal: str) -> str:
    """A spreadsheet's CSV: byte order mark, semicolons, quoted fields, CRLF, ms."""
    rows = ['\ufeff"Rank";"Step";"Phase";"Start (ms)";"End (ms)"']
    for rank, step, phase, begin, end in tables.intervals(parts):
        times = (f'"{1e3 * at:.3f}"'.replace(".", decimal) for at in (begin, end))
        rows.append(";".join([f'"{rank}"', f'"{step}"', f'"{phase}"', *times]))
    return "\r\n".join(rows)


@pytest.mark.parametrize("decimal", [".", ","])
def test_a_table_of_a_spreadsheet_is_read(decimal: str, tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text(spreadsheet(job(slow=[2]), decimal))
    found = answer(tmp_path)
    assert accused(found) == [(2, "compute_slow")]
    assert found.accused[0].lost_ms_per_step == pytest.approx(0.4 * tables.COMPUTE, rel=0.1)


def test_chinese_phases_are_known(tmp_path: Path) -> None:
    path = tables.plain(tmp_path / "run.csv", job(slow=[2]))
    text = path.read_text().replace("compute", "计算").replace("communication", "通信").replace("data", "数据加载")
    path.write_text(text)
    assert accused(answer(tmp_path)) == [(2, "compute_slow")]


def test_phases_of_which_none_is_communication_prove_no_health(tmp_path: Path) -> None:
    """Ranks that wait for each other in something called otherwise have steps of one length."""
    path = tables.plain(tmp_path / "run.csv", job(slow=[2]))
    path.write_text(path.read_text().replace("communication", "phase three"))
    found = answer(tmp_path)
    assert (found.verdict, found.accused) == ("cannot_tell", [])
    assert "no_waits" in found.reasons


@pytest.mark.parametrize("row", ["0,5,compute,0,3", "0,5,compute,1.2,1.3", f"0,{2**40},compute,1,2"])
def test_a_mistyped_instant_accuses_nobody(row: str, tmp_path: Path) -> None:
    path = tables.plain(tmp_path / "run.csv", job(slow=[2]))
    path.write_text(path.read_text() + row + "\n")
    found = answer(tmp_path)
    assert (accused(found), found.steps) == ([(2, "compute_slow")], 20)
    assert blind(tmp_path)["odd_lines"] == "1"


@pytest.mark.parametrize("size", [False, True])
def test_transfers_of_unknown_size_are_not_compared(size: bool, tmp_path: Path) -> None:
    """Two groups, of which one reduces twice as long: more bytes, or a slow link."""
    rows = ["rank,step,phase,start,end,group" + (",size" if size else "")]
    for rank, step, phase, begin, end in tables.intervals(job(4)):
        longer = 0.03 if phase == "communication" and rank > 1 else 0.0
        rows.append(f"{rank},{step},{phase},{begin + 0.03 * step},{end + 0.03 * step + longer},g{rank // 2}")
        rows[-1] += ",4096" if size else ""
    (tmp_path / "run.csv").write_text("\n".join(rows))
    assert bool(answer(tmp_path).links) == size


def test_a_table_that_lacks_a_column_is_refused_with_its_name(tmp_path: Path) -> None:
    path = tables.plain(tmp_path / "run.csv", job())
    path.write_text(path.read_text().replace("rank", "worker", 1))
    for place in (path, tmp_path):
        with pytest.raises(ToolError) as caught:
            answer(place)
        assert caught.value.code is ErrorCode.BAD_TRACE
        assert "without the column rank" in caught.value.message


def test_damaged_and_odd_bytes(tmp_path: Path) -> None:
    content = tables.plain(tmp_path / "run.csv", job(slow=[2])).read_bytes()
    (tmp_path / "run.csv").write_bytes(content[:2000] + bytes(9) + content[2000:])
    assert accused(answer(tmp_path)) == [(2, "compute_slow")]
    (tmp_path / "run.csv").unlink()
    (tmp_path / "run.csv.gz").write_bytes(gzip.compress(content)[:400])
    with pytest.raises(ToolError) as caught:
        answer(tmp_path)
    assert "cut short" in caught.value.message


def test_one_rank_of_a_table_is_opened_by_its_number(tmp_path: Path) -> None:
    path = tables.plain(tmp_path / "run.csv", job())
    assert open_profile(path, 3).rank == 3
    for rank in (None, 9):
        with pytest.raises(ToolError) as caught:
            open_profile(path, rank)
        assert caught.value.code is ErrorCode.BAD_ARGUMENT


def test_text_of_tables_is_made_inert(tmp_path: Path) -> None:
    path = tables.plain(tmp_path / "run.csv", job(slow=[2]))
    path.write_text(path.read_text().replace("compute", "comp\x1b[31mute"))
    names = gather(tmp_path, jobs=1).tables()["ranks.operators"]["name"].unique().to_list()
    assert any("comp" in name for name in names)
    assert not any("\x1b" in name for name in names)


@pytest.mark.parametrize("value", ["9" * 30, "-1", "1e300", "nan", "", "9223372036854775807"])
@pytest.mark.parametrize("column", ["rank", "step", "start", "end", "peer", "seq", "size"])
def test_absurd_numbers_do_no_harm(value: str, column: str, tmp_path: Path) -> None:
    names = ["rank", "step", "phase", "start", "end", "peer", "seq", "size"]
    rows = [",".join(names)]
    for row in tables.intervals(job()):
        rows.append(",".join([*map(str, row), "-1", "-1", "64"]))
    odd = rows[5].split(",")
    odd[names.index(column)] = value
    rows[5] = ",".join(odd)
    (tmp_path / "run.csv").write_text("\n".join(rows))
    with suppress(ToolError):  # it may be refused, in one line
        assert answer(tmp_path).accused == []


@pytest.mark.parametrize("name", ["csv", "mindspore", "ascend_cluster"])
def test_tables_behind_a_url(name: str, tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    (TIMELINES["csv"] if name == "csv" else SUMS[name])(tmp_path, job(slow=[2]))
    memory = fsspec.filesystem("memory")
    memory.put(str(tmp_path) + "/", f"/tables-{name}/", recursive=True)
    found = judge(gather(f"memory://tables-{name}", jobs=1), Params()).data
    assert accused(found) == [(2, "compute_slow")]


@pytest.mark.parametrize("name", ["csv", "ascend_exports"])
def test_sums_of_two_runs_are_compared(name: str, tmp_path: Path) -> None:
    for run, slow in (("before", []), ("after", [2])):
        (tmp_path / run).mkdir()
        SUMS[name](tmp_path / run, job(slow=slow))
    recording = with_before(gather(tmp_path / "after", jobs=1), tmp_path / "before", jobs=1)
    found = compare_runs.judge(recording, compare_runs.Params()).data
    assert found.verdict == "slower"


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("rank,step,phase,start,end\n", "it has no rows"),
        ("rank,step,phase,start,end\nx,y,z,,\n", "no row of it has a rank and a time"),
        ("rank,step,phase,start,end\n99999999,1,compute,1,2\n", "no row of it has a rank and a time"),
    ],
)
def test_a_table_without_a_usable_row_is_refused(content: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "run.csv").write_text(content)
    with pytest.raises(ToolError) as caught:
        answer(tmp_path)
    assert caught.value.code is ErrorCode.BAD_TRACE
    assert why in caught.value.message


def test_other_tables_are_no_traces(tmp_path: Path) -> None:
    (tmp_path / "losses.csv").write_text("step,loss\n1,2\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "damaged.parquet").write_bytes(b"PAR1 nothing of it")
    (tmp_path / "notes.txt").write_text("[Rank 0] is slow\n")
    with pytest.raises(ToolError) as caught:
        answer(tmp_path)
    assert caught.value.code is ErrorCode.BAD_TRACE


def test_processes_that_are_no_ranks_are_refused(tmp_path: Path) -> None:
    path = tables.chrome(tmp_path / "run.json", job())
    path.write_text(path.read_text().replace("Rank ", "worker-"))
    with pytest.raises(ToolError) as caught:
        answer(tmp_path)
    assert "neither named as ranks nor numbered" in caught.value.message


# --- public samples -------------------------------------------------------------------------------------------------


@sampled
@pytest.mark.parametrize("file", ["", "trace-ST.parquet", "timeline-ST.json.gz"])
def test_a_published_job_has_a_slow_last_stage(file: str) -> None:
    """The same as Parquet and as Chrome trace; the last of four stages computes 1.6 times as long as the others."""
    place = SAMPLES / "ndtimeline" / file
    frame = pl.read_parquet(SAMPLES / "ndtimeline" / "trace-ST.parquet")
    frame = frame.filter(pl.col("optype").cast(pl.String).str.ends_with("-compute"))
    by_stage = dict(frame.group_by("stage").agg(pl.col("duration").cast(pl.Float64).sum()).rows())
    assert by_stage[3] / max(by_stage[0], by_stage[1], by_stage[2]) == pytest.approx(1.6, abs=0.05)
    judged = judge(gather(place, jobs=1), Params())
    assert (judged.data.verdict, judged.data.accused, judged.data.steps) == ("stage", [], 32)
    (found,) = [one for one in judged.findings if one.kind == "stage.slow"]
    assert found.attributes["ranks"] == "6-7"
    assert judged.data.matched["alone"] == 0


@sampled
@pytest.mark.parametrize(
    ("sample", "ranks"),
    [
        ("ascend/export_level2", {0, 2}),
        ("ascend/cluster_analysis", set(range(16))),
        ("mindspore/run_3", {1}),
        ("xpu_timer", set(range(8))),
    ],
)
def test_samples_with_too_little_are_read_and_left_open(sample: str, ranks: set[int]) -> None:
    recording = gather(SAMPLES / sample, jobs=1)
    assert set(recording.tables()["ranks.ranks"]["rank"]) == ranks
    found = judge(recording, Params()).data
    assert (found.verdict, found.accused) == ("cannot_tell", [])
    assert found.reasons


@sampled
def test_the_sums_of_a_sample_are_those_of_its_file() -> None:
    steps = gather(SAMPLES / "ascend/cluster_analysis", jobs=1).tables()["ranks.steps"]
    row = steps.filter(pl.col("rank") == 8).row(0, named=True)
    assert row["compute_ns"] == 80_072_450
    assert row["exposed_comm_ns"] == 216_680_955
    assert row["end_ns"] - row["start_ns"] == pytest.approx(374_073_650, abs=10)
