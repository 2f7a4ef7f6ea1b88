"""Real programs with the shim below them: what they make is what they make without it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from shimmed import EAGER, plain, shimmed, takes_direct

from whystall.tools.hybrid_io.build import compiler
from whystall.tools.hybrid_io.run import Options

pytestmark = pytest.mark.thorough

MIB = 1 << 20
LARGE = Options(keep_file=1)
"""As by default, but that files which fit the cache are treated like those that do not."""


@pytest.fixture
def big(tmp_path: Path) -> Path:
    """A file of 8 MiB and a bit, none of it in the cache."""
    path = tmp_path / "big"
    with path.open("wb") as file:
        file.write(os.urandom(8 * MIB + 1234))
        file.flush()
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return path


def needs(name: str) -> str:
    if shutil.which(name) is None:
        pytest.skip(f"no {name}")
    return name


def test_dd_goes_direct(tmp_path: Path, big: Path) -> None:
    done = shimmed(["dd", "if=big", "of=copy", "bs=4M"], tmp_path, LARGE)
    assert done.status == 0
    assert (tmp_path / "copy").read_bytes() == big.read_bytes()
    if takes_direct(tmp_path):
        assert done.total.bytes("write", direct=True) >= 8 * MIB
        assert done.total.bytes("read", direct=True) + done.total.counts["read"]["resident"].bytes >= 8 * MIB
        assert done.total.bytes("read", direct=True) > 0
    assert [(p.program, p.requests("write")) for p in done.programs] == [("dd", 3)]


@pytest.mark.parametrize("options", [EAGER, LARGE], ids=["eager", "large"])
def test_shells_and_their_children(tmp_path: Path, big: Path, options: Options) -> None:
    script = """
        cp big copy && cmp big copy && mkdir out && tar cf all.tar big copy && tar xf all.tar -C out
        cmp out/big big && cat big > joined && head -c 3000000 big >> joined && gzip -1 < big | gzip -d | cmp - big
        sha256sum < joined; wc -c joined; split -b 3M big part. && cat part.* | cmp - big && echo fits
    """
    expected = plain(["sh", "-ec", script], tmp_path)
    for name in ("out", "copy", "joined", "all.tar"):
        path = tmp_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    done = shimmed(["sh", "-ec", script], tmp_path, options)
    assert (done.status, done.err, done.out) == (0, "", expected.out)
    assert b"fits" in done.out
    assert done.total.programs >= 12


def test_git(tmp_path: Path, big: Path) -> None:
    needs("git")
    script = """
        git init -q . && git add big && git -c user.name=a -c user.email=a@b commit -qm one && rm big
        git checkout -q big && git fsck --strict && git gc -q && git clone -q . clone && cmp clone/big big && echo fits
    """
    before = big.read_bytes()
    home = {"HOME": str(tmp_path), "GIT_CONFIG_NOSYSTEM": "1"}
    done = shimmed(["sh", "-ec", script], tmp_path, EAGER, **home)
    assert (done.status, done.out[-5:]) == (0, b"fits\n"), done.err
    assert big.read_bytes() == before


SQLITE = """
import sqlite3, subprocess, sys
db = sqlite3.connect("base", timeout=30)
db.execute("PRAGMA journal_mode=%s" % sys.argv[1])
db.execute("PRAGMA page_size=65536")
db.execute("CREATE TABLE IF NOT EXISTS t (a INTEGER, b BLOB)")
with db:
    db.executemany("INSERT INTO t VALUES (?, ?)", ((i, bytes([i % 251]) * 100_000) for i in range(60)))
other = "import sqlite3; d = sqlite3.connect('base', timeout=30)\\n"
other += "with d: d.execute('UPDATE t SET a = a + 1')"
subprocess.run([sys.executable, "-c", other], check=True)
db.execute("VACUUM")
print(db.execute("PRAGMA integrity_check").fetchone(), db.execute("SELECT sum(a), sum(length(b)) FROM t").fetchone())
"""


@pytest.mark.parametrize("journal", ["delete", "wal"])
def test_sqlite(tmp_path: Path, journal: str) -> None:
    done = shimmed([sys.executable, "-c", SQLITE, journal], tmp_path)
    assert (done.status, done.err) == (0, "")
    assert done.out == b"('ok',) (1830, 6000000)\n"


NUMPY = """
import numpy
a = numpy.arange(700_000, dtype=numpy.float64)
numpy.save("a.npy", a)
b = numpy.load("a.npy")
with open("mixed", "wb") as f:
    f.write(b"head")
    a.tofile(f)
    assert f.tell() == 4 + a.nbytes
    f.write(b"tail")
with open("mixed", "rb") as f:
    assert f.read(4) == b"head"
    c = numpy.fromfile(f, dtype=numpy.float64, count=len(a))
    assert f.read() == b"tail"
print((a == b).all(), (a == c).all())
"""


def test_numpy_moves_arrays_through_c_stdio(tmp_path: Path) -> None:
    done = shimmed([sys.executable, "-c", NUMPY], tmp_path, LARGE)
    assert (done.status, done.out, done.err) == (0, b"True True\n", "")
    assert done.total.stdio_requests >= 2
    if takes_direct(tmp_path):
        assert done.total.bytes("write", direct=True) > 8 * MIB


TORCH = """
import torch
state = {"weights": torch.arange(1_500_000, dtype=torch.float32), "step": 7}
torch.save(state, "state.pt")
again = torch.load("state.pt")
print(torch.equal(again["weights"], state["weights"]), again["step"])
torch.save(state, "old.pt", _use_new_zipfile_serialization=False)
print(torch.equal(torch.load("old.pt")["weights"], state["weights"]))
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, i):
        with open("state.pt", "rb", buffering=0) as f:
            return len(f.read())
