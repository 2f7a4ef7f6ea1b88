"""The child that runs our own programs through BCC: a program for the system's Python, where its ``bcc`` is installed.

It imports nothing of ours, and runs on Python 3.7 and later. Its standard input is lines of JSON: the plan (see
`own_source`), then ``{"do": "begin", "states": [...]}``, then ``{"do": "stop"}``. It answers in lines of JSON:
``hooks`` once all is attached, ``begun``, ``records`` as they come, after ``stop`` the contents of maps and ``end``;
or ``error``, and then it ends. When its input ends, so does it, at once: whoever started it is gone. Nothing is kept
here but what is on its way, and the kernel counts what finds no room.
"""

from __future__ import annotations

import base64
import ctypes
import json
import os
import queue
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from typing import IO, Any

_MOST_DATA = 1 << 30  # bytes of memory; BCC itself takes about 150 MB
_BATCH = 48 << 10  # bytes of records in a line
_ROWS = 256  # of a map in a line
_TOLD = 1500  # characters of an error
_POLL_MS = 50
_MAX_KEYS = 1 << 17  # more than any map holds
_ANY, _NOEXIST = 0, 1  # include/uapi/linux/bpf.h


def main() -> None:
    """Run until ``stop`` or the end of the input."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_DATA, _MOST_DATA))
    plan = json.loads(sys.stdin.buffer.readline())
    # What BCC and the compiler say goes to descriptor 2; only its essence is passed on.
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        commands: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=_listen, args=(commands,), daemon=True).start()
        try:
            _Programs(plan).run(commands)
        except Exception as error:
            _say({"error": str(error)[:_TOLD], "log": _essence(log)})
            _leave(1)
        _leave(0)


def _listen(commands: queue.Queue[dict[str, Any]]) -> None:
    """Commands, one a line. A thread of its own: the input may end while BCC compiles, too."""
    for line in sys.stdin.buffer:
        commands.put(json.loads(line))
    os._exit(3)


def _leave(status: int) -> None:
    try:
        sys.stdout.flush()
    finally:
        os._exit(status)  # all attachments are descriptors


def _say(what: dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()
    except OSError:
        os._exit(3)  # nobody reads


def _essence(log: IO[bytes]) -> str:
    """The compiler's first error, or the last words of whoever complained."""
    log.seek(0, os.SEEK_END)
    size = log.tell()
    log.seek(max(0, size - (1 << 20)))
    lines = [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if " error: " in line]
    return "\n".join(errors[:3] or lines[-3:])[:_TOLD]


def lib() -> Any:
    """BCC's library."""
    from bcc import lib as found  # type: ignore[import-not-found]

    return found


def _code(data: bytes) -> str:
    return base64.b64encode(data).decode("ascii")


