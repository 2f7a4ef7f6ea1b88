"""The account of the victim's time in texts, tickets and chat messages."""

from __future__ import annotations

from typing import Any

import pytest
from making import checkpoint, finding, victim

from whystall.agent_server.diagnosis.account import account
from whystall.agent_server.diagnosis.culprit import culprit
from whystall.agent_server.diagnosis.verdict import Conclusion
from whystall.agent_server.integrations.chat.message_texts import verdict_message
from whystall.agent_server.presentation.account_lines import critical_path_lines
from whystall.agent_server.presentation.texts import diagnosis_text, ticket_markdown
from whystall.knowledge_base.causes import load_causes
from whystall.knowledge_base.models import Actor, Assessment, CauseState, Diagnosis, Verdict
from whystall.knowledge_base.tickets import drafting
from whystall.tools.host.critical_path.tool import Data, PathRow, ThreadRow

SAVE = "save_checkpoint (train.py:33)"
SLEEP = {"wait": "sleep", "code": "process_batch (train.py:21)", "function": "process_batch (train.py:21)"}
CALL = {"mode": "system", "detail": "getrandom", "code": SAVE, "function": SAVE}
QUEUE = {"wait": "queue", "code": "get (queue.py:180)", "function": "next_batch (train.py:41)", "root_wait": "running"}
PATH = [
    finding("path.wait", id="P1", words=SLEEP, window_pct=75, total_ms=7500),
    finding("path.running", id="P2", words=CALL, window_pct=12.25, total_ms=1225),
    finding("path.wait", id="P3", words=QUEUE | {"root_by": "worker (830)"}, window_pct=9, total_ms=900, root_pct=80),
    finding(
        "path.pause",
        id="P4",
        words={
            "code": "draw (train.py:9)",
            "function": "save_checkpoint (train.py)",
            "main_wait": "file",
            "main": "fsync",
        },
        window_pct=4.5,
        period_s=2.8,
        p50_ms=130,
        main_pct=85,
    ),
]
ROWS = [
    "  75 %  sleeps for a time it asked for, at process_batch (train.py:21) [P1]",
    "12.2 %  runs in the system call getrandom, at save_checkpoint (train.py:33) [P2]",
    "   9 %  waits for another thread to hand it work or a result, at get (queue.py:180), "
    "called by next_batch (train.py:41); meanwhile worker (830) runs (80 % of it) [P3]",
    "3.75 %  everything else",
    "What recurs, as part of these rows:",
    " 4.5 %  pauses every 2.8 s for 130 ms, at save_checkpoint (train.py); "
    "85 % of it: waits for an operation on a file (fsync), at draw (train.py:9)",
]


def diagnosis(**changes: Any) -> Diagnosis:
    known = checkpoint()
    rows = account(PATH, victim())
    return checkpoint(**{"findings": [*known.findings, *PATH], "account": rows} | changes)


def test_the_account_is_a_table_of_the_text() -> None:
    lines = diagnosis_text(diagnosis(), load_causes(), "en").splitlines()
    at = lines.index("Where the time of train (4243) went:")
    assert lines[at + 1 : at + 7] == ROWS


def test_it_is_a_list_of_the_ticket() -> None:
    ticket = drafting.draft(diagnosis(), load_causes(), "2025-01-01T00:00:00Z").model_copy(update={"id": "3"})
    said = ticket_markdown(ticket, "zh", load_causes())
    assert "## `train` (4243) 的时间去向" in said
    assert "- 75 %：在睡眠（自己要求的时长），位于 `process_batch` (`train.py:21`)\n" in said


def test_a_chat_shows_the_three_largest_rows() -> None:
    said = verdict_message(diagnosis(), "en").text
    assert "- 9 %: waits for another thread" in said
    assert "everything else" not in said


