"""``whystall history`` and the MCP tool on a log that `History` wrote: jobs by name, errors, texts, pages."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from whystall.agent_server.inputs.record_params import RecordParams
from whystall.agent_server.interfaces.mcp.history import history_entry
from whystall.agent_server.presentation.history_lines import history_text
from whystall.agent_server.presentation.history_pages import history_pages
from whystall.agent_server.watch.history import HistoryParams, history
from whystall.knowledge_base.models import Lang
from whystall.tools.collect.slice_history import LOG_BYTES, LOG_NAME, PART_NS, PARTS
from whystall.tools.collect.slice_log import SliceLog
from whystall.tools.collect.slice_parts import HISTORY, packed
from whystall.tools.contract.errors import ToolError
from whystall.tools.contract.result import Status
from whystall.tools.history.path_data import PathChange, PathDifference, PathSpan

MINUTE = PART_NS * PARTS
S = 1_000_000_000
# names as hostile as a host may have them
HOSTILE = "</script>`<b>\u202e"


def write_log(directory: Path, minutes: int, sampled: int = S // 19) -> None:
    """Write minutes until now of two jobs; in the last ten one of them waits for a file, and runs more."""
    log = SliceLog(directory / LOG_NAME, LOG_BYTES, every_boot=True)
    last = time.time_ns() // MINUTE
    for at in range(minutes):
        slow = at >= minutes - 10
        rows = [
            [7, "python", True, "S", "futex", "load (train.py:7)", "", 20, S,
             [["timer", S]], *[4 * S + at % 3 * S] * 6],
            [7, "python", True, "D", "fsync", f"save ({HOSTILE}:9)", f"/ckpt/{HOSTILE}", 3, S,
             [["block", S]], *[(6 if slow else 0) * S] * 6],
            [7, "python", True, "running", "", f"step ({HOSTILE}:5)", "", 0, 0, [], *[(4 if slow else 2) * S] * 6],
            [8, "python", True, "S", "read", "serve (app.py:3)", "tcp 10.0.0.3:80", 5, S, [["network", S]], *[S] * 6],
        ]  # fmt: skip
        jobs = {"7": ["slurm:1", "llama-sft"], "8": ["process:8", "serve-llama"]}
        known = {"recorded": [PART_NS] * 6, "run": 1, "min_ns": 1_000_000, "lost": 0, "sample_ns": sampled}
        start = (last - minutes + at) * MINUTE
        content = {"form": 2, "rows": rows, "jobs": jobs, **known}
        log.append(HISTORY, start, start + MINUTE, packed(content))
    log.close()


def code_of(params: HistoryParams, directory: Path) -> tuple[str, str]:
    with pytest.raises(ToolError) as refused:
        history(params, directory)
    return refused.value.code.value, str(refused.value)


def test_a_job_is_chosen_by_its_name(tmp_path: Path) -> None:
    write_log(tmp_path, 40)
    for name in ("llama-sft", "SLURM:1", "sft"):
        judged = history(HistoryParams(since="40m", job=name), tmp_path)
        assert judged.result.data.jobs == ["llama-sft"]
    change, more = judged.result.data.changes
    assert (change.call, change.direction) == ("fsync", "appeared")
    assert (more.state, more.line.partition(" ")[0], more.direction) == ("running", "step", "grew")
    assert {finding.kind for finding in judged.result.findings} == {"wait.change", "running.change"}
    assert history(HistoryParams(since="40m", pid=8), tmp_path).result.data.jobs == ["serve-llama"]
    code, text = code_of(HistoryParams(job="llama"), tmp_path)
    assert code == "bad_argument"
    assert "llama-sft, serve-llama" in text
    code, text = code_of(HistoryParams(job="no-such-job"), tmp_path)
    assert code == "not_found"
    assert "recorded jobs: llama-sft, serve-llama" in text


def test_a_baseline_may_be_any_other_span(tmp_path: Path) -> None:
    write_log(tmp_path, 40)
    for params in (
        HistoryParams(since="10m", baseline_since="40m"),
        HistoryParams(since="10m", before=True),
        HistoryParams(since="10m", baseline_since="40m", baseline_until="20m"),
    ):
        data = history(params, tmp_path).result.data
        change, more = data.changes
        assert (change.call, change.direction in ("appeared", "grew")) == ("fsync", True)
        assert (more.state, more.before, more.after) == ("running", pytest.approx(0.2, abs=0.03), 0.4)
        assert data.rows[0].before_s is not None


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.mark.parametrize(
    ("given", "code"),
    [
        ({"since": "1x"}, "bad_argument"),
        ({"since": "10m", "until": "20m"}, "bad_argument"),
        ({"since": "2999-01-01T00:00Z"}, "bad_argument"),
    ],
)
def test_a_wrong_span_is_refused(tmp_path: Path, given: dict[str, str], code: str) -> None:
    write_log(tmp_path, 1)
    assert code_of(HistoryParams(**given), tmp_path)[0] == code


def test_without_a_watch_the_error_says_so(tmp_path: Path) -> None:
    code, text = code_of(HistoryParams(), tmp_path)
    assert (code, "no watch has recorded on this host" in text) == ("not_found", True)
    SliceLog(tmp_path / LOG_NAME, LOG_BYTES, every_boot=True).close()
    assert code_of(HistoryParams(), tmp_path)[0] == "not_found"
    (tmp_path / LOG_NAME).write_bytes(b"x" * 10_000)
    assert code_of(HistoryParams(), tmp_path)[0] == "bad_recording"


def test_a_span_without_a_record_is_partial(tmp_path: Path) -> None:
    write_log(tmp_path, 5)
    result = history(HistoryParams(since="3h", until="2h"), tmp_path).result
    assert result.status is Status.PARTIAL
    assert not result.data.rows
    assert {spot.code for spot in result.coverage.not_seen} == {"history_begins", "history_short"}


def test_running_time_is_apart_from_waiting(tmp_path: Path) -> None:
    write_log(tmp_path, 40)
    data = history(HistoryParams(since="20m", pid=7), tmp_path).result.data
    (row,) = data.running
    assert (row.waited_s, data.ran_s, row.count, row.idle) == (data.ran_s, row.waited_s, 0, False)
    assert all(one.state != "running" for one in data.rows)
    assert data.waited_s == pytest.approx(sum(one.waited_s for one in data.rows))
    # an older watch has counted no samples: what ran is not taken for nothing
    (tmp_path / LOG_NAME).unlink()
    write_log(tmp_path, 40, sampled=0)
    result = history(HistoryParams(since="20m", pid=7), tmp_path).result
    assert (result.data.ran_s, result.data.running) == (None, [])
    assert "history_unsampled" in {spot.code for spot in result.coverage.not_seen}
    assert {one.state for one in result.data.changes} == {"D"}


def test_of_old_spans_the_ends_of_chains_are_not_known(tmp_path: Path) -> None:
    write_log(tmp_path, 40)
    result = history(HistoryParams(since="10m", before=True, job="llama-sft"), tmp_path).result
    assert result.data.path is None
    spots = [spot for spot in result.coverage.not_seen if spot.code == "path_not_kept"]
    assert [spot.detail.partition(":")[0] for spot in spots] == ["baseline", "span"]
    assert "only the coarse history is left" in history_text(result, "en")
    result = history(HistoryParams(since="10m", before=True), tmp_path).result
    assert [spot.code for spot in result.coverage.not_seen if spot.code.startswith("path")] == ["path_several_jobs"]


def part_of_a_step(verdict: str, **numbers: float) -> PathChange:
    names = {"line": f"next_batch ({HOSTILE}:41)", "root": f"{HOSTILE} (4102 of 4000)", "root_what": "file"}
    times = {"before_ms": 20.0, "after_ms": 130.0, "change_ms": 110.0, **numbers}
    return PathChange.model_validate(
        {"verdict": verdict, "what": "queue", **names, "root_object": f"/data/{HOSTILE}", **times}
    )


@pytest.mark.parametrize(
    ("lang", "expected"),
    [
        (
            "en",
            (
                "+110 ms (95 ms to 124 ms; p = 0.0001, q = 0.001), from 20 ms to 130 ms",
                "only a change of 60 ms",
                "too few",
            ),
        ),
        ("zh", ("+110 ms（95 ms 至 124 ms；p = 0.0001，q = 0.001）", "只有达到 60 ms 的变化才能看出", "无法检验")),
    ],
)
def test_critical_paths_are_in_the_text_and_on_the_page(tmp_path: Path, lang: Lang, expected: tuple[str, ...]) -> None:
    write_log(tmp_path, 40)
    judged = history(HistoryParams(since="10m", before=True), tmp_path)
    tested = {"low_ms": 95.0, "high_ms": 124.0, "p_value": 1e-4, "q_value": 1e-3, "detectable_ms": 60.0}
    span = PathSpan(since="2026-01-01T00:00:00Z", until="2026-01-01T00:01:00Z", count=50)
    rows = [part_of_a_step("grew", **tested), part_of_a_step("cannot_tell", **tested), part_of_a_step("cannot_tell")]
    judged.result.data.path = PathDifference(
        pid=4000, tid=4000, comm=HOSTILE, unit="step", step_line="next_batch", before=span, after=span, rows=rows,
        step=rows[0], tested=3,
    )  # fmt: skip
    text = history_text(judged.result, lang)
    page, _ = history_pages(judged.result, judged.spans, lang)
    for one in expected:
        assert one in text
        assert one in page.text
    assert "\u202e" not in text
    assert "</script>`" not in page.text


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_texts_and_pages_are_complete_and_inert(tmp_path: Path, lang: Lang) -> None:
    write_log(tmp_path, 40)
    judged = history(HistoryParams(since="10m", before=True), tmp_path)
    text = history_text(judged.result, lang)
    assert "\u202e" not in text
    page, picture = history_pages(judged.result, judged.spans, lang)
    assert "</script>`" not in page.text
    assert page.text.count('<svg id="map') == 2  # the baseline beside it
    assert picture.text.startswith("<svg ")
    assert not re.search(r'(?:src|href)="(?!data:)', page.text + picture.text)  # nothing is fetched


@pytest.mark.anyio
async def test_the_tool_answers_within_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    (tmp_path / "watch").mkdir()
    write_log(tmp_path / "watch", 40)

    async def progress(*_: object) -> None: ...

    entry = history_entry("en")
    result, text = await entry.answer({"since": "40m"}, progress)
    assert len(text) < 3900
    assert "fsync" in text
    found = result.model_dump()
    assert [one["media_type"] for one in found["artifacts"]] == ["text/html", "image/svg+xml"]
    with pytest.raises(ToolError):
        await entry.answer({"baseline_until": "1h"}, progress)


def test_the_end_of_a_past_span_lies_within_it() -> None:
    assert RecordParams(past=60, past_end=10).past_end == 10
    for given in ({"past": 5, "past_end": 6}, {"past_end": 6}):
        with pytest.raises(ValueError, match="past_end needs a past"):
            RecordParams.model_validate(given)
