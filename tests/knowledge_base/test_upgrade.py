"""State and settings of commit 89263ee (22 November 2026): the present version shows and reads all of it.

Both were made by that version: tests/recorded/upgrade_89263ee/make.sh.
"""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from old_files import lost, rows, sound

from whystall.agent_server.interfaces.cli.main import main
from whystall.agent_server.stores import Stores

RECORDED = Path(__file__).parent.parent / "recorded"
MADE = RECORDED / "upgrade_89263ee"
DATABASE = RECORDED / "knowledge_89263ee.db.gz"
# What each command of that version printed with --json.
SHOWN: dict[str, Any] = json.loads(gzip.decompress((MADE / "shown.json.gz").read_bytes()))


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of state with the database, and the settings."""
    (tmp_path / "knowledge.db").write_bytes(gzip.decompress(DATABASE.read_bytes()))
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path))
    monkeypatch.setenv("WHYSTALL_CONFIG", str(MADE / "whystall.toml"))
    monkeypatch.setenv("OLD_SECRET", "an-old-secret-0123456789")
    monkeypatch.setenv("OLD_HOOK", "https://oapi.dingtalk.com/robot/send?access_token=x")
    return tmp_path


def comparable(command: str, shown: Any) -> Any:
    """What is the same at any time, and wherever the file of settings lies."""
    if command == "config show":
        named = [one for one in shown if one["origin"].endswith("whystall.toml")]
        return {one["place"]: one["value"] for one in named if one["place"] != "alerts.routes"}
    if command in ("silence list", "oncall override list"):  # the others end, and are not listed then
        return [one for one in shown if one.get("comment", one.get("reason")) in ("move", "leave")]
    return shown


def changed(before: Any, after: Any, place: str = "") -> list[str]:
    """The places at which `after` lacks what `before` has; further keys of objects are new."""
    if isinstance(before, dict) and isinstance(after, dict):
        return [each for key in before for each in changed(before[key], after.get(key), f"{place}.{key}")]
    if isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        pairs = enumerate(zip(before, after, strict=True))
        return [each for n, (old, new) in pairs for each in changed(old, new, f"{place}[{n}]")]
    return [] if before == after else [f"{place}: {before!r} is now {after!r}"]


def test_every_row_of_the_old_database_is_kept(home: Path) -> None:
    path = home / "knowledge.db"
    before = rows(path)
    filled = {name for name, kept in before.items() if kept}
    assert filled >= {"tickets", "ticket_events", "diagnoses", "alerts", "ticket_alerts", "silences", "overrides"}
    assert filled >= {"occurrences", "feedback", "work_orders", "audit", "cards", "deliveries"}
    with Stores(path):
        pass
    assert lost(before, rows(path)) == {}
    sound(path)


def test_the_present_version_shows_what_the_old_one_showed(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command, before in SHOWN.items():
        with pytest.raises(SystemExit) as ended:
            main([*command.split(), "--json"])
        shown = capsys.readouterr()
        assert not ended.value.code, shown.err
        assert comparable(command, before), command
        assert changed(comparable(command, before), comparable(command, json.loads(shown.out)), command) == []
