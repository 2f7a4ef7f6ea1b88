"""A program that does what programs do with files finds the same with and without the shim, byte by byte."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from shimmed import DIRECT, EAGER, plain, shimmed, takes_direct

from whystall.tools.hybrid_io.build import compiler
from whystall.tools.hybrid_io.run import Options

SOURCE = Path(__file__).parent / "programs" / "shim_program.c"
SCENES = (
    *("threads", "readers", "forked", "handler", "locks"),
    *("numbers", "mapped", "errors", "starts", "interrupted", "filtered"),
    *("edges", "rows", "left", "grows"),
)


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> str:
    made = tmp_path_factory.mktemp("programs") / "shim_program"
    flags = ("-O2", "-g", "-Wall", "-Wextra", "-Werror", "-pthread", "-D_FORTIFY_SOURCE=2")
    subprocess.run([compiler(), *flags, "-o", str(made), str(SOURCE)], check=True)
    return str(made)


def both(program: str, folder: Path, scene: str, options: Options, *seed: str) -> None:
    """Run `scene` both ways: same status, same words, same file."""
    before, after = folder / "plain", folder / "shim"
    before.mkdir()
    after.mkdir()
    command = [program, scene, "file", *seed]
    expected, got = plain(command, before), shimmed(command, after, options)
    assert (expected.status, expected.err) == (0, "")
    assert (got.status, got.err, got.out) == (0, "", expected.out)
    if scene not in ("threads", "forked", "handler"):  # the order of their records is chance
        assert (after / "file").read_bytes() == (before / "file").read_bytes()
    if takes_direct(folder) and scene != "forked":
        assert got.total.bytes("read", direct=True) + got.total.bytes("write", direct=True) > 0


@pytest.mark.parametrize("scene", SCENES)
def test_a_program_finds_the_same(program: str, tmp_path: Path, scene: str) -> None:
    both(program, tmp_path, scene, EAGER)


@pytest.mark.parametrize("options", [EAGER, DIRECT], ids=["eager", "direct"])
@pytest.mark.parametrize("seed", ["1", "2", "3"])
def test_a_random_walk_finds_the_same(program: str, tmp_path: Path, options: Options, seed: str) -> None:
    both(program, tmp_path, "fuzz", options, seed)


def test_every_byte_is_counted_once(program: str, tmp_path: Path) -> None:
    done = shimmed([program, "readers", "file"], tmp_path)
    total = done.total
    assert total.bytes("read") == total.bytes("write") == 200 * 65536  # what it says goes through C stdio
    assert total.requests("write") == 200
    assert total.stdio_files == 0


def test_positions_that_others_share_are_left_to_the_kernel(program: str, tmp_path: Path) -> None:
    done = shimmed([program, "forked", "file"], tmp_path)
    shared = done.total.counts["write"]["shared"]
    assert shared.bytes > 2 * 19 * 65536
    assert done.total.bytes("write", direct=True) == 0


def test_files_with_locks_or_maps_get_no_second_descriptor(program: str, tmp_path: Path) -> None:
    done = shimmed([program, "mapped", "file"], tmp_path)
    assert done.total.counts["write"]["mapped"].bytes > 0
    assert done.total.counts["read"]["mapped"].bytes > 0
