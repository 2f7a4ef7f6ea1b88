"""``whystall kb similar``: the like of a diagnosis, or of findings."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
RECORDED = Path(__file__).parents[2] / "recorded"


def test_a_diagnosis_and_its_findings_lead_to_past_incidents(whystall: Run) -> None:
    found = json.loads(whystall("diagnose", "--from", str(RECORDED / "checkpoint"), "--json").stdout)
    same = json.loads(whystall("kb", "similar", found["id"], "--json").stdout)
    assert [h["match"]["incident"] for h in same["hits"]] == [m["incident"] for m in found["matches"]]
    told = ("--kinds", "file.slow_sync,file.slow_write", "--features", "op:fsync")
    hits = json.loads(whystall("kb", "similar", *told, "--json").stdout)["hits"]
    assert hits
    for lang in ("en", "zh"):
        text = whystall("kb", "similar", *told, "--lang", lang).stdout
        assert hits[0]["incident"]["title"][lang] in text


@pytest.mark.parametrize(
    ("words", "status", "told"),
    [
        ((), 2, "error: bad_argument: nothing to compare with"),
        (("--kinds", "file.slow_sink"), 2, "file.slow_sync"),
        (("--features", "fsync"), 2, "error: bad_argument: features: unknown 'fsync'"),
        (("--limit", "0", "--symptom", "x"), 2, "error: bad_argument: "),
        (("20260101T000000-000000",), 1, "error: not_found: "),
        (("x", "--kinds", "file.slow_sync"), 2, "error: bad_argument: a diagnosis has its own kinds"),
    ],
    ids=["nothing", "kind", "feature", "limit", "diagnosis", "both"],
)
def test_what_cannot_be_compared_is_one_line(words: tuple[str, ...], status: int, told: str, whystall: Run) -> None:
    done = whystall("kb", "similar", *words)
    assert done.returncode == status
    assert told in done.stderr
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
