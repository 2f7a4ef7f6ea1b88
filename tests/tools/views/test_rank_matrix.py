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
from whystall.tools.views.rank_parts import rank_parts
from whystall.tools.views.rank_places import places_of
from whystall.tools.views.rank_timeline import MOST_ENTRIES, Timeline, entries, timeline_figure, timeline_rows

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


def test_the_parts_of_a_mean_step_add_up_to_it() -> None:
    seen = view().own.with_columns(step_ns=pl.lit(135 * MS), gap_ns=pl.lit(5 * MS), loader_ns=pl.lit(2 * MS))
    seen = seen.with_columns(compute_ns=pl.lit(80 * MS), exposed_comm_ns=pl.lit(40 * MS))
    parts = rank_parts(seen, ())
    assert {name: values[0] for name, values in parts.values.items()} == pytest.approx(
        {"work": 80, "gap": 3, "loader": 2, "transfer": 10, "wait": 30, "rest": 10}
    )
    assert list(parts.step) == pytest.approx([135] * 4)
    unknown = seen.with_columns(compute_ns=pl.lit(-1), gap_ns=pl.lit(-1))
    assert {name: values[0] for name, values in rank_parts(unknown, ()).values.items()} == {"own": 105, "wait": 30}
    least = seen.select("rank", "step_ns", "own_ns")
    assert rank_parts(least, ()).values.keys() == {"own"}


def test_the_worst_step_shows_who_works_transfers_and_waits() -> None:
    timeline = hostile().timeline
    assert timeline is not None
    rows = timeline_rows(timeline, ())
    found = entries(timeline, rows)
    assert (list(found.row), found.labels) == ([0, 1, 2, 3], [f"all_reduce {HOSTILE}"])
    assert (found.start[0], found.took[0], found.wait[0], found.count[0]) == (10, 70, 30, 1)
    svg = timeline_figure(timeline, rows, found, (), words("en")["rank_page"]).alone("x")
    picture = ElementTree.fromstring(svg).find(".//{http://www.w3.org/2000/svg}image[@class='cells']")
    assert picture is not None
    raw = base64.b64decode((picture.get("href") or "").removeprefix("data:image/png;base64,"))
    at = raw.index(b"IDAT")
    (length,) = struct.unpack_from(">I", raw, at - 4)
    line = zlib.decompress(raw[at + 4 : at + 4 + length])[1:1161]
    assert [line.count(state) for state in range(4)] == pytest.approx([0, 348, 464, 348], abs=2)


def test_like_operations_in_a_row_are_one_where_there_are_many() -> None:
    ranks, layers = 8, MOST_ENTRIES // 4
    spans = pl.DataFrame({"rank": range(ranks), "start_ns": 0, "end_ns": layers * 1000})
    layer = pl.DataFrame({"start_ns": [1000 * n for n in range(layers)]}).with_columns(
        end_ns=pl.col("start_ns") + 900, wait_ns=pl.lit(100), label=pl.lit("all_gather dp")
    )
    timeline = Timeline(0, spans, spans.select("rank").join(layer, how="cross"))
    found = entries(timeline, timeline_rows(timeline, ()))
    assert (list(found.row), set(found.count)) == (list(range(ranks)), {layers})
    assert found.wait[0] == pytest.approx(layers * 100 / 1e6)
    mixed = layer.with_columns(label=pl.format("op {}", pl.int_range(pl.len()) % 2))
    timeline = Timeline(0, spans, spans.select("rank").join(mixed, how="cross"))
    assert len(entries(timeline, timeline_rows(timeline, ())).row) == MOST_ENTRIES


def test_a_hang_shows_where_each_rank_is() -> None:
    places = places_of(pl.concat([where("dp (7)"), where("x").with_columns(column=pl.lit("tp"), state=pl.lit("done"))]))
    assert places.columns == ["dp", "tp"]
    assert places.cells[2] == ("behind", "dp (7)", "all_reduce #3")
    assert places.cells[0] == ("waits", "dp (7)", "all_reduce #4")
    many = pl.concat(where("x").with_columns(column=pl.lit(f"g{n}"), state=pl.lit("done")) for n in range(20))
    assert places_of(many).left_out == 8
    seen = RankView(pl.DataFrame(schema=OWN), pl.DataFrame(schema=WAITS), marks=(Mark(1, "hang"),), places=where("dp"))
    page = drawn(seen)
    assert words("en")["rank_page"]["who_is_where"] in page
    assert words("en")["rank_page"]["no_waits"] not in page


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
    steps = pl.DataFrame({"rank": range(4), "start_ns": 0, "end_ns": 100 * MS})
    operations = steps.with_columns(start_ns=pl.lit(10 * MS), end_ns=pl.lit(80 * MS), wait_ns=pl.lit(30 * MS))
    timeline = Timeline(2, steps, operations.with_columns(label=pl.lit(f"all_reduce {HOSTILE}")), 2000)
    shown = {"marks": (Mark(1, HOSTILE, 2),), "hosts": dict.fromkeys(range(4), HOSTILE)}
    return view(groups=groups, timeline=timeline, places=where(HOSTILE), **shown)


def where(group: str) -> pl.DataFrame:
    """Rank 1 has not entered what the others wait in."""
    late = pl.col("rank") == 1
    seq, state = pl.when(late).then(3).otherwise(4), pl.when(late).then(pl.lit("behind")).otherwise(pl.lit("waits"))
    ranks = pl.DataFrame({"rank": range(4)})
    return ranks.with_columns(column=pl.lit("dp"), group=pl.lit(group), seq=seq, op=pl.lit("all_reduce"), state=state)


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
