"""The critical paths of two recordings compared, on recordings made by hand."""

from __future__ import annotations

import random
from statistics import fmean

import pytest
from loader_steps import COPY, DECODER, NEXT, recording_of, waits_ms
from recordings import PID, Scene

from whystall.agent_server.presentation.texts import result_text
from whystall.tools.contract.result import BlindSpot
from whystall.tools.history.path_changes import findings_of_path
from whystall.tools.history.path_data import PathDifference
from whystall.tools.host.critical_path.step_accounts import path_difference
from whystall.tools.host.critical_path.tool import TOOL
from whystall.tools.recording.judging import judge
from whystall.tools.recording.store import Recording


def compared(before: Recording, after: Recording) -> tuple[PathDifference, list[BlindSpot]]:
    found, spots = path_difference(before, after)
    assert found is not None
    return found, spots


def test_what_made_the_steps_slower_is_found_with_the_thread_and_the_file_at_the_end() -> None:
    old, new = waits_ms(80, 30, 1), waits_ms(40, 140, 2)
    found, spots = compared(recording_of(old), recording_of(new))
    assert [spot.code for spot in spots] == ["objects_not_read"]
    assert (found.unit, found.tid, found.comm) == ("step", PID, "train")
    assert found.before.count - found.after.count == 40
    truth = fmean(new) - fmean(old)
    for one in (found.step, found.rows[0]):
        assert one is not None
        assert one.verdict == "grew"
        assert one.low_ms is not None
        assert one.high_ms is not None
        assert one.low_ms < truth < one.high_ms
        assert one.change_ms == pytest.approx(truth, abs=3)
    first = found.rows[0]
    assert (first.what, first.line) == ("queue", "next_batch (train.py:41)")
    assert (first.root, first.root_what, first.root_line) == ("decoder (4102 of 4000)", "file", "decode (data.py:17)")
    assert first.root_object == "/data/a*.bin"
    rest = {row.what: row.verdict for row in found.rows[1:]}
    assert rest == {"file": "unchanged", "running": "unchanged"}
    assert (found.changed, found.tested) == (1, 3)
    (finding,) = findings_of_path(found, 0, 1)
    assert finding.metrics["after_ms"] == first.after_ms
    assert finding.attributes["root_object"] == "/data/a*.bin"


def test_the_same_waits_with_another_root_are_a_change() -> None:
    found, _ = compared(recording_of(waits_ms(60, 50, 1)), recording_of(waits_ms(60, 50, 2), "unpacker"))
    verdicts = {row.root: row.verdict for row in found.rows if row.what == "queue"}
    assert verdicts == {"decoder (4102 of 4000)": "vanished", "unpacker (4102 of 4000)": "appeared"}
    assert found.step is not None
    assert found.step.verdict == "unchanged"


def test_a_place_that_is_skipped_in_one_span_does_not_make_the_steps_longer() -> None:
    """A batch that is there already is not waited for; the copy in each step is."""
    skipped = [ms if number % 2 else 0.0 for number, ms in enumerate(waits_ms(80, 30, 2))]
    found, _ = compared(recording_of(waits_ms(80, 30, 1)), recording_of(skipped))
    assert (found.step_line, found.after.count) == ("copy (train.py:60)", 79)
    assert found.rows[0].verdict == "shrank"


def test_too_few_steps_are_not_judged_by_their_parts() -> None:
    found, _ = compared(recording_of(waits_ms(6, 30, 1)), recording_of(waits_ms(6, 140, 2)))
    assert (found.unit, found.tested) == ("step", None)
    assert {row.verdict for row in found.rows} == {"cannot_tell"}
    assert not findings_of_path(found, 0, 1)


def test_without_steps_the_account_is_per_second() -> None:
    rng = random.Random(1)

    def irregular(mean: float) -> Recording:
        scene = Scene().thread(user=30)
        at = 0.0
        while at < 11.5:
            ms = min(300.0, rng.expovariate(1 / mean)) + 2
            scene.wait(at, ms, "fsync", "/out", state="D", user=COPY, runnable_ns=0)
            at += ms / 1e3 + 0.1 * rng.random() ** 3
        return scene.build()

    found, _ = compared(irregular(20), irregular(60))
    assert (found.unit, found.step) == ("second", None)
    assert sum(row.after_ms for row in found.rows) == pytest.approx(1000, abs=5)
    assert [(row.what, row.verdict) for row in found.rows[:2]] == [("file", "grew"), ("running", "shrank")]


def test_time_before_the_process_was_recorded_is_not_taken_for_running() -> None:
    late = Scene(window_s=20).thread(user=30)
    rng = random.Random(5)
    for recorded in (whole := Scene(window_s=20).thread(user=30), late):
        at = 0.01 if recorded is whole else 10.0
        while at < 19.5:
            ms = min(300.0, rng.expovariate(1 / 40)) + 2
            recorded.wait(at, ms, "fsync", "/out", state="D", user=COPY, runnable_ns=0)
            at += ms / 1e3 + 0.1 * rng.random() ** 3
    found, _ = compared(late.build(), whole.build())
    assert found.unit == "second"
    assert found.before.count < 0.6 * found.after.count
    assert {row.verdict for row in found.rows} <= {"unchanged", "cannot_tell"}


