"""Our own programs for BCC: where they cannot run, and what they do not rule out."""

from __future__ import annotations

from pathlib import Path

import pytest

from whystall.tools.collect.bcc import own_program
from whystall.tools.collect.bcc.own_program import OwnProgram, python_bcc
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.contract.result import BlindSpot
from whystall.tools.recording.collector import Options
from whystall.tools.recording.manifest import CollectorManifest, Manifest
from whystall.tools.recording.target import Target


@pytest.mark.parametrize(
    "place",
    [
        "usr/lib/python3/dist-packages/bcc",  # Debian, Ubuntu
        "usr/lib/python3.9/site-packages/bcc",  # openEuler 22.03
        "usr/lib/python3.12/site-packages/bcc",  # Fedora
    ],
)
def test_bcc_is_found_where_distributions_put_it(tmp_path: Path, place: str) -> None:
    assert python_bcc(tmp_path) is None
    (tmp_path / place).mkdir(parents=True)
    assert python_bcc(tmp_path) == tmp_path / place


def test_a_module_for_another_python_is_none(tmp_path: Path) -> None:
    for version in ("3.9", "3.12"):
        (tmp_path / f"usr/lib/python{version}/site-packages/bcc").mkdir(parents=True)
    (tmp_path / "etc/alternatives").mkdir(parents=True)
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/bin/python3").symlink_to("/etc/alternatives/python3")
    chosen = tmp_path / "etc/alternatives/python3"
    for version, found in (("3.12", "usr/lib/python3.12/site-packages/bcc"), ("3.11", None)):
        chosen.unlink(missing_ok=True)
        chosen.symlink_to(f"/usr/bin/python{version}")
        assert python_bcc(tmp_path) == (tmp_path / found if found else None)


def test_without_the_module_no_collector_is_available(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_program, "python_bcc", lambda: None)
    for collector in OwnProgram.serves:
        assert OwnProgram().unavailable(collector) is not None
    assert OwnProgram().unavailable("samples") == "no program of our own"


def test_too_many_targets_are_refused_before_anything_starts() -> None:
    program = OwnProgram()
    with pytest.raises(ToolError, match="too many") as caught:
        program.load({"syscalls": Options()}, Target(everything=False, pids=list(range(1, 1100))))
    assert caught.value.code is ErrorCode.BAD_ARGUMENT
    assert program.fileno() is None


def test_what_was_not_loaded_cannot_be_read() -> None:
    program = OwnProgram()
    with pytest.raises(ToolError, match="not started"):
        program.read()
    program.stop()
    program.close()


@pytest.mark.parametrize(("codes", "sure"), [([], True), (["kernel_symbols"], True), (["pages_in_part"], False)])
def test_partial_observation_rules_nothing_out(codes: list[str], sure: bool) -> None:
    entry = CollectorManifest(engine="bcc", proven=True, not_seen=[BlindSpot(code=code) for code in codes])
    manifest = Manifest(
        **dict.fromkeys(("id", "host", "kernel", "machine", "started"), "x"),
        **dict.fromkeys(("start_ns", "window_ns", "requested_ns"), 0),
        cpus=1,
        target=Target(everything=True),
        collectors={"page_cache": entry},
    )
    assert manifest.saw_everything("page_cache") is sure
