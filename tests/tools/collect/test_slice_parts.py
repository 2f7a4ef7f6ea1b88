"""Entries of a log that other versions have written."""

from __future__ import annotations

import pytest

from whystall.bpf.continuous import Cut
from whystall.tools.collect import slice_parts
from whystall.tools.collect.slice_log import Entry
from whystall.tools.collect.slice_parts import LAYOUT, RECORDS, SLICE, of_this_version, slice_end, slices_of


def slice_of(at: int) -> list[Entry]:
    end = slice_end(Cut(at, at + 9, (b"", b""), (b"", b""), {}), {"pids": {}})
    return [Entry(RECORDS, at, at + 9, b"records"), Entry(SLICE, at, at + 9, end)]


def test_records_of_another_layout_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    own = [*slice_of(40), *slice_of(50)]
    assert of_this_version(own) == own
    with monkeypatch.context() as patch:
        patch.setattr(slice_parts, "LAYOUT", LAYOUT + 1)
        other = [*slice_of(10), *slice_of(20), Entry(RECORDS, 30, 39, b"of the killed one")]
    assert [one.start_ns for one in slices_of(of_this_version([*other, *own]))] == [40, 50]
    assert of_this_version(other) == []
    before = [Entry(one.kind, 1, 2, one.data.replace(f'"layout":{LAYOUT},'.encode(), b"")) for one in slice_of(1)]
    assert of_this_version([*before, *own]) == [*before, *own], "the first versions stated none"
