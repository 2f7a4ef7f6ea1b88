"""`hybrid-run` where little is as it should be: places, limits, privilege, variables of strangers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from whystall.tools.hybrid_io import run
from whystall.tools.hybrid_io.build import BuildError

MIB = 1 << 20
COPY = ["dd", "bs=4M", "status=none"]


@pytest.fixture(scope="module")
def shim() -> Path:
    try:
        return run.library()
    except BuildError as error:
        pytest.skip(str(error))


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data"
    path.write_bytes(os.urandom(8 * MIB))
    return path


def copied(data: Path, to: Path) -> list[str]:
    return [*COPY, f"if={data}", f"of={to}"]


@pytest.mark.parametrize("name", ["a blank", "a:colon"])
def test_a_shim_below_a_directory_that_ld_preload_cannot_name(
    name: str,
    shim: Path,
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).mkdir()
    there = tmp_path / name / shim.name
    there.symlink_to(shim)
    monkeypatch.setattr(run, "library", lambda: there)
    done = run.run(copied(data, tmp_path / "copy"), run.Options())
    assert (tmp_path / "copy").read_bytes() == data.read_bytes()
    assert done.total.bytes("write") >= 8 * MIB, "the shim was there"
    assert "LD_PRELOAD" not in capfd.readouterr().err


def test_few_descriptors_are_enough(shim: Path, data: Path, tmp_path: Path) -> None:
    """The engine keeps its own above 500, where it can."""
    script = f"ulimit -n 64; exec dd bs=4M status=none if='{data}' of='{tmp_path / 'copy'}'"
    done = run.run(["sh", "-c", script], run.Options())
    assert done.status == 0
    assert (tmp_path / "copy").read_bytes() == data.read_bytes()


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_standard_streams_that_are_closed_are_not_taken(shim: Path, data: Path, tmp_path: Path, closed: str) -> None:
    """What the engine opens must not become a stream of the program: its next words would go there."""
    script = f"exec {closed}; exec dd bs=4M status=none if='{data}' of='{tmp_path / 'copy'}'"
    assert run.run(["sh", "-c", script], run.Options()).status == 0
    assert (tmp_path / "copy").read_bytes() == data.read_bytes()


@pytest.mark.parametrize(
    "policy",
    ["", "mode=99", "limit=-1", "read_direct=xyz,,,=", "write_direct=18446744073709551616", "\x1b[31m" * 99],
    ids=["empty", "mode", "negative", "letters", "too large", "escapes"],
)
def test_a_policy_of_strangers_changes_no_byte(shim: Path, data: Path, tmp_path: Path, policy: str) -> None:
    names = {"LD_PRELOAD": str(shim), "WHYSTALL_HYBRID_POLICY": policy, "WHYSTALL_HYBRID_COUNTERS": "/nonexistent/x"}
    done = subprocess.run(copied(data, tmp_path / "copy"), env={**os.environ, **names}, capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert (tmp_path / "copy").read_bytes() == data.read_bytes()


@pytest.mark.skipif(os.geteuid() != 0, reason="becoming somebody else needs root")
def test_who_gives_up_privilege_still_reads_and_writes(shim: Path, data: Path, tmp_path: Path) -> None:
    """The counters are the first user's; the shim does without them."""
    program = (
        "import os\nos.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "data = os.pread(3, 8 << 20, 0)\nassert os.pwrite(4, data, 0) == 8 << 20\n"
    )
    script = f"exec 3<'{data}' 4>'{tmp_path / 'copy'}'; exec '{sys.executable}' -c '{program}'"
    assert run.run(["sh", "-c", script], run.Options()).status == 0
    assert (tmp_path / "copy").read_bytes() == data.read_bytes()


def test_what_is_no_program_is_said_and_leaves_nothing(tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.write_bytes(b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x02\x00\xb7\x00\x01\x00\x00\x00")  # aarch64, cut short
    short, lost = tmp_path / "short", tmp_path / "lost"
    short.write_bytes(b"\x7fELF")
    lost.write_text("#!/no/such/interpreter\n")
    for path in (foreign, short, lost):
        path.chmod(0o755)
        with pytest.raises(run.CannotRun) as caught:
            run.run([str(path)], run.Options())
        assert caught.value.status == run.NOT_RUN
    with pytest.raises(run.CannotRun) as caught:
        run.run([""], run.Options())
    assert caught.value.status == run.NOT_FOUND
