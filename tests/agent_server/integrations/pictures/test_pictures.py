"""Pictures of diagnoses: what stands in them, who may fetch them, and what is done where nothing can be drawn."""

from __future__ import annotations

import re
import struct
import xml.etree.ElementTree as ET
from pathlib import Path
from urllib.parse import parse_qsl, urlsplit

import pytest
from making import checkpoint, finding, victim

from whystall.agent_server.integrations.pictures import links, raster
from whystall.agent_server.integrations.pictures.store import Pictures
from whystall.agent_server.integrations.pictures.verdict import card, svg
from whystall.knowledge_base.models import Verdict, Victim
from whystall.tools.recording.judging import artifact_path

NOW = 1_800_000_000.0
KEY = b"k" * 32
NAME = "0123456789abcdef-verdict-en.png"


def _text(picture: str) -> str:
    return " ".join(
        "".join(element.itertext()) for element in ET.fromstring(picture).iter() if element.tag.endswith("}text")
    )


# --- what stands in them ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lang", "words"),
    [
        ("en", ["CONFIRMED", "Where the time of train (4243) went", "35 %", "92.3 %", "node7", "Try first", "d1"]),
        ("zh", ["已确认", "train (4243) 的时间去了哪里", "35 %", "92.3 %", "node7", "先试", "d1"]),
    ],
)
def test_it_says_what_is_known_in_the_readers_language(lang, words: list[str]) -> None:
    shown = _text(svg(checkpoint(), lang))
    for word in words:
        assert word in shown
    assert "chk_000120.bin" in shown


def test_lengths_are_what_the_figures_say() -> None:
    picture = ET.fromstring(svg(checkpoint(), "en"))
    space = "{http://www.w3.org/2000/svg}"
    widths = {
        box.get("class"): float(box.get("width", 0))
        for box in picture.iter(f"{space}rect")
        if box.get("height") == "40.0"
    }
    whole = widths["track"]
    assert widths["user"] / whole == pytest.approx(0.55, abs=0.001)
    assert widths["blocked"] / whole == pytest.approx(0.35, abs=0.001)
    assert "runnable" not in widths  # there was none
    bars = [float(box.get("width", 0)) for box in picture.iter(f"{space}rect") if box.get("height") == "12.0"]
    track, *parts = bars[:3]  # of the first proof: on the CPU, and blocked
    assert sum(parts) / track == pytest.approx(0.369, abs=0.001)


def test_text_of_strangers_is_text() -> None:
    hostile = "/x/<script>alert(1)</script>&\"'`]]>{{7*7}}"
    picture = svg(checkpoint(path=hostile, comm="<b>&amp;"), "en")
    ET.fromstring(picture)
    assert "<script>" not in picture
    assert "<script>alert(1)" in _text(picture).replace(" ", "")


def test_a_path_of_any_length_keeps_the_picture_small() -> None:
    picture = svg(checkpoint(path="/very" * 800 + "/end.bin"), "en")
    assert "end.bin" in _text(picture).replace(" ", "")
    height = float(ET.fromstring(picture).get("height", "0"))
    assert height < 1000


@pytest.mark.parametrize("verdict", [Verdict.LIKELY, Verdict.INCONCLUSIVE, Verdict.HEALTHY, Verdict.IDLE])
def test_nothing_is_claimed_beyond_the_verdict(verdict: Verdict) -> None:
    changes = {"verdict": verdict, "missing": ["one_mechanism"]}
    if verdict is not Verdict.LIKELY:
        changes |= {"cause": None, "culprit": None, "chain": [], "explained_pct": 0.0}
    made = card(checkpoint(**changes), "en")
    assert made.look == ("no_load" if verdict is Verdict.IDLE else verdict.value)
    labels = [fact.label for fact in made.facts]
    assert ("Lacking" in labels) == (verdict is not Verdict.HEALTHY)
    if verdict is not Verdict.LIKELY:
        assert made.proofs == []
        assert "Try first" not in labels


def test_of_a_rank_whose_shares_are_unknown_none_are_drawn() -> None:
    zero = {f"{name}_pct": 0.0 for name in ("user", "system", "runnable", "blocked", "idle")}
    rank = Victim(
        type="rank", rank=3, host="node7", pid=0, tid=0, comm="rank 3", chosen_by="slow_rank", lost_pct=23.0, **zero
    )
    made = card(checkpoint(victim=rank), "en")
    assert made.shares == []
    svg(checkpoint(victim=rank), "zh")


def test_proofs_bear_the_colour_of_the_time_they_are_about() -> None:
    waits = finding("sched.runqueue_delay", wait_s=4, run_s=3, window_pct=50)
    made = card(checkpoint(findings=[waits], chain=["f1"], victim=victim()), "en")
    assert [proof.parts for proof in made.proofs] == [[(50, "runnable")]]


def test_an_operation_is_drawn_by_how_its_own_time_went() -> None:
    write = finding(
        "file.slow_write", count=1, window_pct=40, blocked_pct=25, sleep_pct=0, runnable_pct=50, oncpu_pct=25
    )
    made = card(checkpoint(findings=[write], chain=["f1"]), "en")
    assert made.proofs[0].parts == [(10, "system"), (20, "runnable"), (10, "blocked")]
    assert made.proofs[0].figure == "40 %"


# --- who may fetch them -----------------------------------------------------------------------------------------------