def test_the_tool_shows_the_table_that_sums_to_the_window() -> None:
    slept = PathRow(what="sleep", line="f (a.py:3)", inner="f (a.py:3)", window_pct=90, total_ms=9000, count=9)
    thread = ThreadRow(pid=7, tid=7, comm="train")
    data = Data(thread=thread, chosen_by="main_thread", runner_up=thread, rows=[slept])
    assert critical_path_lines(data, "en") == [
        "Where the time of train (7) went",
        "  chosen as the main thread that does the work; next best: train (7)",
        "  90 %  sleeps for a time it asked for, at f (a.py:3)",
        "  10 %  everything else",
    ]


@pytest.mark.parametrize("first", ["P2", "P1"])
def test_a_second_cause_of_other_time_has_its_size_place_and_remedy(first: str) -> None:
    both = [
        Assessment(cause="slow_file_read", state=CauseState.SUPPORTED, window_pct=75, for_=["P1"]),
        Assessment(cause="sync_checkpoint_write", state=CauseState.SUPPORTED, window_pct=12.25, for_=[first]),
    ]
    said = diagnosis_text(diagnosis(cause="slow_file_read", assessments=both), load_causes(), "en")
    title = load_causes()["sync_checkpoint_write"].title.en
    place = SAVE if first == "P2" else "process_batch (train.py:21)"
    assert f"- {title}: 12.2 % of the window, at {place}" in said
    assert ("try first" in said) is (first == "P2")


def test_causes_that_one_finding_rules_out_share_a_line() -> None:
    calm = finding("memory.reclaim", id="M1", polarity="normal")
    states = [
        Assessment(cause=id, state=CauseState.RULED_OUT, against=["M1"], by=["host_snapshot", tool])
        for id, tool in (("memory_reclaim", "host_snapshot"), ("streaming_reclaim", "page_cache"))
    ]
    found = checkpoint(findings=[*checkpoint().findings, calm], assessments=states)
    text = diagnosis_text(found, load_causes(), "en")
    assert "Ruled out: Memory reclaim; One-pass I/O through a full page cache [M1]\n" in text


@pytest.mark.parametrize(
    ("verdict", "first"),
    [("likely", "LIKELY - Synchronous"), ("inconclusive", "INCONCLUSIVE - possibly: Synchronous")],
)
def test_a_cause_without_enough_evidence_is_a_candidate(verdict: str, first: str) -> None:
    text = diagnosis_text(checkpoint(verdict=verdict), load_causes(), "en")
    assert text.startswith(f"Verdict: {first}")
    assert ("If so: " in text, "What happens: " in text) == (verdict == "inconclusive", verdict == "likely")


def test_the_samples_of_a_function_are_no_calls() -> None:
    row = finding(
        "path.running", id="w", words={"mode": "user", "function": SAVE}, window_pct=80, count=754, total_ms=7600
    )
    blamed = culprit(
        Conclusion(verdict=Verdict.LIKELY, cause="own_hot_code", chain=["w"]), [row], load_causes(), victim()
    )
    assert blamed is not None
    assert (blamed.count, blamed.latency_ms, blamed.window_pct) == (None, None, 80)


def test_what_each_step_does_is_no_pause() -> None:
    often = finding("path.pause", id="P5", words={"function": "ask (a.py)"}, window_pct=48, period_s=0.2, p50_ms=97)
    text = diagnosis_text(diagnosis(findings=[*PATH, often]), load_causes(), "en")
    assert "pauses every 2.8 s" in text
    assert "pauses every 200 ms" not in text


def test_an_actor_in_a_ticket_is_text_with_its_names_as_code() -> None:
    actor = Actor(pid=9, comm="server", code="look_up (s.py:7)")
    known = checkpoint()
    assert known.culprit is not None
    found = known.model_copy(update={"culprit": known.culprit.model_copy(update={"actors": [actor, actor]})})
    text = ticket_markdown(drafting.draft(found, load_causes(), "2025-01-01T00:00:00Z"), "en", load_causes())
    one = "`server` (pid 9), at `look_up` (`s.py:7`)"
    assert f"- Done by: {one}; {one}\n" in text
