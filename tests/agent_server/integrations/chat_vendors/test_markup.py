"""Our Markdown is read as it was meant, and nothing in it is live that is not ours."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest

from whystall.agent_server.integrations.chat_vendors.markup import Block, Span, blocks, defused, fitted, parts
from whystall.prompts.escape import markdown, markdown_code


def _spans(text: str) -> list[tuple[str, str]]:
    (block,) = blocks(text)
    return [
        (span.text, "".join(mark for mark, on in (("b", span.bold), ("i", span.italic), ("c", span.code)) if on))
        for span in block.spans
    ]


@pytest.mark.parametrize(
    ("text", "spans"),
    [
        ("a **b** c", [("a ", ""), ("b", "b"), (" c", "")]),
        ("结论：**已确认**两种", [("结论：", ""), ("已确认", "b"), ("两种", "")]),
        ("*i* and _j_", [("i", "i"), (" and ", ""), ("j", "i")]),
        ("**x `y` z**", [("x ", "b"), ("y", "bc"), (" z", "b")]),
        ("`` a`b ``", [("a`b", "c")]),
        ("`**not bold**`", [("**not bold**", "c")]),
        ("a_b_c 2*3*4", [("a_b_c 2", ""), ("3", "i"), ("4", "")]),
        (r"\*not\* \[x\](y)", [("*not* [x](y)", "")]),
        ("2 * 3 * 4", [("2 * 3 * 4", "")]),
        ("**open", [("**open", "")]),
        ("`open", [("`open", "")]),
        (r"C:\new", [(r"C:\new", "")]),
    ],
    ids=range(12),
)
def test_styles(text: str, spans: list[tuple[str, str]]) -> None:
    assert _spans(text) == spans


def test_links_lead_to_the_web_and_nowhere_else() -> None:
    (block,) = blocks("[a](https://x.example/y?z=1) [b](javascript:alert(1)) [c](file:///x) ![d](https://x/p.png)")
    assert [(span.text, span.href) for span in block.spans if span.href] == [("a", "https://x.example/y?z=1")]


def test_lines_keep_their_kinds() -> None:
    text = "## H\n\npara\n- a\n  - b\n3. c\n> q\n---\n| x | y |\n|---|:-:|\n| 1 | 2 |\n```sh\n- code\n```"
    assert [(b.kind, b.text, b.level, b.number, b.gap) for b in blocks(text)] == [
        ("heading", "H", 0, 0, False),
        ("line", "para", 0, 0, True),
        ("item", "a", 0, 0, False),
        ("item", "b", 1, 0, False),
        ("number", "c", 0, 3, False),
        ("quote", "q", 0, 0, False),
        ("line", "x · y", 0, 0, True),
        ("line", "1 · 2", 0, 0, False),
        ("code", "- code", 0, 0, False),
    ]


HOSTILE = [
    "`; rm -rf /`",
    '**bold** [x](http://evil) <at user_id="all">',
    "``` ``` ````",
    "- item",
    "# head",
    "@all @channel <!here>",
    " leading and trailing ",
    "_x_ *y* ~z~",
    "`",
    "\\",
    "a\\`b",
]


@pytest.mark.parametrize("name", HOSTILE, ids=range(len(HOSTILE)))
@pytest.mark.parametrize("escape", [markdown, markdown_code], ids=["running", "name"])
def test_what_our_escape_makes_of_a_strangers_text_is_read_as_that_text(name: str, escape) -> None:
    (block,) = blocks(f"- on {escape(name)}, says he")
    assert block.kind == "item"
    assert block.text == f"on {name}, says he"
    assert not any(span.bold or span.italic or span.href for span in block.spans)


@pytest.mark.parametrize(
    "text", ["<!channel>", "<at id=all>", "[x](http://y)", "![x](y)", "@all", "s3://b", "www.x.cn", "</font>"]
)
def test_defused_looks_the_same_and_is_no_longer_that(text: str) -> None:
    made = defused(text)
    assert made != text
    assert made.replace("\u2060", "") == text


@pytest.mark.parametrize("text", ["a < b", "5 > 3", "x@", "f(x)[0]", "12:30", "/data/chk_*.bin", "a!", "纯文本"])
def test_what_is_not_live_stays(text: str) -> None:
    assert defused(text) == text


@pytest.mark.parametrize(
    "evil", ["* " * 9000, "_a " * 9000, "`a``b```c````" * 900, "**" * 9000, "[" * 20_000, "[a](" * 5000, "\\" * 20_000]
)
def test_no_text_takes_long_or_deep(evil: str) -> None:
    assert len(blocks(evil)) <= 1


def _rest(left: int) -> Block:
    return Block("line", (Span(f"+{left}"),))


def test_what_does_not_fit_is_counted() -> None:
    content = blocks("\n".join("line" for _ in range(50)))
    kept = fitted(content, lambda some: sum(len(block.text) for block in some) <= 43, _rest)
    assert len(kept) == 11
    assert kept[-1].text == "+40"
    assert fitted(content, lambda some: True, _rest) is content


@pytest.mark.parametrize("most", [1, 2, 3, 9])
def test_parts_hold_everything_in_order_until_the_last_is_cut(most: int) -> None:
    content = blocks("\n".join(["title", "x" * 250, *(f"line {n}" for n in range(20))]))

    def fits(some: Sequence[Block]) -> bool:
        return sum(len(block.text) for block in some) <= 100

    found = parts(content, fits, most, _rest)
    assert len(found) <= most
    assert all(part and fits(part) for part in found)
    whole, shown = "".join(block.text for block in content), "".join(block.text for part in found for block in part)
    if most == 9:
        assert shown == whole
    else:
        cut = re.search(r"…?\+\d+$", shown)
        assert cut is not None
        assert whole.startswith(shown[: cut.start()])


def test_one_line_that_is_too_long_is_cut_itself() -> None:
    kept = fitted(blocks("x" * 5000), lambda some: sum(len(block.text) for block in some) <= 100, _rest)
    assert [len(block.text) for block in kept] == [98, 2]
