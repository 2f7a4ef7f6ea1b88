"""One capture in a tracefs instance of our own: set up, start, take events out, halt, remove. Standard library only."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Collection

from whystall.tools.collect.ftrace.cpus import chosen_cpus, mask_of, online_cpus
from whystall.tools.collect.ftrace.events import choose
from whystall.tools.collect.ftrace.instance import Instance, reap
from whystall.tools.collect.ftrace.options import DEFAULT_BUFFER_KB, CpuLoss, RecordOptions
from whystall.tools.collect.ftrace.pids import Followed, followed, in_initial_namespace, lives, threads_of
from whystall.tools.collect.ftrace.tracefs import Tracefs, denied, find
from whystall.tools.contract.errors import ErrorCode, ToolError
from whystall.tools.timeline import clocks

HEAD_MARK, LOST_MARK, END_MARK = "# whystall: ", "# whystall-lost: ", "# whystall-end: "
"""Begin the comment lines, each with JSON, that say what was recorded, what was lost, and how it ended."""
# The text we promise, whatever the host's own trace options are: a new instance inherits those.
_OPTIONS = {
    "overwrite": True,
    "context-info": True,
    "irq-info": True,
    "record-tgid": True,
    "raw": False,
    "hex": False,
    "bin": False,
    "fields": False,
    "verbose": False,
    "latency-format": False,
    "stacktrace": False,
    "userstacktrace": False,
}
_PROMISED = ("irq-info", "record-tgid")
_READ = 1 << 16  # the kernel gives at most some pages of text at a time
_PIECE = 1 << 11
_GATHER = 1 << 18
_SHARE = 16  # of the memory available, for all buffers together
_SETTLE = 16  # rounds of listing threads until no new one is found
_LEAST_KB, _MOST_KB = 64, 64 << 20


class Session:
    """A capture. `open` sets everything up, `start` and `halt` bound what is recorded, `drain` takes the text out,
    `close` removes the instance (also a context manager). `ToolError` says what went wrong; nothing is left then.
    """

    def __init__(self, options: RecordOptions, *, streaming: bool = False, also: Collection[int] = ()) -> None:
        """`streaming`: this thread drains while it records; its system calls are then left out. `also`: threads to let
        through a PID filter besides (the recorder's own, to prove it alive).
        """
        self.options = options
        self.cpus: tuple[int, ...] = ()
        self.events: tuple[str, ...] = ()
        self.missing: tuple[str, ...] = ()
        self.reaped: list[str] = []
        self.recorded_ns = (0, 0)
        self._streaming = streaming
        self._also = tuple(also)
        self._target = Followed()
        self.buffer_kb = 0
        self._columns = ""
        self._tgid = False
        self._tracefs: Tracefs | None = None
        self._instance: Instance | None = None
        self._first: clocks.ClockPoint | None = None
        self._last: clocks.ClockPoint | None = None

    def __enter__(self) -> Session:
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> None:
        """Check the options against this host, remove orphans, and set up an instance that does not record yet."""
        options = self.options
        self.cpus = chosen_cpus(options.cpus)
        self._target = followed(options)
        self._tracefs = find()
        known = self._tracefs.clocks()
        if options.clock not in known:
            message = f"this kernel has no trace clock {options.clock!r}"
            raise ToolError(ErrorCode.BAD_ARGUMENT, message, f"valid: {', '.join(known)}")
        chosen = choose(options.groups, self._tracefs.has_event)
        self.buffer_kb = _buffer_kb(options.buffer_kb, len(self.cpus))
        self.reaped = reap(self._tracefs)
        self._instance = instance = Instance.make(self._tracefs)
        for name, wanted in _OPTIONS.items():
            if not instance.option(name, wanted) and name in _PROMISED:
                self.missing += (f"options/{name}",)
        self._tgid = "options/record-tgid" not in self.missing
        instance.write("trace_clock", options.clock)
        self._resize(instance)
        if options.pids:
            self._follow(instance)
        for event, only in chosen.events.items():
            if self._streaming and "sys_" in event:  # each read of the events would be an event to read
                only = f"common_pid != {threading.get_native_id()}" + (f" && ({only})" if only else "")
            if only:
                instance.write(f"events/{event}/filter", only)
            instance.write(f"events/{event}/enable", "1")
        self.events = tuple(chosen.events)
        self.missing += chosen.missing
        # what the columns are called, as this kernel says; how many events there are is not known yet
        lines = instance.read("trace").splitlines()
        self._columns = "".join(f"{line}\n" for line in lines if line.startswith("#") and "entries" not in line)

    @property
    def instance_name(self) -> str:
        """The instance's name."""
        return self._own.name

    @property
    def threads(self) -> tuple[int, ...]:
        """Threads followed from the start; empty: everything is recorded."""
        return self._target.threads

    @property
    def mounted(self) -> str:
        """What was done to reach the kernel's files, in words; empty where they were there."""
        private = self._tracefs is not None and self._tracefs.private
        return "tracefs was not mounted: mounted for this process alone" if private else ""

    def start(self) -> None:
        """Record from now on."""
        self._first = clocks.now()
        self._own.write("tracing_on", "1")

    def recording(self) -> bool:
        """Whether it records now, whoever started it."""
        return self._own.read("tracing_on").strip() == "1"

    def halt(self) -> None:
        """Record no more; idempotent."""
        if self._last is None:
            self._own.write("tracing_on", "0")
            self._last = clocks.now()
            self.recorded_ns = (self._first.mono if self._first else self._last.mono, self._last.mono)

    def drain(self, take: Callable[[bytes], bool], budget_s: float = float("inf")) -> bool:
        """Hand the text of the events that wait to `take`, in whole lines, until it says False: it wants no more.

        False when it did, or `budget_s` ended, before the events did. The events are merged over all CPUs, oldest
        first; where some were lost the kernel says so in a line of its own.
        """
        pipe, deadline = self._own.pipe(), time.monotonic() + budget_s
        # while it records, what comes in little pieces has just happened, our own doing among it, and can wait
        enough = 1 if self._last is not None else _PIECE
        gathered: list[bytes] = []
        size = 0
        while True:
            try:
                text = os.read(pipe, _READ)
            except BlockingIOError:
                text = b""
            except OSError as error:
                raise denied(error, "read the events") from None
            done, late = len(text) < enough, time.monotonic() > deadline
            gathered.append(text)
            size += len(text)
            if size > _GATHER or (size and (done or late)):
                if not take(b"".join(gathered)):
                    return False
                gathered, size = [], 0
            if done or late:
                return done

    def losses(self) -> tuple[CpuLoss, ...]:
        """Per CPU, what is not in the text: after `halt` also what was never taken out."""
        found = []
        for cpu in self.cpus:
            count = self._stats(cpu)
            unread = count("entries") if self._last is not None else 0
            found.append(CpuLoss(cpu, count("overrun"), count("dropped events") + count("commit overrun") + unread))
        return tuple(found)

    def taken(self) -> int:
        """Events taken out so far."""
        return sum(self._stats(cpu)("read events") for cpu in self.cpus)

    def alive(self) -> bool:
        """Whether any of those to follow lives; True when everything is recorded."""
        watched = {*self._target.asked, *self._target.processes}
        return not watched or any(lives(pid) for pid in watched)

    def head(self, part: int = 1) -> bytes:
        """The first lines of a file: the columns, what was recorded, and the clocks when that began."""
        about: dict[str, object] = {
            "version": 1,
            "clock": self.options.clock,
            "cpus": list(self.cpus),
            "groups": sorted({*self.options.groups, "sched"}),
            "events": list(self.events),
            "missing": list(self.missing),
            "buffer_kb": self.buffer_kb,
            "part": part,
            "kernel": os.uname().release,
            "machine": os.uname().machine,
        }
        if self.options.pids:
            about["pids"] = list(self._target.asked)
        if self._target.inside:
            about["in_namespace"] = {str(host): inside for host, inside in self._target.inside.items()}
        point = self._first or clocks.now()
        return f"{self._columns}{HEAD_MARK}{_json(about)}\n{point.line()}\n".encode()

    def foot(self, stopped_by: str = "") -> bytes:
        """The last lines of a file: the losses so far, the clocks when it ended, and why it did."""
        lines = [LOST_MARK + _json(vars(loss)) for loss in self.losses()]
        lines.append((self._last or clocks.now()).line())
        if stopped_by:
            lines.append(END_MARK + _json({"stopped_by": stopped_by}))
        return "".join(f"{line}\n" for line in lines).encode()

    def notes(self) -> list[tuple[str, str]]:
        """(blind spot code, detail) for what this capture cannot show, whatever happens."""
        notes = [("event_absent", name) for name in self.missing if not name.startswith("options/")]
        if not self._tgid:
            notes.append(("no_process_of_thread", ""))
        if self.options.pids:
            notes.append(("target_only", ""))
        if not in_initial_namespace():
            notes.append(("host_pids", ""))
        return notes

    def close(self) -> None:
        """Stop recording and remove the instance; idempotent."""
        instance, self._instance = self._instance, None
        tracefs, self._tracefs = self._tracefs, None
        try:
            if instance is not None:
                instance.remove()
        finally:
            if tracefs is not None:
                tracefs.close()

    @property
    def _own(self) -> Instance:
        if self._instance is None:
            raise ValueError("the capture is not open")
        return self._instance

    def _resize(self, instance: Instance) -> None:
        """Buffers for the chosen CPUs only."""
        if len(self.cpus) == len(online_cpus()):
            instance.write("buffer_size_kb", str(self.buffer_kb))
            return
        instance.write("buffer_size_kb", str(_LEAST_KB))
        for cpu in self.cpus:
            instance.write(f"per_cpu/cpu{cpu}/buffer_size_kb", str(self.buffer_kb))
        instance.write("tracing_cpumask", mask_of(self.cpus))

    def _follow(self, instance: Instance) -> None:
        """Let events of the target through and of whatever it starts, from before all its threads are listed."""
        if not instance.option("event-fork", True):
            self.missing += ("options/event-fork",)
        known: set[int] = set()
        new = {*self._target.threads, *self._also}
        for _ in range(_SETTLE):
            instance.write("set_event_pid", " ".join(map(str, sorted(new))) + "\n")
            known |= new
            new = set(threads_of(self._target.processes)) - known
            if not new:
                break

    def _stats(self, cpu: int) -> Callable[[str], int]:
        values = {}
        for line in self._own.read(f"per_cpu/cpu{cpu}/stats").splitlines():
            name, _, value = line.partition(":")
            values[name.strip()] = value.strip()
        return lambda name: int(values[name]) if values.get(name, "").isdigit() else 0


def _buffer_kb(asked: int, cpus: int) -> int:
    if asked and not _LEAST_KB <= asked <= _MOST_KB:
        raise ToolError(
            ErrorCode.BAD_ARGUMENT,
            f"a buffer of {asked} KiB is out of bounds",
            f"give {_LEAST_KB} to {_MOST_KB} KiB per CPU",
        )
    free = _available_kb()
    if asked * cpus > free // 2:
        raise ToolError(
            ErrorCode.BAD_ARGUMENT,
            f"{cpus} buffers of {asked} KiB are more than half of the memory available ({free} KiB)",
            "ask for smaller buffers or fewer CPUs",
        )
    return asked or max(min(DEFAULT_BUFFER_KB, free // _SHARE // cpus), _LEAST_KB)


def _available_kb() -> int:
    with open("/proc/meminfo", "rb") as file:
        for line in file:
            if line.startswith(b"MemAvailable:"):
                return int(line.split()[1])
    return 1 << 20


def _json(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))
