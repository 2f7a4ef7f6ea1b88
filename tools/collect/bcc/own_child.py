"""The child that runs our own BCC programs, in the system's Python, where its module ``bcc`` is installed.

It imports nothing of ours, and runs on Python 3.7 and later. It reads lines of JSON: the plan (`own_source.plan`), then
``{"do": "start", "states": [...]}``, then ``{"do": "stop"}``. It writes lines of JSON: ``hooks`` once all is attached,
``started``, ``records`` as they come, after ``stop`` the contents of maps and ``end``; or ``error`` before it exits.
It exits at once when its input ends, since its parent is then gone.
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
_ROWS = 256  # entries of a map in a line
_ERROR = 1500  # characters of an error
_POLL_MS = 50
_MAX_KEYS = 1 << 17  # more than any map holds
_ANY, _NOEXIST = 0, 1  # include/uapi/linux/bpf.h


def main() -> None:
    """Run until ``stop`` or the end of the input."""
    resource.setrlimit(resource.RLIMIT_DATA, (_MOST_DATA, _MOST_DATA))
    plan = json.loads(sys.stdin.buffer.readline())
    # BCC and the compiler write to descriptor 2; only the errors are passed on
    with tempfile.TemporaryFile() as log:
        os.dup2(log.fileno(), 2)
        commands: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=_read_commands, args=(commands,), daemon=True).start()
        try:
            _Programs(plan).run(commands)
        except Exception as error:
            _send({"error": str(error)[:_ERROR], "log": _errors(log)})
            _leave(1)
        _leave(0)


def _read_commands(commands: queue.Queue[dict[str, Any]]) -> None:
    """Queue the commands, one per line. In its own thread, since the input may end while BCC compiles."""
    for line in sys.stdin.buffer:
        commands.put(json.loads(line))
    os._exit(3)


def _leave(status: int) -> None:
    try:
        sys.stdout.flush()
    finally:
        os._exit(status)  # all attachments are descriptors


def _send(message: dict[str, Any]) -> None:
    try:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()
    except OSError:
        os._exit(3)  # the parent is gone


def _errors(log: IO[bytes]) -> str:
    """Return the compiler's first errors, else the last lines of `log`."""
    log.seek(0, os.SEEK_END)
    size = log.tell()
    log.seek(max(0, size - (1 << 20)))
    lines = [line for line in log.read().decode("utf-8", "replace").splitlines() if line.strip()]
    errors = [line for line in lines if " error: " in line]
    return "\n".join(errors[:3] or lines[-3:])[:_ERROR]


