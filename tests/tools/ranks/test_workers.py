from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import pytest

from whystall.tools.ranks.traces.workers import in_processes


def because(task: object, why: str) -> str:
    return f"{task}: {why}"


def test_answers_come_in_the_order_of_the_tasks() -> None:
    assert in_processes(os.path.basename, ["a/b", "c/d", "e/f"], 2, because) == ["b", "d", "f"]


def test_nothing_to_do() -> None:
    assert in_processes(os.path.basename, [], 2, because) == []


def test_the_death_of_one_costs_its_task_only() -> None:
    found = in_processes(eval, ["1 + 1", "__import__('os')._exit(3)", "2 + 2"], 1, because)
    assert found == [2, "__import__('os')._exit(3): its reader ended with status 3", 4]


def test_one_that_is_killed_reports_what_is_most_likely() -> None:
    kill = f"__import__('os').kill(__import__('os').getpid(), {int(signal.SIGKILL)})"
    assert in_processes(eval, [kill], 1, because) == [
        f"{kill}: its reader was killed (SIGKILL): most likely too little memory"
    ]


def test_last_words_are_reported() -> None:
    words = "(__import__('os').write(2, b'memory allocation of 9 bytes failed'), __import__('os').abort())"
    (found,) = in_processes(eval, [words], 1, because)
    assert found.endswith("its reader ended by SIGABRT: memory allocation of 9 bytes failed")


def test_what_is_printed_is_no_answer() -> None:
    assert in_processes(eval, ["print('x' * 100_000) or 5"], 1, because) == [5]


def test_what_the_function_raises_is_raised_and_the_others_end() -> None:
    begin = time.monotonic()
    with pytest.raises(FileNotFoundError):
        in_processes(eval, ["__import__('os').stat('/nowhere')", "__import__('time').sleep(60)"], 2, because)
    assert time.monotonic() - begin < 50  # the sleeper was not waited for


def test_the_working_directory_is_not_searched_for_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "polars.py").write_text("raise SystemExit('imported from where the traces are')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [entry for entry in __import__("sys").path if entry])
    assert in_processes(os.path.basename, ["a/b"], 1, because) == ["b"]


def test_a_reader_goes_before_its_parent_when_memory_runs_out() -> None:
    assert in_processes(eval, ["int(open('/proc/self/oom_score_adj').read())"], 1, because) == [500]
