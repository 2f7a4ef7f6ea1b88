"""``whystall hybrid-run`` where there is no room, no interpreter, no right, or nobody left to clean up."""

from __future__ import annotations

import fcntl
import json
import os
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from warm_command import COMMAND

from whystall.tools.hybrid_io import build, counter_folder, run
from whystall.tools.hybrid_io.policy import Policy
from whystall.tools.hybrid_io.report import REST, REST_BYTES

pytestmark = pytest.mark.thorough

Run = Callable[..., "subprocess.CompletedProcess[str]"]
MIB = 1 << 20


@pytest.fixture(scope="module", autouse=True)
def _shim() -> None:
    try:
        run.library()
    except build.BuildError as error:
        pytest.skip(str(error))


def copying(folder: Path) -> list[str]:
    (folder / "data").write_bytes(os.urandom(8 * MIB))
    return ["dd", "bs=4M", "status=none", f"if={folder}/data", "of=/dev/null"]


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="an own /dev/shm needs root")
@pytest.mark.parametrize("when", ["before", "meanwhile"])
def test_a_full_dev_shm_kills_nobody(env: dict[str, str], tmp_path: Path, when: str) -> None:
    """Containers have 64 MiB of it, which data loaders fill: a counter that cannot be backed must not be SIGBUS."""
    fill = "dd if=/dev/zero of=/dev/shm/fill bs=4k status=none 2>/dev/null"
    mount = "mount -t tmpfs -o size=128k tmpfs /dev/shm"
    copy = " ".join(copying(tmp_path))
    if when == "before":
        script = f"{mount}; {fill}; exec {COMMAND} hybrid-run -- {copy}"
    else:
        script = f"{mount}; exec {COMMAND} hybrid-run -- sh -c '{fill}; {copy}; exit $?'"
    done = subprocess.run(["unshare", "-m", "sh", "-c", script], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert re.search(r"read 8(\.\d+)? MiB in", done.stderr), "and it is counted all the same"


@pytest.mark.parametrize("kib", [4, 24])
def test_a_limit_on_the_size_of_files_kills_nobody(env: dict[str, str], tmp_path: Path, kib: int) -> None:
    """The counters' file must not grow beyond RLIMIT_FSIZE: that would be SIGXFSZ for the program."""
    limit = (kib << 10, kib << 10)
    done = subprocess.run(
        [COMMAND, "hybrid-run", "--", *copying(tmp_path)],
        env=env,
        capture_output=True,
        text=True,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    assert done.returncode == 0, done.stderr
    assert ("not counted" in done.stderr) is (kib == 4)


@pytest.mark.parametrize("text", ["echo from $0 $1; exit 5\n", ""])
def test_a_script_without_an_interpreter_is_the_shells(whystall: Run, tmp_path: Path, text: str) -> None:
    """As with env(1), nohup(1) and every shell."""
    script = tmp_path / "script"
    script.write_text(text)
    script.chmod(0o755)
    done = whystall("hybrid-run", "--quiet", "--", str(script), "one")
    assert (done.returncode, done.stdout) == ((5, f"from {script} one\n") if text else (0, ""))


@pytest.mark.parametrize(("mode", "why"), [(0o644, "not executable"), (None, "a directory")])
def test_why_it_cannot_be_run(whystall: Run, tmp_path: Path, mode: int | None, why: str) -> None:
    path = tmp_path / "thing"
    if mode is None:
        path.mkdir()
    else:
        path.write_text("#!/bin/sh\n")
        path.chmod(mode)
    done = whystall("hybrid-run", str(path))
    assert done.returncode == 126
    assert why in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_help_tells_the_defaults(whystall: Run) -> None:
    text = " ".join(whystall("hybrid-run", "--help").stdout.split())
    told = Policy()
    for size in (told.read_direct_bytes, told.write_direct_bytes, told.pressure_direct_bytes, told.keep_file_bytes):
        assert f"default {size >> 20}m)" in text or f"default {size >> 10}k)" in text
    assert f"(default {told.limit_share:g})" in text


@pytest.fixture
def left_over() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix=counter_folder.PREFIX, dir="/dev/shm"))
    (folder / REST).touch()
    (folder / "17-1").write_bytes(bytes(20))
    old = time.time() - 3600
    os.utime(folder, (old, old))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def test_what_a_killed_run_left_is_swept_by_the_next(whystall: Run, left_over: Path) -> None:
    assert whystall("hybrid-run", "--quiet", "true").returncode == 0
    assert not left_over.exists()