def test_less_detail_in_one_span_is_no_change() -> None:
    whole, lowered = recording_of(waits_ms(60, 50, 1)), recording_of(waits_ms(60, 50, 2))
    lowered.manifest.collectors["switches"].options["min_ns"] = 30_000_000
    tables = lowered.tables()
    long = tables["switches.segments"]["end_ns"] - tables["switches.segments"]["start_ns"] >= 30_000_000
    tables["switches.segments"] = tables["switches.segments"].filter(long)
    lowered = Recording.in_memory(lowered.manifest, tables)
    found, spots = compared(whole, lowered)
    assert [spot.code for spot in spots] == ["objects_not_read", "path_lowered"]
    assert {row.verdict for row in found.rows} <= {"unchanged", "cannot_tell"}
    assert not any(row.root for row in found.rows)  # of waits shorter than a second
    found, spots = compared(lowered, recording_of(waits_ms(60, 2500, 3)))
    assert spots[1].detail == "30 ms, 1000 ms"
    assert found.rows[0].root_object == "/data/a*.bin"


def test_an_interrupted_span_and_another_thread_are_not_compared() -> None:
    whole, cut = recording_of(waits_ms(20, 50, 1)), recording_of(waits_ms(20, 50, 2))
    cut.manifest.collectors["switches"].not_seen.append(BlindSpot(code="cut_short", detail="900 ms"))
    assert path_difference(whole, cut) == (None, [BlindSpot(code="path_gap")])
    other = Scene(comms={PID: "server"}).thread(comm="server", user=30).build()
    found, spots = path_difference(recording_of(waits_ms(20, 50, 1)), other)
    assert (found, [spot.code for spot in spots]) == (None, ["path_other_thread"])


def test_what_else_differs_between_two_recordings_is_stated() -> None:
    old, new = waits_ms(60, 30, 1), waits_ms(60, 90, 2)
    other = recording_of(new, kernel="5.10.0", host="node9", cpus=64)
    other.manifest.collectors["switches"].lost = 100
    found, spots = compared(recording_of(old), other)
    assert {spot.code: spot.detail for spot in spots[:3]} == {
        "path_other_kernel": "6.18.0 x86_64 / 5.10.0 x86_64",
        "path_other_host": "node7 (2 CPUs) / node9 (64 CPUs)",
        "path_lost": "0 % / 9.1 %",
    }
    assert found.rows[0].verdict == "grew"
    redacted = recording_of(new, redacted=True)
    assert path_difference(recording_of(old), redacted) == (None, [BlindSpot(code="path_redacted")])
    slow = recording_of(new)
    slow.manifest.collectors["switches"].engine = "bcc"
    refused = BlindSpot(code="path_other_engine", detail="ebpf / bcc")
    assert path_difference(recording_of(old), slow) == (None, [refused])


def test_lines_that_an_edit_has_moved_are_compared_as_one() -> None:
    old, new = waits_ms(60, 30, 1), waits_ms(60, 90, 2)
    edited = (NEXT[0], "next_batch (train.py:47)", NEXT[2])
    found, spots = compared(recording_of(old), recording_of(new, lines=edited, host="node9"))
    assert "path_lines_moved" in {spot.code for spot in spots}
    assert next(spot.detail for spot in spots if spot.code == "path_lines_moved") == "next_batch (train.py:41) -> 47"
    (first,) = [row for row in found.rows if row.verdict == "grew"]
    assert (first.what, first.line) == ("queue", "next_batch (train.py:47)")
    # in one process no line has moved: it waits in another place
    found, spots = compared(recording_of(old), recording_of(new, lines=edited))
    assert {row.verdict for row in found.rows if row.what == "queue"} == {"appeared", "vanished"}


def test_programs_with_little_in_common_are_pointed_out() -> None:
    def program(line: str, path: str) -> Recording:
        scene = Scene().thread(user=1)
        for at in range(11):
            scene.wait(at + 0.1, 950, "fsync", path, state="D", user=(line,), runnable_ns=0)
        return scene.build()

    _, spots = compared(program("save (a.py:1)", "/a"), program("load (b.py:9)", "/b"))
    assert "path_little_in_common" in {spot.code for spot in spots}


def test_a_thread_that_was_asked_for_is_compared_with_the_one_of_its_role() -> None:
    found, _ = path_difference(recording_of(waits_ms(60, 50, 1)), recording_of(waits_ms(60, 50, 2)), tid=DECODER)
    assert found is not None
    assert (found.tid, found.comm) == (DECODER, "decoder")


def test_the_tool_states_what_changed_before_where_the_time_went() -> None:
    later = recording_of(waits_ms(40, 140, 2))
    later.before = recording_of(waits_ms(80, 30, 1))
    result = judge(TOOL, later, TOOL.params())
    assert result.data.compared is not None
    (change,) = [finding for finding in result.findings if finding.kind == "step.change"]
    assert change.attributes["root_object"] == "/data/a*.bin"
    for lang, expected in (("en", "per step, from one wait at"), ("zh", "每步关键路径")):
        text = result_text(result, lang)
        assert expected in "".join(text.splitlines()[:3])
        assert f"[{change.id}]" in text
        assert text.count(change.id) == 1  # not once more among the findings
        assert "/data/a*.bin" in text
    later.before = None
    alone = judge(TOOL, later, TOOL.params())
    assert alone.data.compared is None
    assert result.data.rows == alone.data.rows