def lib() -> Any:
    """Return BCC's library."""
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
        """Attach, then obey `commands` until ``stop``."""
        from bcc import BPF

        for name, rows in self._plan["fill"].items():
            self._put(name, rows, _ANY)
        self._bpf["events"].open_perf_buffer(self._add, page_cnt=self._plan["pages"], lost_cb=self._add_lost)
        # The verifier is slow: load all programs first, so that they are attached at almost the same time.
        for _, function, required in self._plan["attach"]:
            if required:
                self._bpf.load_func(function.encode(), BPF.RAW_TRACEPOINT)
        for point, function, required in self._plan["attach"]:
            self._attach(point, function, required)
        _send({"hooks": self._attached})
        while True:
            try:
                command = commands.get_nowait()
            except queue.Empty:
                self._bpf.perf_buffer_poll(timeout=_POLL_MS)
                self._flush()
                continue
            if command["do"] == "start":
                self._start(command["states"])
            elif command["do"] == "stop":
                self._stop()
                return

    def _table(self, name: str) -> Any:
        """Return a map as plain bytes; raise unless its sizes are those of the plan."""
        key, leaf = self._plan["maps"][name]
        found: list[int] = []
        for size in ("bpf_table_key_size", "bpf_table_leaf_size"):
            size_of = getattr(lib(), size)
            size_of.argtypes, size_of.restype = [ctypes.c_void_p, ctypes.c_char_p], ctypes.c_size_t
            found.append(size_of(self._bpf.module, name.encode()))
        if found != [key, leaf]:
            raise RuntimeError(f"map {name} holds {found} bytes, not {[key, leaf]}")
        # two types even if their sizes are equal: BCC distinguishes them
        return self._bpf.get_table(name, keytype=ctypes.c_ubyte * key, leaftype=ctypes.c_ubyte * leaf)

    def _put(self, name: str, rows: list[tuple[str, str]], flags: int) -> None:
        """Write rows into a map; with `_NOEXIST` existing keys stay."""
        table = self._table(name)
        for key, value in rows:
            key = table.Key.from_buffer_copy(base64.b64decode(key))
            value = table.Leaf.from_buffer_copy(base64.b64decode(value))
            status = lib().bpf_update_elem(table.map_fd, ctypes.byref(key), ctypes.byref(value), flags)
            if status < 0 and flags == _ANY:
                raise RuntimeError(f"map {name} is full")

    def _attach(self, point: str, function: str, required: bool) -> None:
        try:
            self._bpf.attach_raw_tracepoint(tp=point.encode(), fn_name=function.encode())
        except Exception:
            if required:
                raise
        else:
            self._attached.append(point)

    def _start(self, states: list[tuple[str, str]]) -> None:
        """Begin to count. `states`: threads that blocked before the hooks were attached; those observed since stay.

        Causes a few events, which prove that the hooks work.
        """
        if states:
            self._put("states", states, _NOEXIST)
        start = time.monotonic_ns()
        value = start.to_bytes(8, "little").ljust(self._plan["maps"]["live"][1], b"\0")
        self._put("live", [(_code(bytes(4)), _code(value))], _ANY)
        for _ in range(3):
            with open("/proc/self/stat", "rb") as file:
                os.read(file.fileno(), 1)
            time.sleep(0.002)
        for path in (__file__, os.__file__, json.__file__):  # drops a cached page if allowed, and reads it again
            with open(path, "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
                os.pread(file.fileno(), 1, 0)
        _send({"started": start})

    def _add(self, cpu: int, data: int, size: int) -> None:
        self._batch.append(_code(ctypes.string_at(data, size)))
        self._bytes += size
        if self._bytes >= _BATCH:
            self._flush()

    def _add_lost(self, number: int) -> None:
        self._lost += number

    def _flush(self) -> None:
        if self._batch:
            _send({"records": self._batch})
            self._batch, self._bytes = [], 0

    def _stop(self) -> None:
        for point in self._attached:
            self._bpf.detach_raw_tracepoint(tp=point.encode())
        end = time.monotonic_ns()
        if "states" in self._plan["read"]:
            self._read_threads()
        for _ in range(4):  # a poll reads a buffer to its end
            self._bpf.perf_buffer_poll(timeout=0)
        self._flush()
        for name in self._plan["read"]:
            self._dump(name)
        _send({"end": end, "lost": self._lost})

    def _read_threads(self) -> None:
        """Send, of each thread in the map ``states``, how often it was given a CPU, its system call and its CPU time.

        Called before anything else: a wait that is open now may end soon.
        """
        found: list[tuple[int, int, str, int]] = []
        for key in self._keys(self._table("states")):
            tid = int.from_bytes(key, "little")
            try:
                with open(f"/proc/{tid}/schedstat") as file:
                    ran, _, runs = (int(word) for word in file.read().split())
                with open(f"/proc/{tid}/syscall") as file:
                    call = file.read().strip()
            except (OSError, ValueError):
                continue  # it exited, or access is denied
            found.append((tid, runs, call, ran))
            if len(found) == _ROWS:
                _send({"threads": found})
                found = []
        _send({"threads": found})

    def _dump(self, name: str) -> None:
        table = self._table(name)
        value = table.Leaf()  # of a per-CPU map: the values of all CPUs
        rows: list[tuple[str, str]] = []
        for key in self._keys(table):
            wanted = table.Key.from_buffer_copy(key)
            if lib().bpf_lookup_elem(table.map_fd, ctypes.byref(wanted), ctypes.byref(value)) < 0:
                continue  # deleted meanwhile
            rows.append((_code(key), _code(bytes(value))))
            if len(rows) == _ROWS:
                _send({"map": name, "rows": rows})
                rows = []
        _send({"map": name, "rows": rows})

    @staticmethod
    def _keys(table: Any) -> Iterator[bytes]:
        """Yield every key of a map once; the programs are detached, so that none is added."""
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
