"""`hybrid_open` is a raw file as Python's own is: modes, errors, buffers, life. What differs is in its docstrings."""

from __future__ import annotations

import array
import copy
import errno
import gc
import io
import mmap
import os
import pickle
import shutil
import subprocess
import sys
import threading
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from whystall.tools.hybrid_io import hybrid_file, library
from whystall.tools.hybrid_io.hybrid_file import HybridFile, hybrid_open
from whystall.tools.hybrid_io.plain_file import PlainFile
from whystall.tools.hybrid_io.policy import Policy

EAGER = Policy(read_direct_bytes=8192, write_direct_bytes=8192, pressure_direct_bytes=4096, keep_file_bytes=0)
DATA = bytes(range(256)) * 300


@pytest.fixture
def path(tmp_path: Path) -> Path:
    made = tmp_path / "file"
    made.write_bytes(DATA)
    return made


@pytest.fixture(params=["hybrid", "plain"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With the engine, and where it is missing: the object answers alike."""
    if request.param == "plain":
        monkeypatch.setattr(library, "_loaded", None)
        monkeypatch.setattr(library, "PATH", "/nonexistent/libwhystall_hybrid.so")
        monkeypatch.setattr(hybrid_file, "_warned", set())
        with pytest.warns(RuntimeWarning, match="engine is not built .* build it with: python -m whystall"):
            hybrid_open("/dev/null").close()
    kind: str = request.param
    return kind


def outcome(call: Any) -> Any:
    """What a call gives: its value, or what it raises (kind, errno, file name)."""
    try:
        return call()
    except OSError as error:
        return type(error).__name__, error.errno, error.filename
    except Exception as error:
        return type(error).__name__


@pytest.mark.parametrize("mode", ["rb", "r", "wb", "ab", "xb", "r+b", "rb+", "w+b", "a+b", "x+b"])
@pytest.mark.parametrize("there", [True, False])
def test_modes_are_those_of_open(tmp_path: Path, mode: str, there: bool, kind: str) -> None:
    path = tmp_path / "file"

    def walk(opened: Any) -> list[Any]:
        with opened as file:
            return [
                file.tell(),
                outcome(lambda: file.read(10)),
                outcome(lambda: file.write(b"0123456789")),
                file.tell(),
                outcome(lambda: file.seek(3)),
                outcome(lambda: file.truncate(70_000)),
                file.readable() and outcome(file.readall),
                (file.readable(), file.writable(), file.seekable(), file.isatty(), file.closed),
            ]

    def fresh() -> None:
        path.unlink(missing_ok=True)
        if there:
            path.write_bytes(DATA)

    fresh()
    expected = outcome(lambda: walk(io.FileIO(path, mode.replace("b", ""))))
    after = path.read_bytes() if path.exists() else None
    fresh()
    assert outcome(lambda: walk(hybrid_open(path, mode, EAGER))) == expected
    assert (path.read_bytes() if path.exists() else None) == after


@pytest.mark.parametrize("mode", ["", "b", "rw", "rt", "U", "r++", "rbb", "z", "+", "wr+"])
def test_a_bad_mode_is_refused_before_anything_is_opened(tmp_path: Path, mode: str, kind: str) -> None:
    with pytest.raises(ValueError, match="mode is one of r, w, a, x"):
        hybrid_open(tmp_path / "new", mode)
    assert list(tmp_path.iterdir()) == []


def test_errors_name_the_file(tmp_path: Path, kind: str) -> None:
    missing = tmp_path / "none" / "file"
    for path in (missing, str(missing), os.fsencode(missing)):
        with pytest.raises(FileNotFoundError) as error:
            hybrid_open(path)
        assert (error.value.errno, error.value.filename) == (errno.ENOENT, path)
    with pytest.raises(IsADirectoryError) as directory:
        hybrid_open(tmp_path)
    assert directory.value.filename == tmp_path
    with pytest.raises(ValueError, match="null"):
        hybrid_open("a\0b")


def test_kernel_errors_name_the_file(path: Path) -> None:
    with hybrid_open(path, "r+b") as file:
        for call in (lambda: file.seek(-1), lambda: file.truncate(-1), lambda: file.seek(0, 99)):
            with pytest.raises(OSError, match=r"\[Errno 22\]") as error:
                call()
            assert error.value.filename == path
        for offset in (-1, -2, -(1 << 62)):
            with pytest.raises(OSError, match=r"\[Errno 22\]"):
                file.pread(10, offset)
            with pytest.raises(OSError, match=r"\[Errno 22\]"):
                file.pwrite(b"x", offset)
        with pytest.raises(ValueError, match="not negative"):
            file.pread(-1, 0)
        assert file.tell() == 0


def test_far_beyond_the_end(path: Path) -> None:
    with hybrid_open(path, "r+b", EAGER) as file:
        for offset in (1 << 50, (1 << 63) - 200_000, (1 << 63) - 1):
            with path.open("rb") as plain:
                expected = outcome(lambda plain=plain, offset=offset: os.pread(plain.fileno(), 100_000, offset))
            got = outcome(lambda offset=offset: file.pread(100_000, offset))
            assert got == (expected if expected == b"" else ("OSError", expected[1], path))
        assert file.seek(1 << 40) == file.tell() == 1 << 40
        assert file.read(100_000) == b""
        with pytest.raises(OSError, match=r"\[Errno (27|22)\]"):
            file.pwrite(DATA, (1 << 63) - 10)
    assert path.read_bytes() == DATA


def buffers() -> list[Any]:
    memory = mmap.mmap(-1, len(DATA))
    memory[:] = DATA
    return [
        DATA,
        bytearray(DATA),
        memoryview(DATA),
        memoryview(bytearray(DATA)).toreadonly(),
        array.array("q", DATA),
        memory,
        np.frombuffer(DATA, np.float16),
        np.frombuffer(DATA, np.uint8).reshape(300, 256),
    ]


@pytest.mark.parametrize("index", range(len(buffers())))
def test_anything_with_bytes_can_be_written(path: Path, index: int, kind: str) -> None:
    data = buffers()[index]
    with hybrid_open(path, "w+b", EAGER) as file:
        assert file.write(data) == len(DATA)
        assert file.pwrite(data, 3) == len(DATA)
        assert file.tell() == len(DATA)
    assert path.read_bytes() == DATA[:3] + DATA


@pytest.mark.parametrize(
    "make",
    [
        lambda: bytearray(len(DATA)),
        lambda: mmap.mmap(-1, len(DATA)),
        lambda: np.empty(len(DATA) // 8, np.float64),
        lambda: memoryview(bytearray(len(DATA) + 7))[7:],
    ],
    ids=["bytearray", "mmap", "numpy", "slice"],
)
def test_anything_with_room_can_be_filled(path: Path, make: Any, kind: str) -> None:
    buffer = make()
    with hybrid_open(path, "rb", EAGER) as file:
        assert file.readinto(buffer) == len(DATA)
        assert bytes(memoryview(buffer).cast("B")) == DATA
        assert file.readinto(buffer) == 0
        assert file.preadinto(buffer, 1000) == len(DATA) - 1000


def test_what_cannot_be_filled_or_written_is_refused(path: Path, kind: str) -> None:
    sparse = np.zeros((10, 10), np.uint8)[:, ::2]
    with hybrid_open(path, "r+b") as file:
        for wrong in ("text", None, 7, object()):
            with pytest.raises(TypeError):
                file.write(wrong)  # type: ignore[arg-type]
        for readonly in (b"12", memoryview(b"12"), np.frombuffer(DATA, np.uint8)):
            with pytest.raises((TypeError, BufferError, ValueError)):
                file.readinto(readonly)
        with pytest.raises((TypeError, BufferError, ValueError)):
            file.write(sparse)
        assert file.tell() == 0
    assert path.read_bytes() == DATA


def test_nothing_can_be_moved(path: Path, kind: str) -> None:
    with hybrid_open(path, "r+b") as file:
        assert (file.read(0), file.write(b""), file.pread(0, 5), file.readinto(bytearray())) == (b"", 0, b"", 0)
    assert path.read_bytes() == DATA


def test_a_closed_file_says_so(path: Path, kind: str) -> None:
    file = hybrid_open(path, "r+b")
    file.close()
    file.close()
    assert file.closed
    for call in (
        file.read,
        file.readall,
        file.tell,
        file.fileno,
        file.truncate,
        file.fsync,
        file.readable,
        file.isatty,
    ):
        with pytest.raises(ValueError, match=r"I/O operation on closed file|closed"):
            call()
    with pytest.raises(ValueError, match="closed"):
        file.write(b"x")
    with pytest.raises(ValueError, match="closed"):
        file.flush()
    with pytest.raises(ValueError, match="closed"), file:
        pass


def test_it_cannot_be_copied_or_sent(path: Path, kind: str) -> None:
    with hybrid_open(path) as file:
        for call in (pickle.dumps, copy.copy, copy.deepcopy):
            with pytest.raises(TypeError, match="cannot pickle"):
                call(file)


def test_a_file_left_open_is_told_and_closed(path: Path, kind: str) -> None:
    before = set(os.listdir("/proc/self/fd"))
    file = hybrid_open(path, "r+b", EAGER)
    file.pwrite(DATA[:20_000], 0)
    with pytest.warns(ResourceWarning, match="unclosed file"):  # noqa: PT031 - the last reference goes, then what it held
        del file
        gc.collect()
    assert set(os.listdir("/proc/self/fd")) <= before | {str(n) for n in range(490, 1 << 20)}


def test_nothing_is_left_open(path: Path) -> None:
    with hybrid_open(path, "r+b", EAGER) as file:
        file.write(DATA)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        with hybrid_open(path, "r+b", EAGER) as file:
            file.write(DATA)
        with pytest.raises(OSError, match=r"denied|exists"):
            hybrid_open(path, "xb")
    assert len(os.listdir("/proc/self/fd")) == before


def test_its_words(path: Path) -> None:
    file = hybrid_open(path, "r+b")
    assert repr(file) == f"<whystall.tools.hybrid_io.hybrid_file.HybridFile name={path!r} mode='r+b'>"
    file.close()
    assert repr(file).endswith(" closed>")
    assert (file.name, file.mode) == (path, "r+b")


def test_around_it_go_the_usual_wrappers(tmp_path: Path, kind: str) -> None:
    path, copied = tmp_path / "lines", tmp_path / "copied"
    with io.BufferedWriter(hybrid_open(path, "wb", EAGER), 10_000) as writer:
        for i in range(5000):
            writer.write(b"line %d\n" % i)
    with io.TextIOWrapper(io.BufferedReader(hybrid_open(path, "rb", EAGER), 16_384)) as text:
        assert [int(line.split()[1]) for line in text] == list(range(5000))
    with hybrid_open(path, "rb", EAGER) as source, hybrid_open(copied, "wb", EAGER) as target:
        shutil.copyfileobj(source, target, 9000)
    assert copied.read_bytes() == path.read_bytes()
    with hybrid_open(path) as lines:
        assert next(lines) == b"line 0\n"


def test_numpy_saves_and_loads(tmp_path: Path, kind: str) -> None:
    values = np.arange(200_000)
    with hybrid_open(tmp_path / "values", "wb", EAGER) as file:
        np.save(file, values)
        np.savez(file, a=values, b=values[:3])
    with hybrid_open(tmp_path / "values", "rb", EAGER) as file:
        assert (np.load(file) == values).all()
        end = file.tell()
        assert (np.fromfile(file, np.uint8, 2) == [ord("P"), ord("K")]).all()
        assert file.tell() == end + 2
        file.seek(-values.nbytes // 2, os.SEEK_END)


def test_pickles_go_through(tmp_path: Path, kind: str) -> None:
    state = {"weights": np.arange(300_000.0), "step": 7}
    with hybrid_open(tmp_path / "state", "wb", EAGER) as file:
        pickle.dump(state, file, protocol=5)
    with hybrid_open(tmp_path / "state", "rb", EAGER) as file:
        loaded = pickle.load(file)
    assert loaded["step"] == 7
    assert (loaded["weights"] == state["weights"]).all()


def test_a_pipe_is_read_as_it_comes(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path)
    writer = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; f = open(sys.argv[1], 'wb', 0); f.write(b'first'); time.sleep(0.3); f.write(b'then')",
            path,
        ]
    )
    with hybrid_open(path) as file:
        got = file.readinto(bytearray(100))
        assert 0 < got <= 9
        assert not file.seekable()
        assert len(file.readall()) == 9 - got
        status = file.status()
        assert not status.direct
    assert writer.wait() == 0


def test_proc_files_are_read_whole() -> None:
    with hybrid_open("/proc/self/status") as file:
        text = file.read()
        assert text.startswith(b"Name:")
        assert b"Threads:" in text
        assert not file.status().direct


def test_many_threads_one_position(tmp_path: Path) -> None:
    """Every record is handed out once, large and small ones alike."""
    path, size, count = tmp_path / "records", 12_288, 200
    path.write_bytes(b"".join(i.to_bytes(4, "big") * (size // 4) for i in range(count)))
    seen: list[int] = []

    def take(file: Any) -> None:
        while record := file.read(size):
            assert record == record[:4] * (size // 4)
            seen.append(int.from_bytes(record[:4], "big"))

    with hybrid_open(path, "rb", EAGER) as file:
        threads = [threading.Thread(target=take, args=(file,)) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert sorted(seen) == list(range(count))


def test_closing_waits_for_requests_of_other_threads(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA * 20)
    for _ in range(15):
        file = hybrid_open(path, "rb", EAGER)
        started = threading.Event()
        wrong: list[bytes] = []

        def read(file: Any = file, started: threading.Event = started, wrong: list[bytes] = wrong) -> None:
            try:
                while True:
                    got = file.pread(len(DATA), len(DATA))
                    started.set()
                    if got != DATA:
                        wrong.append(got)
            except ValueError as error:
                if "closed" not in str(error):
                    wrong.append(str(error).encode())

        threads = [threading.Thread(target=read) for _ in range(3)]
        for thread in threads:
            thread.start()
        started.wait()
        file.close()
        for thread in threads:
            thread.join()
        assert wrong == []


def test_a_child_of_fork_may_use_and_close_it(path: Path) -> None:
    with hybrid_open(path, "r+b", EAGER) as file:
        file.read(10_000)
        child = os.fork()
        if not child:  # the position is shared, as with any descriptor
            status = 1
            try:
                assert isinstance(file, HybridFile)
                same = file.read(20_000) == DATA[10_000:30_000]
                file.pwrite(b"child", 50_000)
                counted = hybrid_file.counters()
                file.close()
                status = 0 if same and counted.files == 0 and counted.requests["read"]["shared"]["requests"] == 1 else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert file.tell() == 30_000
        assert file.read(20_000) == DATA[30_000:50_000]
        assert file.pread(5, 50_000) == b"child"
        assert "shared" in file.status().flags
        # with offsets of its own it is nobody else's
        assert file.pread(20_480, 0) == DATA[:20_480]
        assert file.status().requests["read"]["shared"]["requests"] == 1


def test_without_the_engine_it_is_told_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library, "_loaded", None)
    monkeypatch.setattr(library, "PATH", __file__)  # no library
    monkeypatch.setattr(hybrid_file, "_warned", set())
    with pytest.warns(RuntimeWarning, match="cannot be loaded .* build it with") as told:
        first = hybrid_open(path)
    assert "\n" not in str(told[0].message)
    with warnings.catch_warnings(), first:
        warnings.simplefilter("error")
        with hybrid_open(path) as second:
            assert isinstance(second, PlainFile)
            assert second.status().engine == "plain"
            assert second.status().note == str(told[0].message).removesuffix(
                "; files are plain and buffered until then"
            )
            assert second.read() == DATA
    with pytest.raises(library.Unavailable):
        library.load()


def test_it_imports_nothing_heavy() -> None:
    """It runs inside training processes. Only the standard library, and little of it."""
    code = (
        "import sys; before = set(sys.modules); import whystall.tools.hybrid_io.hybrid_file; "
        "print(*sorted({name.partition('.')[0] for name in set(sys.modules) - before}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) <= sys.stdlib_module_names | {"whystall"}
    assert not {"numpy", "polars", "inspect", "dataclasses", "asyncio", "subprocess"} & set(done.stdout.split())
