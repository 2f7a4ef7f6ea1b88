"""Text from a host comes out inert, whatever it is."""

from __future__ import annotations

import os
import random
import unicodedata

import pytest

from whystall.tools.contract.text import NAME_LIMIT, PATH_LIMIT, clean, clean_path, path_pattern, path_series

UNSAFE = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python3", "python3"),
        ("训练 进程 é", "训练 进程 é"),
        ("$(rm -rf /) `x` 'y' \"z\" <b> | & ;", "$(rm -rf /) `x` 'y' \"z\" <b> | & ;"),
        ("a\nb\r\tc", "a\\x0ab\\x0d\\x09c"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("\x9b2J", "\\x9b2J"),
        ("\x7f", "\\x7f"),
        ("abc\u202egnp.exe", "abc\\u202egnp.exe"),
        ("\u2066\u2069\u200b\ufeff", "\\u2066\\u2069\\u200b\\ufeff"),
        ("a\u2028b\u2029c", "a\\u2028b\\u2029c"),
        ("\U000e0041\U000f0000", "\\U000e0041\\U000f0000"),
        ("\ud83d\udcff", "\\ud83d\\udcff"),
        (b"python3\0left over", "python3"),
        (b"\xff\xfe/\xc3\xa9", "\\xff\\xfe/é"),
        (b"", ""),
        ("", ""),
    ],
)
def test_clean(text: str | bytes, expected: str) -> None:
    assert clean(text) == expected


def test_whatever_comes_in_is_printable_bounded_utf_8_and_stays_as_it_is() -> None:
    source = random.Random(7)
    for _ in range(2000):
        size = source.randrange(300)
        raw = source.randbytes(size)
        text = "".join(chr(source.choice([source.randrange(0x250), source.randrange(0x110000)])) for _ in range(size))
        for hostile in (raw, text, os.fsdecode(raw)):
            made = clean(hostile)
            assert len(made) <= NAME_LIMIT
            assert not {unicodedata.category(c) for c in made} & UNSAFE
            made.encode()
            assert clean(made) == made


@pytest.mark.parametrize(("size", "marked"), [(NAME_LIMIT, False), (NAME_LIMIT + 1, True), (10_000, True)])
def test_a_cut_is_marked(size: int, marked: bool) -> None:
    made = clean("x" * size)
    assert len(made) == min(size, NAME_LIMIT)
    assert made.endswith("…") is marked


def test_a_path_of_the_longest_names_is_whole() -> None:
    path = b"/" + b"/".join([b"n" * 255] * 15)
    assert clean_path(path) == path.decode()
    assert len(clean_path(b"\xff" * 4096)) == PATH_LIMIT


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        ("/data/run7/chk_000120.bin", "/data/run*/chk_*.bin"),
        ("/data/run/chk_000120.bin", "/data/run/chk_*.bin"),
        ("/x1/out/checkpoint-500/model-00001-of-00004.safetensors", "/x1/out/checkpoint-*/model-*-of-*.safetensors"),
        ("chk_7", "chk_*"),
        ("/7", "/*"),
        ("/a/b", "/a/b"),
        ("/", "/"),
        ("", ""),
        ("/data/٣.bin", "/data/٣.bin"),
    ],
)
def test_path_pattern(path: str, pattern: str) -> None:
    assert path_pattern(path) == pattern
    assert path_pattern(pattern) == pattern


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        (["/d/run7/c_1.bin"], "/d/run7/c_1.bin"),
        (["/d/run7/c_1.bin", "/d/run7/c_2.bin"], "/d/run7/c_*.bin"),
        (["/d/step-1/m0.bin", "/d/step-2/m0.bin"], "/d/step-*/m0.bin"),
        (["/d/step-1/m0.bin", "/d/step-2/m1.bin"], "/d/step-*/m*.bin"),
        (["/1.bin", "/2.bin"], "/*.bin"),
    ],
)
def test_a_series_is_named_no_vaguer_than_it_is(paths: list[str], name: str) -> None:
    assert path_series(paths) == name
    assert {path_pattern(p) for p in paths} == {path_pattern(name)}
