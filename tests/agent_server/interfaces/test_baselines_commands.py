"""``whystall baselines``: a run is stored, listed, compared with and deleted."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
RANKS = Path(__file__).parents[2] / "recorded" / "ranks"


@pytest.mark.thorough
def test_the_life_of_a_baseline(whystall: Run, tmp_path: Path) -> None:
    own = {"WHYSTALL_HOME": str(tmp_path)}
    stored = whystall("baselines", "add", "job", str(RANKS / "nothing"), "--json", env=own)
    assert stored.returncode == 0, stored.stderr
    count = json.loads(stored.stdout)["operators"]
    assert count > 0
    again = whystall("baselines", "add", "job", str(RANKS / "nothing"), env=own)
    assert again.stdout == "This run is in baseline job already.\n"
    (listed,) = json.loads(whystall("baselines", "list", "--json", env=own).stdout)
    assert (listed["name"], listed["runs"], listed["operators"]) == ("job", 1, count)
    words = ["run", "compare_runs", "--baseline", "job", "--after", str(RANKS / "nothing")]
    for lang, verdict in (("en", "no operator differs from the stored runs"), ("zh", "没有算子与已存的运行不同")):
        done = whystall(*words, "--lang", lang, env=own)
        assert done.returncode == 0, done.stderr
        assert verdict in done.stdout.splitlines()[1]
    assert whystall("baselines", "delete", "job", env=own).returncode == 0
    missing = whystall(*words, env=own)
    assert missing.returncode != 0
    assert missing.stderr == (
        "error: not_found: no baseline 'job' is stored; list them with `whystall baselines list`\n"
    )
    assert whystall("baselines", "list", env=own).stdout == "No baselines.\n"
