"""``whystall stacks convert`` as a user meets it."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from whystall.tools.stacks.formats import read

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def folded(tmp_path: Path) -> Path:
    """Some stacks, and a line that is none."""
    place = tmp_path / "in.folded"
    place.write_text("main;save (train.py:212) 30\nmain;gemm_[G] 69.5\nnonsense\n")
    return place


def test_a_chain_of_conversions_keeps_the_samples(folded: Path, whystall: Run, tmp_path: Path) -> None:
    given = folded
    for name, format in (("b.pb.gz", "pprof"), ("c.speedscope.json", "speedscope"), ("d.folded", "folded")):
        done = whystall("stacks", "convert", "--input", str(given), "--output", str(tmp_path / name), "--json")
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert (found["format"], found["items"], found["total"]) == (format, 2, 99.5)
        assert found["odd_lines"] == (1 if given == folded else 0)
        assert found["bytes"] == (tmp_path / name).stat().st_size
        given = tmp_path / name
    assert sorted(given.read_text().splitlines()) == ["main;GPU:gemm 69.5", "main;save (train.py:212) 30"]


@pytest.mark.parametrize(("lang", "word"), [("en", "could not be read"), ("zh", "无法读取")])
def test_it_says_what_was_done(folded: Path, whystall: Run, tmp_path: Path, lang: str, word: str) -> None:
    done = whystall("stacks", "convert", "-i", str(folded), "-o", str(tmp_path / "o.json"), "--lang", lang)
    assert done.returncode == 0, done.stderr
    assert "chrome" in done.stdout
    assert word in done.stdout
    assert read(tmp_path / "o.json").source == "chrome"


def test_what_cannot_be_done_is_one_line(folded: Path, whystall: Run, tmp_path: Path) -> None:
    def refused(code: str, part: str, *words: str) -> None:
        done = whystall("stacks", "convert", *words)
        assert done.stderr.startswith(f"error: {code}: "), done.stderr
        assert part in done.stderr
        assert len(done.stderr.splitlines()) == 1

    out = tmp_path / "o.folded"
    refused("bad_argument", "which format", "-i", str(folded), "-o", str(tmp_path / "o.xyz"))
    refused("bad_argument", "exists", "-i", str(folded), "-o", str(folded))
    refused("bad_argument", "taken for folded", "-i", str(folded), "-o", str(out), "--format", "pprof")
    refused("bad_argument", "no event", "-i", str(folded), "-o", str(out), "--event", "cycles")
    refused("bad_argument", "rank", "-i", str(folded), "-o", str(out), "--rank", "1")
    (tmp_path / "text").write_text("this is\nno profile\n")
    refused("bad_trace", "known format", "-i", str(tmp_path / "text"), "-o", str(out))
    assert not out.exists()


def test_a_file_is_replaced_only_when_asked(folded: Path, whystall: Run, tmp_path: Path) -> None:
    out = tmp_path / "o.folded"
    out.write_text("mine")
    words = ("stacks", "convert", "-i", str(folded), "-o", str(out))
    assert whystall(*words).returncode == 2
    assert out.read_text() == "mine"
    assert whystall(*words, "--overwrite").returncode == 0
    assert "GPU:gemm" in out.read_text()
