"""``whystall kb eval`` as a user meets it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]


def test_it_measures_this_hosts_base_as_a_table_in_both_languages(whystall: Run, tmp_path: Path) -> None:
    env = {"WHYSTALL_HOME": str(tmp_path)}
    for lang, words in (("en", "cards"), ("zh", "张卡片")):
        done = whystall("kb", "eval", "--set", "evidence", "--most", "3", "--misses", "1", "--lang", lang, env=env)
        assert done.returncode == 0, done.stderr
        assert words in done.stdout.splitlines()[0]
        rows = [line.split() for line in done.stdout.splitlines() if line.startswith("evidence ")]
        methods = [(of, method) for of in ("en", "zh") for method in ("ours", "fts", "constant")]
        assert [(row[1], row[2]) for row in rows[:6]] == methods
        assert all(row[3] == "3" for row in rows[:6])


@pytest.mark.thorough
def test_as_json_it_holds_what_the_table_shows(whystall: Run, tmp_path: Path) -> None:
    done = whystall("kb", "eval", "--curated", "--set", "questions", "--json", env={"WHYSTALL_HOME": str(tmp_path)})
    found = json.loads(done.stdout)
    assert {row["method"] for row in found["rows"]} == {"ours", "fts", "constant"}
    assert all(row["hit1"]["low"] <= row["hit1"]["value"] <= row["hit1"]["high"] for row in found["rows"])
    assert not list(tmp_path.glob("*.db")), "the base of this host was made though it was not asked for"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (("--set", "recurrence"), 1, "not_found: "),
        (("--set", "vibes"), 2, "there is no set 'vibes'"),
        (("--most", "0"), 2, "--most"),
    ],
)
def test_no_queries_and_wrong_arguments_fail(
    words: tuple[str, ...], code: int, said: str, whystall: Run, tmp_path: Path
) -> None:
    done = whystall("kb", "eval", *words, env={"WHYSTALL_HOME": str(tmp_path)})
    assert done.returncode == code
    assert said in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert done.stdout == ""
