"""The page of ranks and its two pictures, in both languages."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest
from flight_dumps import Rank, write
from rank_jobs import Fault, Plan, simulate

from whystall.agent_server.presentation.pages import page_for
from whystall.prompts.files import LANGS
from whystall.prompts.render import words
from whystall.tools.ranks.hangs.places import places
from whystall.tools.ranks.job import job_of
from whystall.tools.ranks.slow_node_check.tool import TOOL, Params
from whystall.tools.ranks.traces.gather import gather
from whystall.tools.recording.judging import judge
from whystall.tools.recording.store import Recording

pytestmark = pytest.mark.thorough

SLOW = Plan(ranks=4, steps=20, faults=(Fault("compute", (2,), ms=15),))
HOSTILE = "</script><script>alert(1)</script>"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A state directory of this test's own."""
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))


def artifacts(recording: Recording, lang: Any) -> list[tuple[str, str, str]]:
    """Name without its random part, title and text of each."""
    page = page_for(TOOL.name)
    assert page is not None
    result = judge(TOOL, recording, Params(), lambda seen, judged: page(seen, judged, lang))
    return [(one.uri.rpartition("/")[2][9:], one.title, Path(one.path).read_text("utf-8")) for one in result.artifacts]


@pytest.mark.parametrize("lang", LANGS)
def test_the_page_and_the_drawings_come_with_the_answer(lang: str) -> None:
    said = words(lang)
    found = artifacts(simulate(SLOW).recording, lang)
    shown = said["rank_page"]
    assert [(name, title) for name, title, _ in found] == [
        ("ranks.html", shown["heading"]),
        ("rank_step.svg", shown["own_by_step"]),
        ("wait_matrix.svg", shown["who_waits"]),
    ]
    (_, _, page), *drawings = found
    assert f'<html lang="{lang}">' in page
    assert said["ranks"]["verdicts"]["rank"] in page
    assert said["ranks"]["classes"]["compute_slow"] in page
    assert '<tr class="accused"><td class="number">2</td>' in page
    for _, title, svg in drawings:
        assert title in svg
        assert svg.count('class="row accused"') == 1
        ElementTree.fromstring(svg)


@pytest.mark.parametrize("lang", LANGS)
def test_the_slow_steps_of_a_rank_are_marked(lang: str) -> None:
    often = Plan(ranks=4, steps=40, layers=1, faults=(Fault("compute", (2,), ms=25, period=5),))
    (_, _, page), (_, _, steps), (_, _, waits) = artifacts(simulate(often).recording, lang)
    assert words(lang)["ranks"]["verdicts"]["intermittent"] in page
    assert "0, 5, 10, 15, 20, 25, 30, 35" in page
    for text in (page, steps):
        (line,) = re.findall(r'<path class="slow_steps" d="([^"]*)"', text)
        assert line.count("M") == 8
    assert "slow_steps" not in re.sub(r"<style>.*?</style>", "", waits, flags=re.DOTALL)


def test_a_sound_job_has_a_page_without_accused() -> None:
    (_, _, page), *_ = artifacts(simulate(Plan(ranks=4, steps=20)).recording, "en")
    assert "<tr class" not in page
    assert words("en")["ranks"]["verdicts"]["none"] in page


def test_names_of_hosts_stay_names() -> None:
    recording = simulate(SLOW).recording
    tables = recording.tables()
    tables["ranks.ranks"] = tables["ranks.ranks"].with_columns(host=pl.lit(HOSTILE))
    (_, _, page), *_ = artifacts(Recording.in_memory(recording.manifest.model_copy(deep=True), tables), "en")
    assert HOSTILE not in page
    assert "&lt;/script&gt;" in page


def test_a_job_without_steps_that_are_known_has_no_page() -> None:
    recording = simulate(SLOW).recording
    tables = recording.tables()
    for name in ("steps", "collectives"):
        tables[f"ranks.{name}"] = tables[f"ranks.{name}"].clear()
    assert artifacts(Recording.in_memory(recording.manifest.model_copy(deep=True), tables), "en") == []


def test_the_page_names_the_slow_stage() -> None:
    plan = Plan(ranks=8, stages=2, steps=20, stage_factor={0: 1.6})
    (_, _, page), *_ = artifacts(simulate(plan).recording, "en")
    assert "a pipeline stage takes longer than the others: " in page
    assert "ranks 0-3" in page


def test_a_hang_has_a_page_that_shows_where_each_rank_is(tmp_path: Path) -> None:
    """Rank 1 has not entered what rank 3 of its group waits in; rank 0 waits for it in another group."""
    groups = {"0": ("default_pg", range(4)), "1": ("tp", (0, 1)), "2": ("dp", (1, 3))}
    ranks = [Rank(rank, {k: v for k, v in groups.items() if rank in v[1]}) for rank in range(4)]
    for one in ranks:
        one.does("0")
    ranks[1].does("1").does("2")
    ranks[3].does("2").does("2", "all_gather", state="scheduled")
    ranks[0].does("1").does("1", state="scheduled")
    recording = gather(write(tmp_path / "dumps", *ranks), jobs=1)
    frame = places(job_of(recording))
    assert [row for row in frame.select("rank", "column", "seq", "state").iter_rows() if row[1] != "default_pg"] == [
        (0, "tp", 2, "waits"), (1, "dp", 1, "behind"), (1, "tp", 1, "behind"), (3, "dp", 2, "waits"),
    ]  # fmt: skip
    (_, _, page), *_ = artifacts(recording, "en")
    assert words("en")["rank_page"]["who_is_where"] in page
    assert "all_gather #2" in page
