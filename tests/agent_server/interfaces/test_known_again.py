"""It remembers: a fault that was solved and reviewed is known the next time, through the command line."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., "subprocess.CompletedProcess[str]"]
RECORDED = Path(__file__).parents[2] / "recorded"
FIX = "checkpoints are written by a thread of their own since release 7"


class Story:
    """The commands of one user, in a state directory of their own."""

    def __init__(self, whystall: Run, home: Path) -> None:
        self._whystall = whystall
        self._home = home

    def text(self, *words: str) -> str:
        """What a command prints; it must succeed."""
        done = self._whystall(*words, env={"WHYSTALL_HOME": str(self._home / "state")})
        assert done.returncode == 0, done.stderr
        return done.stdout

    def json(self, *words: str) -> Any:
        """The same as JSON."""
        return json.loads(self.text(*words, "--json"))

    def recorded(self, case: str, days: int) -> str:
        """A recording as it would have been made so many days from now."""
        copy = self._home / f"{case}-{days}"
        shutil.copytree(RECORDED / case, copy, dirs_exist_ok=True)
        manifest = json.loads((copy / "manifest.json").read_text())
        started = datetime.now(timezone.utc) + timedelta(days=days)
        manifest |= {"id": f"{case}-{days}", "started": started.isoformat(timespec="milliseconds")[:23] + "Z"}
        (copy / "manifest.json").write_text(json.dumps(manifest))
        return str(copy)


@pytest.fixture
def story(whystall: Run, tmp_path: Path) -> Story:
    """A new user."""
    return Story(whystall, tmp_path)


def known(diagnosis: dict[str, Any]) -> list[tuple[str, int]]:
    """The incidents that a diagnosis calls known, and how often each was seen."""
    return [(match["incident"], match["occurrences"]) for match in diagnosis["matches"] if match["known"]]


@pytest.mark.thorough
def test_a_solved_and_reviewed_fault_is_known_the_next_day_and_counted(story: Story) -> None:
    first = story.json("diagnose", "--from", story.recorded("checkpoint", -1), "--ticket")
    assert first["cause"] == "sync_checkpoint_write"
    assert known(first) == []
    story.text("tickets", "resolve", first["ticket"], "--because", FIX)
    card = f"ticket-{first['ticket']}"
    assert card in story.text("kb", "review"), "the draft waits for a review"

    before = story.json("diagnose", "--from", story.recorded("checkpoint", -1))
    assert known(before) == [], "nobody answers for a draft"
    story.text("kb", "review", card, "--accept", "--by", "reviewer")

    tomorrow = story.recorded("checkpoint", 1)
    again = story.json("diagnose", "--from", tomorrow)
    assert known(again) == [(card, 2)]
    assert again["matches"][0]["incident"] == card
    for lang, word in (("en", "known"), ("zh", "已知")):
        shown = story.text("diagnose", "--from", tomorrow, "--lang", lang)
        assert any(card in line and word in line for line in shown.splitlines()), shown
    assert known(story.json("diagnose", "--from", tomorrow)) == [(card, 2)], "one sighting counts once"

    # Solved a second time: the same card, no twin.
    ticket = story.json("diagnose", "--from", tomorrow, "--ticket")["ticket"]
    story.text("tickets", "resolve", ticket, "--because", "the release had been rolled back")
    later = story.json("diagnose", "--from", story.recorded("checkpoint", 3))
    assert known(later) == [(card, 3)]
    story.text("kb", "feedback", card, "helped", "--diagnosis", later["id"])
    assert FIX not in json.dumps(story.json("kb", "show", card)["symptom"]), "the symptom contains the fix"
    assert FIX in story.text("kb", "show", card)


def test_another_fault_is_not_taken_for_the_known_one(story: Story) -> None:
    first = story.json("diagnose", "--from", story.recorded("checkpoint", -1), "--ticket")
    story.text("tickets", "resolve", first["ticket"], "--because", FIX)
    story.text("kb", "review", f"ticket-{first['ticket']}", "--accept")
    for case in ("random", "thrash"):
        other = story.json("diagnose", "--from", story.recorded(case, 1))
        assert f"ticket-{first['ticket']}" not in [id for id, _ in known(other)]