def test_what_is_in_use_is_not_swept(whystall: Run, left_over: Path) -> None:
    with open(left_over / REST, "rb+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert whystall("hybrid-run", "--quiet", "true").returncode == 0
        assert (left_over / "17-1").exists()


def test_a_link_with_such_a_name_is_not_followed(whystall: Run, tmp_path: Path) -> None:
    (tmp_path / REST).touch()
    link = Path(tempfile.mktemp(prefix=counter_folder.PREFIX, dir="/dev/shm"))
    link.symlink_to(tmp_path)
    try:
        old = time.time() - 3600
        os.utime(link, (old, old), follow_symlinks=False)
        assert whystall("hybrid-run", "--quiet", "true").returncode == 0
        assert (tmp_path / REST).exists()
    finally:
        link.unlink()


def test_an_option_of_the_program_is_not_ours(whystall: Run) -> None:
    done = whystall("hybrid-run", "--", "no-such-program", "--json")
    assert done.returncode == 127
    assert done.stdout == ""


def test_an_error_as_an_object(whystall: Run) -> None:
    done = whystall("hybrid-run", "--json", "--", "/")
    assert done.returncode == 126
    assert json.loads(done.stdout)["error"]["code"] == "bad_argument"


def test_standard_output_that_is_closed_stays_closed(env: dict[str, str]) -> None:
    command = f"exec {COMMAND} hybrid-run --quiet -- sh -c 'echo said; exit 9' >&-"
    done = subprocess.run(["sh", "-c", command], env=env, capture_output=True, text=True)
    assert done.returncode == 9, "not SIGPIPE"


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="a mount of its own needs root")
def test_a_summary_that_cannot_be_written_costs_no_status(env: dict[str, str], tmp_path: Path) -> None:
    mount = f"mount -t tmpfs -o size=4k,nr_inodes=1 tmpfs {tmp_path}"
    command = f"{mount}; exec {COMMAND} hybrid-run -o {tmp_path}/out -- sh -c 'exit 9'"
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], env=env, capture_output=True, text=True)
    assert done.returncode == 9
    assert "the summary is lost" in done.stderr


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="to be without /proc needs root")
def test_without_proc_it_runs_all_the_same(env: dict[str, str], tmp_path: Path) -> None:
    command = f"umount -l /proc; exec {COMMAND} hybrid-run --quiet -- {' '.join(copying(tmp_path))}"
    done = subprocess.run(["unshare", "-m", "sh", "-c", command], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_what_mostly_passes_by_is_told(whystall: Run, tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(32 * MIB))
    passing = "import os, sys; os.sendfile(os.open(sys.argv[2], 1), os.open(sys.argv[1], 0), 0, 32 << 20)"
    (tmp_path / "to").touch()
    done = whystall("hybrid-run", "--", sys.executable, "-c", passing, f"{tmp_path}/data", f"{tmp_path}/to")
    assert done.returncode == 0
    assert "one program, without any large request" in done.stderr
    assert "most of its I/O was not observed" in done.stderr


def test_an_argument_that_is_no_text(env: dict[str, str], tmp_path: Path) -> None:
    out = tmp_path / "summary"
    words = [b"hybrid-run", b"--json", b"-o", os.fsencode(out), b"--", b"true", b"\xff"]
    done = subprocess.run([COMMAND, *words], env=env, capture_output=True)
    assert (done.returncode, done.stderr) == (0, b"")
    assert out.read_text("ascii")


def test_a_shim_that_is_not_there_and_cannot_be_built(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An installation that belongs to somebody else: its folder cannot be written."""
    (tmp_path / "file").touch()
    monkeypatch.setattr(build, "OBJECTS", tmp_path / "file" / "objects")
    with pytest.raises(build.BuildError, match="its owner can: python -m"):
        run.library()


@pytest.mark.parametrize("mode", [0o700, 0o777], ids=["a link in it", "others may write there"])
def test_a_folder_that_others_made_is_not_counted_in(tmp_path: Path, mode: int) -> None:
    """A program may outlive its run, and find a folder of the same name with links in it."""
    folder, victim = tmp_path / "folder", tmp_path / "victim"
    victim.write_bytes(bytes(REST_BYTES))
    folder.mkdir()
    (folder / REST).symlink_to(victim) if mode == 0o700 else (folder / REST).hardlink_to(victim)
    folder.chmod(mode)
    variables = run.environment(run.library(), run.Options(), folder, dict(os.environ))
    for command in (copying(tmp_path), ["sh", "-c", "echo"]):
        assert subprocess.run(command, env=variables, capture_output=True).returncode == 0
    assert victim.read_bytes() == bytes(REST_BYTES)
    assert (len(list(folder.iterdir())) == 1) is (mode == 0o777)
