"""Tables of strangers: encodings, quotes, ragged rows and sizes; each fault with its line."""

from __future__ import annotations

import io
import json
import tracemalloc
from collections.abc import Iterator

import pytest

from whystall.agent_server.ticketing.work_orders.reading import CELL, ROW, BadRow, Row, Table
from whystall.tools.contract.errors import ToolError


def read(data: bytes, **how: str) -> list[Row | BadRow]:
    return list(Table(io.BytesIO(data), **how).rows())  # type: ignore[arg-type]


def good(data: bytes, **how: str) -> list[dict[str, str]]:
    rows = read(data, **how)
    assert all(isinstance(row, Row) for row in rows), rows
    return [row.cells for row in rows if isinstance(row, Row)]


TEXT = "id,title\n1,训练卡住\n2,slow\n"
ROWS = [{"id": "1", "title": "训练卡住"}, {"id": "2", "title": "slow"}]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "gbk", "gb18030"])
def test_encodings_are_told_by_the_file(encoding: str) -> None:
    assert good(TEXT.encode(encoding)) == ROWS


def test_an_encoding_may_be_named() -> None:
    assert good("id,title\n1,訓練\n".encode("big5"), encoding="big5") == [{"id": "1", "title": "訓練"}]
    for wrong in ("klingon", "base64"):
        with pytest.raises(ToolError, match="encoding"):
            read(TEXT.encode(), encoding=wrong)


@pytest.mark.parametrize("mark", [",", ";", "\t", "|"])
def test_delimiters_are_told_by_the_header(mark: str) -> None:
    assert good(TEXT.replace(",", mark).encode()) == ROWS


def test_quotes_hold_lines_delimiters_and_quotes() -> None:
    data = b'id,title\r\n1,"a, ""b""\r\nsecond line"\r\n\r\n2,x\r\n'
    rows = read(data)
    assert [row.line for row in rows] == [2, 5]
    assert rows[0] == Row(2, {"id": "1", "title": 'a, "b"\r\nsecond line'})


@pytest.mark.parametrize(
    ("data", "bad"),
    [
        (b"a,b\n1,2,3\n4,5\n", BadRow(2, "cells", "3/2")),
        (b"a,b\n1\n4,5\n", BadRow(2, "cells", "1/2")),
        (b'a,b\n"x"y,2\n4,5\n', BadRow(2, "quoting")),
        (b"a,b\n1,\xff\xfe\n4,5\n".replace(b"\xff\xfe", b"\xff\xff"), BadRow(2, "encoding", "utf-8")),
    ],
)
def test_a_row_that_is_none_is_named_and_the_next_is_read(data: bytes, bad: BadRow) -> None:
    assert read(data, encoding="utf-8") == [
        BadRow(bad.line, bad.why, "utf-8-sig" if bad.why == "encoding" else bad.detail),
        Row(3, {"a": "4", "b": "5"}),
    ]


def test_a_quote_without_an_end_names_the_lines_it_swallowed() -> None:
    (bad,) = read(b'a,b\n1,"never\n2,x\n3,y\n')
    assert bad == BadRow(2, "quoting", "2-4")


@pytest.mark.parametrize("quote", ["", '"'])
def test_a_cell_of_a_hundred_megabytes_is_refused_within_bounds(quote: str) -> None:
    class Endless(io.RawIOBase):
        left = 100 << 20

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            if not self.left:
                return 0
            count = min(len(buffer), self.left)
            head = f"a,b\n1,{quote}".encode() if self.left == 100 << 20 else b""
            buffer[:count] = (head + b"x" * count)[:count]
            self.left -= count
            return count

    tracemalloc.start()
    table = Table(io.BufferedReader(Endless()))
    first = next(table.rows())
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(first, BadRow)
    assert (first.line, first.why) == (2, "too_large")
    assert peak < 64 << 20
    assert CELL < ROW


def test_many_quoted_lines_are_one_row_only_within_its_bound() -> None:
    data = b'a,b\n1,"' + b"0123456789\n" * (ROW // 10) + b'"\n2,x\n'
    (first, *_) = read(data)
    assert isinstance(first, BadRow)
    assert first.why == "too_large"


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"", "empty"),
        (b"\xef\xbb\xbf \n", "empty"),
        (b"a,a\n1,2\n", "twice"),
        (b'"a,b\n1,2\n', "header"),
        (",".join(f"c{n}" for n in range(2000)).encode() + b"\n1\n", "columns"),
    ],
)
def test_what_is_no_table_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(ToolError, match=what):
        read(data)


def test_lines_of_json() -> None:
    data = '{"id": 1, "title": "训练", "more": {"a": [1]}, "none": null}\n\n[1]\nnot json\n{"id": "\\ud800"}\n'.encode()
    assert read(data) == [
        Row(1, {"id": "1", "title": "训练", "more": '{"a": [1]}', "none": ""}),
        BadRow(3, "json", "object"),
        BadRow(4, "json"),
        Row(5, {"id": "\ufffd"}),
    ]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b'[{"id": 1}, {"id": 2}]', [Row(1, {"id": "1"}), Row(1, {"id": "2"})]),
        (b'\xef\xbb\xbf\n[\n {"id": 1},\n {"id":\n 2}\n]\n', [Row(3, {"id": "1"}), Row(4, {"id": "2"})]),
        (b"[]", []),
        (b'[7, {"id": 1}]', [BadRow(1, "json", "object"), Row(1, {"id": "1"})]),
        (b'[{"id": 1},]', [Row(1, {"id": "1"}), BadRow(1, "json")]),
        (b'[{"id": 1} {"id": 2}]', [Row(1, {"id": "1"}), BadRow(1, "json")]),
        (b'[{"id": 1}', [Row(1, {"id": "1"}), BadRow(1, "json")]),
        (b'[{"id": 1}]\n{"id": 2}\n', [Row(1, {"id": "1"}), BadRow(1, "json")]),
        (b"[" * 100_000, [BadRow(1, "json")]),
        (b'[{"a":"' + b"x" * (ROW + 1), [BadRow(1, "too_large")]),
    ],
)
def test_a_json_array_is_one_row_per_element(data: bytes, expected: list[Row | BadRow]) -> None:
    assert read(data) == expected


def test_an_array_in_one_long_line_is_read_in_chunks() -> None:
    orders = [{"id": n, "text": "x" * (n % 300_000)} for n in range(0, 600_000, 9_999)]
    rows = read(json.dumps(orders).encode())
    assert rows == [Row(1, {"id": str(order["id"]), "text": str(order["text"])}) for order in orders]


@pytest.mark.parametrize("line", [b"[" * 100_000, b"{" * 100_000, b'{"a":' * 50_000, b"{" + b'"a' * 3_000_000])
def test_deep_and_long_lines_of_json_are_named(line: bytes) -> None:
    rows = read(b'{"a": "1"}\n' + line + b'\n{"a": "2"}\n')
    assert [type(row) for row in rows] == [Row, BadRow, Row]


def test_rows_come_one_at_a_time() -> None:
    def chunks() -> Iterator[bytes]:
        yield b"a,b\n" + b"1,2\n" * 70_000
        raise AssertionError("read ahead")

    class Slow(io.RawIOBase):
        source = chunks()
        rest = b""

        def readable(self) -> bool:
            return True

        def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
            self.rest = self.rest or next(self.source)
            count = min(len(buffer), len(self.rest))
            buffer[:count], self.rest = self.rest[:count], self.rest[count:]
            return count

    rows = Table(io.BufferedReader(Slow())).rows()
    assert next(rows) == Row(2, {"a": "1", "b": "2"})