class _Programs:
    def __init__(self, plan: dict[str, Any]) -> None:
        from bcc import BPF

        self._plan = plan
        self._attached: list[str] = []
        self._batch: list[str] = []
        self._bytes = 0
        self._lost = 0
        text = f"#define CHILD_TGID {os.getpid()}\n{plan['source']}"
        self._bpf = BPF(text=text.encode(), cflags=["-w"])

    def run(self, commands: queue.Queue[dict[str, Any]]) -> None:
        """The whole life."""
        from bcc import BPF

        for name, rows in self._plan["fill"].items():
            self._put(name, rows, _ANY)
        self._bpf["events"].open_perf_buffer(self._take, page_cnt=self._plan["pages"], lost_cb=self._lose)
        # The verifier takes its time: all are loaded first, so that they come to stand as close together as can be.
        for _, function, required in self._plan["attach"]:
            if required:
                self._bpf.load_func(function.encode(), BPF.RAW_TRACEPOINT)
        for point, function, required in self._plan["attach"]:
            self._attach(point, function, required)
        _say({"hooks": self._attached})
        while True:
            try:
                command = commands.get_nowait()
            except queue.Empty:
                self._bpf.perf_buffer_poll(timeout=_POLL_MS)
                self._tell()
                continue
            if command["do"] == "begin":
                self._begin(command["states"])
            elif command["do"] == "stop":
                self._stop()
                return

    def _table(self, name: str) -> Any:
        """A map as plain bytes; its layout must be the one that the reader knows."""
        key, leaf = self._plan["maps"][name]
        found: list[int] = []
        for size in ("bpf_table_key_size", "bpf_table_leaf_size"):
            ask = getattr(lib(), size)
            ask.argtypes, ask.restype = [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_size_t
            found.append(ask(self._bpf.module, name.encode()))
        if found != [key, leaf]:
            raise RuntimeError(f"map {name} holds {found} bytes, not {[key, leaf]}")
        # two types, even of one size: BCC tells them apart
        return self._bpf.get_table(name, keytype=ctypes.c_ubyte * key, leaftype=ctypes.c_ubyte * leaf)

    def _put(self, name: str, rows: list[tuple[str, str]], flags: int) -> None:
        """Rows into a map; where there is none such yet, with `_NOEXIST`."""
        table = self._table(name)
        for key, value in rows:
            key = table.Key.from_buffer_copy(base64.b64decode(key))
            value = table.Leaf.from_buffer_copy(base64.b64decode(value))
            status = lib().bpf_update_elem(table.map_fd, ctypes.byref(key), ctypes.byref(value), flags)
            if status < 0 and flags == _ANY:
                raise RuntimeError(f"map {name} takes no more")

    def _attach(self, point: str, function: str, required: bool) -> None:
        try:
            self._bpf.attach_raw_tracepoint(tp=point.encode(), fn_name=function.encode())
        except Exception:
            if required:
                raise
        else:
            self._attached.append(point)

    def _begin(self, states: list[tuple[str, str]]) -> None:
        """The window begins. Who was blocked before the hooks stood is put beside those that were seen since; and what
        we do now ourselves proves the hooks alive."""
        if states:
            self._put("states", states, _NOEXIST)
        begin = time.monotonic_ns()
        value = begin.to_bytes(8, "little").ljust(self._plan["maps"]["live"][1], b"\0")
        self._put("live", [(_code(bytes(4)), _code(value))], _ANY)
        for _ in range(3):
            with open("/proc/self/stat", "rb") as file:
                os.read(file.fileno(), 1)
            time.sleep(0.002)
        for path in (__file__, os.__file__, json.__file__):  # a page comes into the cache, where it may be given back
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                os.pread(file.fileno(), 1, 0)
        _say({"begun": begin})

    def _take(self, cpu: int, data: int, size: int) -> None:
        self._batch.append(_code(ctypes.string_at(data, size)))
        self._bytes += size
        if self._bytes >= _BATCH:
            self._tell()

    def _lose(self, number: int) -> None:
        self._lost += number

    def _tell(self) -> None:
        if self._batch:
            _say({"records": self._batch})
            self._batch, self._bytes = [], 0

    def _stop(self) -> None:
        for point in self._attached:
            self._bpf.detach_raw_tracepoint(tp=point.encode())
        end = time.monotonic_ns()
        if "states" in self._plan["read"]:
            self._look_at_threads()
        for _ in range(4):  # a poll reads all of a buffer that has something
            self._bpf.perf_buffer_poll(timeout=0)
        self._tell()
        for name in self._plan["read"]:
            self._dump(name)
        _say({"end": end, "lost": self._lost})

    def _look_at_threads(self) -> None:
        """Of each thread that a program remembers: how often it had a CPU by now, its system call, and how long it ran
        in all. At once: what is open now may be over soon."""
        found: list[tuple[int, int, str, int]] = []
        for key in self._keys(self._table("states")):
            tid = int.from_bytes(key, "little")
            try:
                with open(f"/proc/{tid}/schedstat") as file:
                    ran, _, runs = (int(word) for word in file.read().split())
                with open(f"/proc/{tid}/syscall") as file:
                    call = file.read().strip()
            except (OSError, ValueError):
                continue  # it is gone, or may not be looked at
            found.append((tid, runs, call, ran))
            if len(found) == _ROWS:
                _say({"threads": found})
                found = []
        _say({"threads": found})

    def _dump(self, name: str) -> None:
        table = self._table(name)
        value = table.Leaf()  # of a map per CPU: all CPUs'
        rows: list[tuple[str, str]] = []
        for key in self._keys(table):
            wanted = table.Key.from_buffer_copy(key)
            if lib().bpf_lookup_elem(table.map_fd, ctypes.byref(wanted), ctypes.byref(value)) < 0:
                continue  # gone since
            rows.append((_code(key), _code(bytes(value))))
            if len(rows) == _ROWS:
                _say({"map": name, "rows": rows})
                rows = []
        _say({"map": name, "rows": rows})

    @staticmethod
    def _keys(table: Any) -> Iterator[bytes]:
        """Every key of a map, once; the programs are gone by now, so that nothing is added."""
        key, following = table.Key(), table.Key()
        status = lib().bpf_get_first_key(table.map_fd, ctypes.byref(key), ctypes.sizeof(key))
        for _ in range(_MAX_KEYS):
            if status < 0:
                return
            yield bytes(key)
            status = lib().bpf_get_next_key(table.map_fd, ctypes.byref(key), ctypes.byref(following))
            key, following = following, key


if __name__ == "__main__":
    main()