def _asked(url: str) -> tuple[str, dict[str, str]]:
    parts = urlsplit(url)
    return parts.path.rsplit("/", 1)[1], dict(parse_qsl(parts.query))


def test_an_address_of_ours_holds_until_it_ends() -> None:
    url = links.link("https://w.example/", NAME, KEY, NOW, 60.0)
    assert url.startswith(f"https://w.example/pictures/{NAME}?")
    name, query = _asked(url)
    assert links.is_valid(name, query, KEY, NOW)
    assert links.is_valid(name, query, KEY, NOW + 59)
    assert not links.is_valid(name, query, KEY, NOW + 60)
    assert links.is_valid(name, query, KEY, NOW - 86_400)  # the clock was set back


def test_no_other_address_holds() -> None:
    name, query = _asked(links.link("https://w.example", NAME, KEY, NOW))
    later = {**query, "expires": str(int(query["expires"]) + 1)}
    for other, asked, key in (
        (name, later, KEY),
        ("1" + name[1:], query, KEY),
        (name, {**query, "sign": query["sign"].upper()}, KEY),
        (name, {**query, "sign": ""}, KEY),
        (name, {"sign": query["sign"]}, KEY),
        (name, {**query, "expires": "٩" * 10}, KEY),
        (name, {**query, "expires": "9" * 400}, KEY),
        (name, query, b"x" * 32),
    ):
        assert not links.is_valid(other, asked, key, NOW)


@pytest.mark.parametrize(
    "name", ["../knowledge.db", "x.png", "0123456789-a/b.png", "0123456789-.folded", "0123456789-x.svg"]
)
def test_nothing_but_a_picture_is_ever_signed_for(name: str) -> None:
    assert not links.is_valid(name, _asked(links.link("https://w.example", name, KEY, NOW))[1], KEY, NOW)


# --- drawing ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("WHYSTALL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


drawn = pytest.mark.skipif(not raster.can_write("en"), reason="no fonts, or not the extra `pictures`")


@drawn
def test_a_diagnosis_becomes_one_png_that_can_be_fetched(home: Path) -> None:
    pictures = Pictures("https://w.example")
    uri = pictures.make(checkpoint(), "en")
    assert uri is not None
    path = artifact_path(uri)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    width, height = struct.unpack(">II", data[16:24])
    assert (width, height > 500) == (1320, True)
    assert pictures.make(checkpoint(), "en") == uri  # the same picture
    assert list(path.parent.glob(".*")) == []
    found = pictures.load(uri, "Verdict", NOW)
    assert found is not None
    assert (found.png, found.name, found.alt) == (data, "verdict-en.png", "Verdict")
    assert found.url is not None
    name, query = _asked(found.url)
    assert pictures.open(name, query, NOW) == path
    assert pictures.open(name, query, NOW + links.LASTS_S + 1) is None
    assert Pictures("https://w.example").open(name, query, NOW) == path  # also after a restart
    assert (home / "pictures.key").stat().st_mode & 0o777 == 0o600


@drawn
def test_without_a_public_address_nothing_can_be_fetched(home: Path) -> None:
    uri = Pictures("https://w.example").make(checkpoint(), "en")
    assert uri is not None
    shown = Pictures("https://w.example").load(uri, "a", NOW)
    assert shown is not None
    assert shown.url is not None
    own = Pictures(None)
    found = own.load(uri, "a", NOW)
    assert found is not None
    assert found.url is None
    assert own.open(*_asked(shown.url), NOW) is None


@drawn
def test_a_picture_that_is_gone_is_none(home: Path) -> None:
    pictures = Pictures("https://w.example")
    uri = pictures.make(checkpoint(), "en")
    assert uri is not None
    found = pictures.load(uri, "a", NOW)
    assert found is not None
    assert found.url is not None
    artifact_path(uri).unlink()
    assert pictures.load(uri, "a", NOW) is None
    assert pictures.open(*_asked(found.url), NOW) is None
    assert pictures.load("whystall://artifacts/../knowledge.db", "a", NOW) is None


def test_only_pictures_are_loaded(home: Path) -> None:
    (home / "artifacts").mkdir(parents=True)
    (home / "artifacts" / "12345678-offcpu.folded").write_text("a 1\n")
    assert Pictures(None).load("whystall://artifacts/12345678-offcpu.folded", "a", NOW) is None


def test_where_chinese_cannot_be_drawn_it_is_said_in_english(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(raster, "can_write", lambda lang: lang == "en")
    assert raster.readable("zh") == "en"
    monkeypatch.setattr(raster, "can_write", lambda lang: False)
    assert raster.readable("zh") is None
    assert Pictures(None).make(checkpoint(), "zh") is None


@drawn
def test_a_key_that_was_cut_off_is_made_anew(home: Path) -> None:
    home.mkdir()
    (home / "pictures.key").write_bytes(b"half")
    uri = Pictures("https://w.example").make(checkpoint(), "en")
    assert uri is not None
    assert Pictures("https://w.example").load(uri, "a", NOW) is not None
    assert len((home / "pictures.key").read_bytes()) == 32


def test_the_style_is_one_that_every_renderer_knows() -> None:
    """resvg knows neither variables nor media queries: what used them would be drawn black."""
    style = re.search(r"<style>(.*)</style>", svg(checkpoint(), "en"), re.DOTALL)
    assert style is not None
    assert "var(" not in style[1]
    assert "@" not in style[1]
