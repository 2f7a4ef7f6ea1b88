"""The page of ranks and its drawings: what is in them, how large they get, and that no text becomes code."""

from __future__ import annotations

import base64
import html.parser
import json
import re
import struct
import zlib
from array import array
from dataclasses import replace
from typing import Any
from xml.etree import ElementTree

import polars as pl
import pytest
from scenes import HOSTILE

from whystall.prompts.render import LANGS, words
from whystall.tools.views.png import data_uri
from whystall.tools.views.rank_cells import MOST_DETAILS, MOST_RANKS, MOST_STEPS, Group, rows_of, step_matrix
from whystall.tools.views.rank_drawing import scale_of
from whystall.tools.views.rank_labels import Mark
from whystall.tools.views.rank_matrix import MOST_LINES, WORDS, RankView, rank_page, step_svg, wait_svg

MS = 1_000_000
OWN = {"rank": pl.Int32, "step": pl.Int32, **dict.fromkeys(("own_ns", "step_ns", "wait_ns", "compute_ns"), pl.Int64)}
WAITS = {"waiter": pl.Int32, "last": pl.Int32, "wait_ns": pl.Int64}
Json = dict[str, Any]


def view(ranks: int = 4, steps: int = 6, slow: int = 1, **more: Any) -> RankView:
    """Ranks of 100 ms a step, one of 130, for which the others wait."""
    rank, step = (pl.int_range(count, eager=True).cast(pl.Int32) for count in (ranks, steps))
    late = pl.col("rank") == slow
    own = pl.DataFrame({"rank": rank}).join(pl.DataFrame({"step": step}), how="cross")
    own = own.with_columns(own_ns=pl.when(late).then(130 * MS).otherwise(100 * MS), step_ns=135 * MS)
    own = own.with_columns(wait_ns=130 * MS - pl.col("own_ns"), compute_ns=pl.col("own_ns") - 5 * MS)
    waits = pl.DataFrame({"waiter": [r for r in range(ranks) if r != slow]}, schema={"waiter": pl.Int32})
    waits = waits.with_columns(last=pl.lit(slow, pl.Int32), wait_ns=pl.lit(30 * MS * steps))
    shown = {"groups": (Group("dp", tuple(range(ranks))),), "marks": (Mark(slow, "slow", 2),)} | more
    return RankView(own.cast(OWN), waits.cast(WAITS), **shown)  # type: ignore[arg-type]


def drawn(seen: RankView, lang: str = "en", **more: Any) -> str:
    texts = {"heading": "Ranks", "verdict": "rank 1 is slow", "notes": ["6 steps"]} | more
    return rank_page(seen, words(lang)["rank_page"], lang=lang, **texts)


def data(page: str) -> Json:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    out: Json = json.loads(found[1])
    return out


def floats(text: str) -> list[float]:
    return list(array("f", base64.b64decode(text)))


