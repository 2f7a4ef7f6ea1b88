"""The page cache's demo: its judge accepts the right story and no other, and it says in one line why it cannot run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import cache_demo
import cache_job
import demo
import pytest
from slow_disk import Throttle

MIB = 1 << 20
HOT, SHARDS = "/disk/job/embedding.bin", "/data/shard_*.bin"
START = {"event": "start", "pid": 7, "hot": HOT, "shards_in": "/data"}
KINDS = {"file.slow_read": ("pct", 58.0), "cache.thrash": ("bytes/s", 46.0 * MIB)}
Changes = dict[str, Any]


def steps(latency_s: float, hot_s: float, hot_bytes: int, first_ns: int = 0) -> list[dict[str, Any]]:
    length = int(latency_s * 1e9)
    return [
        {
            "event": "step",
            "latency_s": latency_s,
            "hot_s": hot_s,
            "hot_device_bytes": hot_bytes,
            "streamed_bytes": 128 * MIB,
            "start_mono_ns": first_ns + number * length,
            "end_mono_ns": first_ns + (number + 1) * length,
        }
        for number in range(10)
    ]


BEFORE = cache_demo.Part(START, steps(0.5, 0.3, 24 * MIB))
AFTER = cache_demo.Part(START, steps(0.15, 0.003, 0))
ACTOR = {"comm": "python", "pid": 7, "path": SHARDS}


def diagnosis(culprit: Changes | None = None, **changes: Any) -> dict[str, Any]:
    right = {"verdict": "confirmed", "cause": "cache_pollution", "ticket": "1", "coverage": []}
    return {**right, "culprit": {"path": HOT, "actors": [ACTOR], **(culprit or {})}, **changes}


def verified(solved: bool | None = True, **checks: Changes | None) -> dict[str, Any]:
    """What `verify` found; a check is told by the last word of its kind."""
    made = []
    for kind, (unit, before) in KINDS.items():
        changes = checks.get(kind.split(".")[1], {})
        if changes is not None:
            made.append({"kind": kind, "unit": unit, "before": before, "after": None, **changes})
    return {"solved": solved, "checks": made}


def blind(code: str) -> list[Changes]:
    return [{"not_seen": [{"code": code, "detail": ""}]}]


def marks(
    given: Changes, found: Changes, after: cache_demo.Part = AFTER, before: cache_demo.Part = BEFORE
) -> dict[str, bool | None]:
    rows = cache_demo.judge(given, found, before, after)
    assert demo.show(rows, "the job") is all(row.right is not False for row in rows)
    return {row.name: row.right for row in rows}


def test_the_right_story_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    assert set(marks(diagnosis(), verified()).values()) == {True}
    table = capsys.readouterr().out
    assert "24 MiB a step read back, beside 128 MiB read once" in table
    assert "60.0 -> 2.0 % of the time" in table
    assert "46.0 MiB/s, then no more" in table
    assert set(marks(diagnosis(), verified(slow_read={"after": 3.0}, thrash={"after": 0.0})).values()) == {True}


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("verdict", {"cause": "slow_file_read"}),
        ("verdict", {"verdict": "likely"}),
        ("verdict", {"verdict": "healthy"}),
        ("hot file", {"culprit": {"path": "/data/shard_0001.bin"}}),
        ("hot file", {"culprit": {"path": None}}),
        ("who streams", {"culprit": {"actors": [{**ACTOR, "pid": 8}]}}),
        ("who streams", {"culprit": {"actors": []}}),
        ("its files", {"culprit": {"actors": [{**ACTOR, "path": HOT}]}}),
        ("ticket", {"ticket": None}),
    ],
)
def test_a_wrong_diagnosis_is_refused(row: str, wrong: Changes) -> None:
    assert marks(diagnosis(**wrong), verified())[row] is False


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("a step", {"solved": False}),
        ("a step", {"solved": None}),
        ("waits for the hot file", {"slow_read": {"before": 30.0}}),
        ("waits for the hot file", {"slow_read": {"after": 40.0}}),
        ("waits for the hot file", {"slow_read": None}),
        ("hot file from the disk", {"thrash": {"before": 99.0 * MIB}}),
        ("hot file from the disk", {"thrash": {"after": 40.0 * MIB}}),
        ("hot file from the disk", {"thrash": None}),
    ],
)
def test_a_wrong_verification_is_refused(row: str, wrong: Changes) -> None:
    found = marks(diagnosis(), verified(**wrong))
    assert [name for name, right in found.items() if not right] == [row]


def test_a_job_that_goes_on_suffering_is_not_solved_whatever_is_said() -> None:
    found = marks(diagnosis(), verified(), after=BEFORE)
    assert [name for name, right in found.items() if not right] == [
        "waits for the hot file",
        "hot file from the disk",
        "a step",
    ]


def test_beside_other_load_likely_is_right_where_that_is_why() -> None:
    busy = diagnosis(verdict="likely", missing=["low_explained_share"])
    assert marks(busy, verified())["verdict"] is True
    assert marks({**busy, "missing": ["low_explained_share", "one_method"]}, verified())["verdict"] is False
    assert marks({**busy, "cause": "slow_file_read"}, verified())["verdict"] is False


def test_what_verify_cannot_tell_is_no_error_if_it_says_why() -> None:
    unsure = {**verified(solved=None), "missing": ["events_lost"]}
    assert marks(diagnosis(), unsure)["a step"] is None
    assert marks(diagnosis(), unsure, after=BEFORE)["a step"] is False


def test_less_is_accepted_only_where_it_says_that_it_was_sampled() -> None:
    nothing = {"path": None, "actors": []}
    sampled = blind("sampled")
    found = marks(diagnosis(culprit=nothing, verdict="likely", coverage=sampled), verified(thrash=None))
    assert (found["verdict"], found["hot file"], found["its files"]) == (True, None, None)
    assert found["hot file from the disk"] is None
    rough = verified(slow_read={"before": 30.0})
    assert marks(diagnosis(coverage=sampled), rough)["waits for the hot file"] is None
    assert marks(diagnosis(coverage=sampled), rough, after=BEFORE)["waits for the hot file"] is False
    elsewhere = diagnosis(culprit={"path": SHARDS}, coverage=sampled)
    assert marks(elsewhere, verified())["hot file"] is False


def test_it_is_compared_with_whole_steps_of_that_time() -> None:
    log = [START, *steps(0.5, 0.3, 0)]
    part = cache_demo.within(log, int(0.4e9), int(2.6e9))
    assert [step["start_mono_ns"] / 1e9 for step in part.steps] == [0.5, 1.0, 1.5, 2.0]
    assert (part.step_s, part.waits_pct) == (0.5, pytest.approx(60))
    with pytest.raises(demo.DemoError, match="longer --duration"):
        cache_demo.within(log, 0, int(1.2e9))


def test_of_a_ticket_the_section_that_is_asked_for() -> None:
    page = "# Ticket 1\n\n- Open\n\n## Evidence\n\n- x\n\n## Verifications\n\n- `2026`: solved\n\n## Coverage\n\n- y\n"
    assert cache_demo.section(page, "`2026`") == "# Ticket 1\n\n...\n\n## Verifications\n\n- `2026`: solved\n\n..."


@pytest.mark.parametrize("words", [["--duration", "1"], ["--duration", "x"], ["--lang", "fr"], ["--what"]])
def test_bad_options_are_one_line(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        cache_demo.main(words)
    assert ended.value.code == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_without_root_it_says_so(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cache_demo.main([]) == 2
    assert capsys.readouterr().err == "demo: a memory cgroup and a slow disk need root; run as root\n"


@pytest.mark.parametrize("error", [RuntimeError("no cgroup controller 'memory' is mounted"), PermissionError(13, "x")])
def test_without_a_memory_cgroup_it_says_so(
    error: Exception, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(controller: str) -> None:
        raise error

    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(cache_demo, "Cgroup", refuse)
    assert cache_demo.main([]) == 2
    said = capsys.readouterr().err
    assert said.startswith("demo: no memory cgroup can be made: ")
    assert len(said.splitlines()) == 1


def test_the_jobs_options_are_explained(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.argv", ["cache_job.py", "--help"])
    with pytest.raises(SystemExit) as ended:
        cache_job.main()
    assert ended.value.code == 0
    assert "--streamer" in capsys.readouterr().out


def test_the_disks_limit_follows_where_a_process_lies_in_one_cgroup_only(tmp_path: Path) -> None:
    disk, memory = (tmp_path / name for name in ("disk", "memory"))
    for cgroup in (disk, memory):
        cgroup.mkdir()
        (cgroup / "io.max").touch()
    throttle = Throttle.__new__(Throttle)
    throttle.path, throttle._number, throttle._legacy = disk, "7:0", False
    throttle.limit(0, 60 * MIB)
    throttle.follow(memory)
    assert (memory / "io.max").read_text() == "7:0 wbps=max rbps=62914560"
    throttle.follow(tmp_path)  # a cgroup of another hierarchy
