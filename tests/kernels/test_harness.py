"""The host's side of the kernel matrix: what a run amounts to, and which machines must have one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from kernels import boot, matrix, stock
from kernels.stock import Kernel, Unavailable


def lines(place: Path, *told: object) -> Path:
    place.write_text("".join(json.dumps(line) + "\n" for line in told))
    return place


def outcome(name: str, said: str) -> dict[str, object]:
    return {"test": {"id": name, "outcome": said, "seconds": 0.1, "text": ""}}


def test_a_guest_that_died_has_passed_nothing(tmp_path: Path) -> None:
    place = lines(tmp_path / "lines", outcome("a", "passed"))
    with place.open("a") as file:
        file.write('{"test": {"id": "cut')
    result = matrix.summary(place, "5.10", None, 12.4)
    assert (result["verdict"], result["tests"], result["seconds"]) == ("failed", {"passed": 1}, 12)


def test_a_run_without_tests_has_not_passed(tmp_path: Path) -> None:
    assert matrix.summary(tmp_path / "absent", "5.10", 0, 1)["verdict"] == "failed"


def test_what_was_seen_twice_counts_once(tmp_path: Path) -> None:
    seen = {"seen": {"tool": "fileslower", "privilege": "root", "kprobes": True, "engines": {}, "not_seen": []}}
    result = matrix.summary(lines(tmp_path / "lines", seen, outcome("a", "passed"), seen), "6.1", 0, 1)
    assert (result["verdict"], result["seen"]) == ("passed", [seen["seen"]])


def test_a_failed_test_is_named(tmp_path: Path) -> None:
    told = lines(tmp_path / "lines", outcome("a", "passed"), outcome("b", "failed"))
    result = matrix.summary(told, "6.1", 1, 1)
    assert (result["verdict"], result["failed"]) == ("failed", ["b"])


@pytest.mark.parametrize("name", sorted(stock.SERIES))
def test_packages_of_a_series_are_the_stock_ones(name: str) -> None:
    image = stock.SERIES[name].image
    release = {"5.10": "5.10.0-32", "6.1": "6.1.0-50", "6.12": "6.12.95+deb12"}[name]
    found = re.fullmatch(image, f"linux-image-{release}-amd64")
    assert found is not None
    assert found[1] == release
    for other in ("cloud-amd64", "rt-amd64", "amd64-unsigned", "amd64-dbg"):
        assert not re.fullmatch(image, f"linux-image-{release}-{other}")


def test_a_missing_apt_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stock, "CACHE", tmp_path)
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    monkeypatch.setattr(stock, "found", lambda program: None)
    with pytest.raises(Unavailable, match=r"^kernel 6\.1 cannot be fetched: no apt-get, apt-cache, dpkg[^\n]*$"):
        stock.fetch("6.1")


def test_another_architecture_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(stock, "CACHE", tmp_path)
    monkeypatch.setattr("platform.machine", lambda: "aarch64")
    with pytest.raises(Unavailable, match="only amd64 is, and this is aarch64"):
        stock.fetch("5.10")


@pytest.mark.parametrize("must", [True, False], ids=["root on a Debian", "elsewhere"])
def test_a_kernel_that_cannot_be_had_is_a_failure_where_it_must_be(
    must: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def unavailable(name: str) -> Kernel:
        raise Unavailable("no archive")

    monkeypatch.setattr(stock, "fetch", unavailable)
    monkeypatch.setattr(matrix, "expected", lambda: must)
    assert matrix.main(["--kernel", "5.10", "--if-possible"]) == (2 if must else 0)
    assert matrix.main(["--kernel", "5.10"]) == 2
    assert ("NOT RUN" in capsys.readouterr().err) is not must


def test_a_hanging_guest_is_killed_with_its_console_kept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mark = f"{tmp_path}/alive"
    script = f"echo booting >&2; sh -c 'sleep 1000; true {mark}'; true"  # a grandchild, as QEMU is one of virtme-run
    monkeypatch.setattr(boot, "_machine", lambda *unused: ["sh", "-c", script])
    image = tmp_path / "image"
    image.touch()
    done = boot.boot(Kernel("5.10", tmp_path), "true", tmp_path / "shared", 1.0, image=image)
    assert (done.timed_out, done.code, done.fine) == (True, None, False)
    assert done.tail() == "booting"
    _until(lambda: not _with_words(mark))


def test_a_guest_whose_command_is_silent_is_killed_however_much_its_kernel_says(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    script = "echo begins; while sleep 0.1; do echo stuck >&2; done"
    monkeypatch.setattr(boot, "_machine", lambda *unused: ["sh", "-c", script])
    image = tmp_path / "image"
    image.touch()
    done = boot.boot(Kernel("5.10", tmp_path), "true", tmp_path / "shared", 100.0, silent_s=1.0, image=image)
    assert (done.timed_out, done.silent, done.fine) == (True, True, False)
    assert "stuck" in done.tail()


@pytest.mark.parametrize(("silent", "verdict", "boots"), [(2, "passed", 3), (3, "failed", 3), (0, "passed", 1)])
def test_an_emulator_that_hangs_is_booted_again(
    silent: int, verdict: str, boots: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    booted: list[Path] = []

    def guest(kernel: Kernel, command: str, shared: Path, limit_s: float, **more: Any) -> boot.Booted:
        booted.append(shared)
        hangs = len(booted) <= silent
        lines(shared / "lines.jsonl", outcome("a", "passed"))
        (shared / "console.log").touch()
        return boot.Booted(None if hangs else 0, hangs, hangs, 1.0, shared / "console.log")

    monkeypatch.setattr(stock, "fetch", lambda name: Kernel(name, tmp_path))
    monkeypatch.setattr(Kernel, "release", "5.10")
    monkeypatch.setattr(boot, "boot", guest)
    monkeypatch.setattr(matrix, "_pytest", lambda *unused, **more: ["true"])
    result = matrix.in_guest("5.10", [], 100.0)
    assert (result["verdict"], result["tests"], len(booted)) == (verdict, {"passed": 1}, boots)


@pytest.mark.skipif(os.geteuid() != 0, reason="a PID namespace needs root")
def test_a_guest_ends_with_the_harness(tmp_path: Path) -> None:
    mark = f"{tmp_path}/alive"
    program = (
        "import sys; from pathlib import Path; from kernels import boot; from kernels.stock import Kernel\n"
        f"boot._machine = lambda *unused: ['sh', '-c', 'sleep 1000; true {mark}']\n"
        f"boot.boot(Kernel('5.10', Path('{tmp_path}')), 'true', Path('{tmp_path}/shared'), 100, image=Path('{mark}'))\n"
    )
    tests = str(Path(__file__).parents[1])
    harness = subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": tests})
    try:
        # before the command itself runs, it is not yet bound to those that start it
        _until(lambda: any(words.startswith("sh ") for words in _with_words(mark)))
    finally:
        harness.kill()
        harness.wait()
    _until(lambda: not _with_words(mark))


def _with_words(text: str) -> list[str]:
    """Command lines of processes that hold `text`, but for the harness's."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            said = place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if text in said and "import sys; from pathlib" not in said:
            found.append(said)
    return found


def _until(true: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.05)