class Elements(html.parser.HTMLParser):
    """Every element with its attributes, and the text of each."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))

    def handle_data(self, text: str) -> None:
        self.texts.append(text)


def texts(svg: str, look: str) -> list[str]:
    """The texts of a class in a drawing, without titles."""
    found = ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    return [node.text or "" for node in found if look in (node.get("class") or "").split()]


# --- content ----------------------------------------------------------------------------------------------------


def test_a_cell_shows_how_a_rank_lies_beside_its_peers() -> None:
    steps = data(drawn(view()))["figures"]["steps"]
    assert steps["rows"] == [[rank, rank] for rank in range(4)]
    assert steps["columns"] == list(range(6))
    shares = list(array("h", base64.b64decode(steps["share"])))
    assert shares == [0] * 6 + [300] * 6 + [0] * 12
    assert floats(steps["values"]["own"])[6:12] == [130] * 6
    assert floats(steps["values"]["beside"]) == [100] * 24
    assert floats(steps["values"]["wait"])[:6] == [30] * 6


def test_waits_are_per_step_and_sum_up_at_the_edges() -> None:
    page = data(drawn(view()))["figures"]["waits"]
    assert floats(page["values"]["waits"]) == [0, 30, 0, 0] + [0] * 4 + [0, 30, 0, 0] * 2
    svg = wait_svg(view(), words("en")["rank_page"])
    assert texts(svg, "figure_on") == ["30.0"] * 3
    assert "90.0" in texts(svg, "column")  # all that was waited for rank 1
    assert texts(svg, "tick").count("30.0") == 3


def test_the_accused_are_marked_and_come_first() -> None:
    page = drawn(view(slow=2))
    rows = re.findall(r'<tr( class="accused")?><td class="number">(\d+)</td>', page)
    assert rows == [(' class="accused"', "2"), ("", "0"), ("", "1"), ("", "3")]
    svg = step_svg(view(slow=2), words("en")["rank_page"])
    assert texts(svg, "accused") == ["2"]
    assert texts(svg, "began_label") == ["from step 2"]
    assert svg.count('class="mark"') == 2
    assert 'class="began"' not in step_svg(view(marks=(Mark(1, "slow"),)), words("en")["rank_page"])


def test_ranks_are_grouped_by_their_peers_and_compared_with_them_only() -> None:
    seen = view(8, slow=5, groups=(Group("stage 1", (4, 5, 6, 7)), Group("stage 0", (0, 1, 2)), Group("", (3,))))
    matrix = step_matrix(seen.own, seen.groups)
    assert [cell[0] for cell in matrix.rows.cells] == [4, 5, 6, 7, 0, 1, 2, 3]
    assert matrix.rows.groups == (("stage 1", 4), ("stage 0", 3), ("", 1))
    assert texts(step_svg(seen, words("en")["rank_page"]), "group") == ["stage 1", "stage 0"]
    # all of a stage are slow: none beside its peers
    slow = seen.own.with_columns(own_ns=pl.when(pl.col("rank") >= 4).then(200 * MS).otherwise("own_ns"))
    assert set(step_matrix(slow, seen.groups).shade) == {0.0}


def test_a_rank_without_peers_is_compared_with_itself() -> None:
    own = view(1, 5, slow=7).own.with_columns(own_ns=pl.when(pl.col("step") == 3).then(200 * MS).otherwise("own_ns"))
    assert list(step_matrix(own, (Group("", (0,)),)).shade) == [0, 0, 0, 1, 0]


def test_what_was_not_recorded_is_not_known() -> None:
    seen = view()
    own = seen.own.filter(~((pl.col("rank") == 3) & (pl.col("step") == 0)))
    steps = data(drawn(replace(seen, own=own)))["figures"]["steps"]
    assert array("h", base64.b64decode(steps["share"]))[18] == -32768
    unknown = seen.own.with_columns(compute_ns=pl.lit(-1, pl.Int64))
    page = drawn(replace(seen, own=unknown))
    assert "-0.00" not in page
    compute = floats(data(page)["figures"]["steps"]["values"]["compute"])
    assert all(value != value for value in compute)


@pytest.mark.parametrize(
    ("shades", "scale"),
    [([], 0.1), ([0.01, -0.02], 0.1), ([0.0] * 9 + [-0.4], 0.5), ([30.0], 10.0), ([0.0] * 99 + [9], 0.1)],
)
def test_the_scale_fits_most_cells(shades: list[float], scale: float) -> None:
    assert scale_of(array("f", shades)) == scale


# --- bounds ---------------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_a_page_of_many_ranks_is_bounded() -> None:
    seen = view(MOST_RANKS, MOST_STEPS, slow=300)
    page = drawn(seen)
    assert len(page) < 6_000_000
    steps = data(page)["figures"]["steps"]
    assert set(steps["values"]) == {"own"}
    assert len(floats(steps["values"]["own"])) == MOST_RANKS * MOST_STEPS > MOST_DETAILS
    for svg in (step_svg(seen, words("en")["rank_page"]), wait_svg(seen, words("en")["rank_page"])):
        assert len(svg) < 500_000
        ElementTree.fromstring(svg)
    assert texts(step_svg(seen, words("en")["rank_page"]), "accused") == ["300"]


def test_more_than_fits_is_put_together_and_reported() -> None:
    seen = view(MOST_RANKS + 88, MOST_STEPS + 1, slow=301)
    page = drawn(seen)
    steps = data(page)["figures"]["steps"]
    assert (len(steps["rows"]), len(steps["columns"])) == (300, 501)
    assert steps["rows"][150] == [300, 301]
    own = floats(steps["values"]["own"])
    assert own[150 * 501] == 130  # the slower of the two
    stated = words("en")["rank_page"]
    assert stated["ranks_binned"].format(2) in page
    assert stated["steps_binned"].format(2) in page
    waits = data(page)["figures"]["waits"]
    assert floats(waits["values"]["waits"])[150] == pytest.approx(60)  # of both


def test_the_table_is_bounded() -> None:
    page = drawn(view(MOST_LINES + 10, 2, slow=1030))
    assert page.count("<tr") == MOST_LINES + 1
    assert words("en")["rank_page"]["ranks_left_out"].format(10) in page
    assert '<tr class="accused"><td class="number">1030</td>' in page


@pytest.mark.parametrize("ranks", [1, 2, 3, 33, 700])
def test_rows_hold_every_rank_once(ranks: int) -> None:
    groups = [Group("a", tuple(range(0, ranks, 2))), Group("b", tuple(range(0, ranks, 3)))]
    rows = rows_of(range(ranks), groups)
    assert sorted(rank for cell in rows.cells for rank in cell) == list(range(ranks))
    assert sum(size for _, size in rows.groups) == len(rows.cells)
    assert all(rank in rows.cells[row] for rank, row in rows.places().items())


def test_nothing_to_show_is_reported() -> None:
    seen = RankView(pl.DataFrame(schema=OWN), pl.DataFrame(schema=WAITS))
    page = drawn(seen)
    assert data(page)["figures"] == {}
    assert words("en")["rank_page"]["no_waits"] in page
    for svg in (step_svg(seen, words("en")["rank_page"]), wait_svg(seen, words("en")["rank_page"])):
        ElementTree.fromstring(svg)


# --- offline, inert, in both languages -----------------------------------------------------------------------------


def hostile() -> RankView:
    groups = (Group(HOSTILE, (0, 1)), Group(f"b {HOSTILE}", (2, 3)))
    return view(groups=groups, marks=(Mark(1, HOSTILE, 2),), hosts=dict.fromkeys(range(4), HOSTILE))


def test_nothing_is_fetched_and_no_text_becomes_code() -> None:
    page = drawn(hostile(), heading=HOSTILE, verdict=HOSTILE, notes=[HOSTILE])
    parsed = Elements(page)
    tags = [tag for tag, _ in parsed.found]
    assert tags.count("script") == 2
    assert "img" not in tags
    for tag, attributes in parsed.found:
        assert not [name for name in attributes if name.startswith("on") or name in ("src", "style")], tag
        if "href" in attributes:
            assert (attributes["href"] or "").startswith("data:image/png;base64,")
    (policy,) = (a["content"] or "" for _, a in parsed.found if a.get("http-equiv"))
    assert "default-src 'none'" in policy
    assert "img-src data:" in policy
    assert "unsafe" not in policy
    assert "http" not in re.sub(r"http://www\.w3\.org/2000/svg", "", page.replace("http-equiv", ""))
    assert parsed.texts.count(HOSTILE) >= 4


def test_drawings_stand_alone() -> None:
    for draw in (step_svg, wait_svg):
        svg = draw(hostile(), words("en")["rank_page"])
        root = ElementTree.fromstring(svg)
        assert root.tag == "{http://www.w3.org/2000/svg}svg"
        assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
        links = [node.get("href") for node in root.iter() if node.get("href")]
        assert links
        assert all(str(link).startswith("data:image/png;base64,") for link in links)
        assert "prefers-color-scheme: dark" in svg


@pytest.mark.parametrize("lang", LANGS)
def test_every_word_is_there(lang: str) -> None:
    stated = words(lang)["rank_page"]
    assert stated.keys() == WORDS | {"heading"}
    assert stated["own_by_step"] in drawn(view(), lang)
    for word in ("own_by_step", "gap"):
        with pytest.raises(KeyError, match=word):
            rank_page(view(), {key: stated[key] for key in WORDS - {word}}, lang=lang, heading="", verdict="")


# --- the picture of the cells -------------------------------------------------------------------------------------


def test_the_picture_holds_its_pixels() -> None:
    palette = [(0, 0, 0, 0), (224, 96, 16, 255)]
    uri = data_uri(3, 2, bytes([0, 1, 0, 1, 1, 0]), palette)
    raw = base64.b64decode(uri.removeprefix("data:image/png;base64,"))
    assert raw.startswith(b"\x89PNG\r\n\x1a\n")
    chunks, at = {}, 8
    while at < len(raw):
        (length,) = struct.unpack_from(">I", raw, at)
        kind, content = raw[at + 4 : at + 8], raw[at + 8 : at + 8 + length]
        assert struct.unpack_from(">I", raw, at + 8 + length)[0] == zlib.crc32(kind + content)
        chunks[kind] = content
        at += 12 + length
    assert list(chunks) == [b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"]
    assert struct.unpack(">IIBBBBB", chunks[b"IHDR"]) == (3, 2, 8, 3, 0, 0, 0)
    assert zlib.decompress(chunks[b"IDAT"]) == bytes([0, 0, 1, 0, 0, 1, 1, 0])
    assert chunks[b"tRNS"] == bytes([0, 255])


@pytest.mark.parametrize(("width", "height", "pixels"), [(2, 2, b"\0"), (0, 0, b"")])
def test_pictures_without_pixels_are_refused(width: int, height: int, pixels: bytes) -> None:
    with pytest.raises(ValueError, match="do not make"):
        data_uri(width, height, pixels, [(0, 0, 0, 0)])