print(sum(int(n.sum()) for n in torch.utils.data.DataLoader(Data(), num_workers=2)) > 0)
"""


def test_checkpoints_of_torch(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    done = shimmed([sys.executable, "-c", TORCH], tmp_path, LARGE)
    assert (done.status, done.out) == (0, b"True 7\nTrue\nTrue\n"), done.err
    if takes_direct(tmp_path):
        assert done.total.bytes("write", direct=True) > 4 * MIB


def test_fio_verifies_what_it_wrote(tmp_path: Path) -> None:
    needs("fio")
    options = (
        "--name=v",
        "--filename=data",
        "--size=4m",
        "--verify=crc32c",
        "--verify_fatal=1",
        "--bsrange=4k-1m",
        "--thread",
    )
    for engine, pattern in (("psync", "randwrite"), ("sync", "write"), ("pvsync2", "randrw"), ("mmap", "randwrite")):
        folder = tmp_path / engine
        folder.mkdir()
        # job threads instead of processes, so that shared memory of fio's own is not needed
        command = [
            "fio",
            *options,
            "--output-format=json",
            f"--ioengine={engine}",
            f"--rw={pattern}",
            "--bsrange=4k-1m",
            "--thread",
        ]
        done = shimmed(command, folder)
        assert done.status == 0, done.err
        assert json.loads(done.out[done.out.index(b"{") :])["jobs"][0]["error"] == 0


def test_other_c_libraries_and_static_programs_run_as_ever(tmp_path: Path) -> None:
    source = tmp_path / "hello.c"
    source.write_text('#include <unistd.h>\nint main(void) { return write(1, "hello", 5) == 5 ? 5 : 1; }\n')
    made = {"static": [compiler(), "-static"], "musl": ["musl-gcc"]}
    ran = 0
    for name, words in made.items():
        if shutil.which(words[0]) is None:
            continue
        if subprocess.run([*words, "-o", str(tmp_path / name), str(source)], capture_output=True).returncode:
            continue
        shutil.rmtree(tmp_path / "counters", ignore_errors=True)
        done = shimmed(["sh", "-c", f"./{name}; echo $?"], tmp_path)
        assert (done.out, done.err) == (b"hello5\n", "")
        assert (done.total.started, done.total.uncovered) == (1, 1)
        ran += 1
    assert ran or not shutil.which("gcc")


def test_a_program_with_a_sanitizer(tmp_path: Path) -> None:
    source = tmp_path / "some.c"
    source.write_text(
        "#include <fcntl.h>\n#include <unistd.h>\nstatic char data[1 << 20];\n"
        'int main(void) { int fd = open("f", O_RDWR | O_CREAT, 0600);\n'
        "return write(fd, data, sizeof(data)) != sizeof(data) || pread(fd, data, sizeof(data), 0) != sizeof(data); }\n"
    )
    words = [compiler(), "-fsanitize=address", "-o", str(tmp_path / "some"), str(source)]
    if subprocess.run(words, capture_output=True).returncode:
        pytest.skip("no AddressSanitizer")
    done = shimmed(["./some"], tmp_path)
    assert (done.status, done.err) == (0, "")
    assert done.total.bytes("write") == MIB


def test_what_a_killed_program_did_is_known(tmp_path: Path) -> None:
    code = "import os; open('f', 'wb', 0).write(bytes(8 << 20)); os.kill(os.getpid(), 9)"
    done = shimmed([sys.executable, "-c", code], tmp_path, LARGE)
    assert done.status == -9
    (program,) = done.programs
    assert program.bytes("write") == 8 * MIB
    assert program.passed_bytes is None  # told at the end of a program, which it did not come to


def test_hybrid_open_in_a_program_with_the_shim(tmp_path: Path) -> None:
    code = """
        from whystall.tools.hybrid_io import hybrid_open
        with hybrid_open("f", "wb") as f:
            f.write(bytes(range(256)) * (4 << 12) + b"tail")
        with hybrid_open("f", "rb") as f:
            assert f.read(17) == bytes(range(17))
            data = f.read()
        with open("f", "rb", 0) as f:
            assert f.read()[17:] == data
        print(len(data))
    """
    done = shimmed([sys.executable, "-c", textwrap.dedent(code)], tmp_path)
    assert (done.status, done.err, done.out) == (0, "", b"%d\n" % ((4 << 20) + 4 - 17))


def test_what_is_preloaded_already_stays(tmp_path: Path) -> None:
    source = tmp_path / "mine.c"
    source.write_text("#include <unistd.h>\nunsigned int alarm(unsigned int s) { (void)s; return 77; }\n")
    made = str(tmp_path / "mine.so")
    subprocess.run([compiler(), "-shared", "-fPIC", "-o", made, str(source)], check=True)
    code = "import signal; print(signal.alarm(0)); open('f', 'wb', 0).write(bytes(8 << 20))"
    done = shimmed([sys.executable, "-c", code], tmp_path, LARGE, LD_PRELOAD=made)
    assert done.out == b"77\n"
    assert done.total.bytes("write") == 8 * MIB + len(done.out)


def test_a_program_with_an_environment_of_its_own(tmp_path: Path) -> None:
    command = ["env", "-i", "/bin/sh", "-c", "dd if=/dev/zero of=file bs=4M count=1 2>/dev/null; env | grep -c HYBRID"]
    alone = shimmed(command, tmp_path, LARGE)
    assert alone.out == b"0\n"
    assert (alone.total.started, alone.total.uncovered) == (1, 1)
    shutil.rmtree(tmp_path / "counters")
    followed = shimmed(command, tmp_path, Options(keep_file=1, follow=True))
    assert followed.out == b"2\n"
    assert followed.total.bytes("write") >= 4 * MIB
    assert followed.total.uncovered == 0
