"""One window of kernel-side tracing: open, poll, finish, close.

``open`` attaches everything or nothing. It is ``load``, which takes long (the kernel verifies; hooks are attached one
by one, and count nothing yet), and ``begin``, which opens the gate of all at one instant. ``finish`` closes it
(``cease``), detaches and reads. So whoever runs several things at once has them begin and end together. Nothing
outlives the process: all attachments are file descriptors. Not thread-safe: one session belongs to one thread; several
sessions may run at once.
"""

from __future__ import annotations

import contextlib
import ctypes as ct
import os
import resource
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import TracebackType

from whystall.bpf import capture as cap
from whystall.bpf import capture_interrupts, capture_run_queue, page_session, syscalls
from whystall.bpf import layout as lay
from whystall.bpf.build import object_path
from whystall.bpf.errors import BpfError
from whystall.bpf.libbpf import KernelTypes, Link, Map, Object, Program, Ring
from whystall.bpf.perf_events import cpu_clock, online_cpus
from whystall.bpf.python_code import PythonSeen
from whystall.bpf.python_session import Maps, PythonProcesses, every_process
from whystall.bpf.samples import Place, SampleLog

MAX_TARGETS = 1024
_WALK_RING_MAX = 64 << 20
_OTHER_DESCRIPTORS = 512  # what is open beside the timers: hooks and maps take 120, files of processes come later
_STACKS_TOLD = 1 << 16  # while sampling, nearly every stack is new
_MOST_STACKS = 1 << 18  # kept in this process; of 200 bytes each, as a rule
_PYTHON_LOOK_S = 0.5  # between looks for new Python processes among the targets; four times that on a whole host
_CONSTANT_VARIANTS = frozenset(name for name, *_ in lay.Config._fields_)
_BLOCK_HOOKS = ("on_complete", "on_issue", "on_insert")  # in this order none sees half a request


@dataclass(frozen=True)
class SessionConfig:
    """What to look at. Thresholds in nanoseconds; they bound what is told one by one, totals
    always cover everything."""

    targets: frozenset[int] | None
    """Process ids (1 to 1024 of them); None: every process but the tracer, and then only file operations
    among the system calls."""
    self_tgid: int = field(default_factory=os.getpid)
    """The tracer: never reported, unless it is a target; its events are counted to prove the hooks alive."""
    follow: bool = False
    """Also processes that targets start during the window."""
    syscalls: bool = True
    call_min_ns: int = 10_000_000
    switches: bool = True
    switch_min_ns: int = 1_000_000
    user_stacks: bool = False
    wakers: bool = False
    block: bool = False
    block_min_ns: int = 10_000_000
    interrupts: bool = False
    """Time handlers of interrupts and softirqs, of the whole host, and what they take of the targets' threads."""
    run_queue: bool = False
    """Measure waits for a CPU."""
    page_cache: bool = False
    """Follow the page cache, of the whole host whatever the targets: who evicts a target's pages is often another."""
    sample_ns: int = 0
    """Look who has each CPU, and where, every so many nanoseconds; 0: do not."""
    python: bool = False
    """Walk the interpreter's frames too, at samples and at switches away."""
    ring_bytes: int = 1 << 21
    """Power of two, at least a page."""
    max_bytes: int = 32 << 20
    """Memory for records in this process; what comes later is counted as lost (``reader_full``)."""
    variants: Mapping[str, bool] = field(default_factory=dict)
    """Force an older kernel's way (False) for: task_storage, pt_regs_helper, current_btf, loop_helper,
    plain_loads, switch_has_state, atomics, or do without an event of the page cache (``category:name``)."""


@lru_cache(maxsize=1)
def kernel_variants() -> Mapping[str, bool]:
    """Which newer ways the running kernel has. Raises ``BpfError`` ``no_btf`` or ``no_libbpf``."""
    with KernelTypes() as kernel:
        helpers = kernel.enum_names("bpf_func_id")
        switch_arguments = kernel.tracepoint_arguments("sched_switch")
        if switch_arguments < 0:
            raise BpfError("no_btf", "the kernel's type information has no tracepoints", "use a kernel from 5.8 on")
        current_btf = "BPF_FUNC_get_current_task_btf" in helpers
        return {
            "task_storage": "BPF_MAP_TYPE_TASK_STORAGE" in kernel.enum_names("bpf_map_type") and current_btf,
            "pt_regs_helper": "BPF_FUNC_task_pt_regs" in helpers,
            "current_btf": current_btf,
            "loop_helper": "BPF_FUNC_loop" in helpers,
            "plain_loads": kernel.has_function("bpf_rdonly_cast") and current_btf,
            "switch_has_state": switch_arguments >= 4,
            "block_one_arg": kernel.tracepoint_arguments("block_rq_insert") == 1,
            "block_merge_hook": kernel.tracepoint_arguments("block_rq_merge") > 0,
            "fault_hook": kernel.tracepoint_arguments("mm_filemap_fault") == 2 and current_btf,
        }


class Session:
    """See the module. Use as a context manager, or call ``close``."""

    def __init__(self, config: SessionConfig) -> None:
        self.config = config
        self.hooks: tuple[str, ...] = ()
        self.variants: dict[str, bool] = {}
        self._pages: page_session.KernelPages | None = None
        self._object: Object | None = None
        self._ring: Ring | None = None
        self._links: list[Link] = []
        self._programs: list[Program] = []
        self._live = lay.Live()
        self._targets: Map | None = None
        self._records: list[bytes] = []
        self._samples = SampleLog()
        self._stacks: dict[int, cap.Stack] = {}
        self._stacks_full = 0
        self._arrived: list[Place] = []
        self._timers = 0
        self._python: PythonProcesses | None = None
        self._python_looked = 0.0
        self._bytes = 0
        self._dropped = 0
        self._missed = 0

    def __enter__(self) -> Session:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open(self) -> None:
        """Load, attach and look from now on. Raises ``BpfError``; then nothing is attached."""
        self.load()
        self.begin()

    def load(self) -> None:
        """Attach all, as one unit; nothing counts before ``begin``. Raises ``BpfError``; then nothing is left."""
        targets = self.config.targets
        if targets is not None and not 1 <= len(targets) <= MAX_TARGETS:
            raise BpfError("bad_config", f"{len(targets)} targets", f"give 1 to {MAX_TARGETS}, or none for everyone")
        try:
            made = self._load()
            if self.config.python:
                self._find_python(made)
            self._attach(made)
        except BaseException:
            self.close()
            raise

    def begin(self) -> int:
        """Look from now on: returned is the instant, by the monotonic clock. Raises ``BpfError``; then nothing is
        attached."""
        made = self._object
        if made is None:
            raise BpfError("read_failed", "the session is not loaded", "load it first")
        try:
            self._missed = -self._misses()
            start = self._live.window_start = time.monotonic_ns()
            if self._walks:
                made.program("walk").run_iterator()
            if self.config.run_queue:
                made.program(capture_run_queue.WALK).run_iterator()
        except BaseException:
            self.close()
            raise
        return start

    def _load(self) -> Object:
        forced = self.config.variants
        self.variants = {name: here and forced.get(name, True) for name, here in kernel_variants().items()}
        self._pages = page_session.kernel_pages(forced) if self.config.page_cache else None
        path = object_path(os.uname().machine, "host" if self.variants["plain_loads"] else "host_old")
        try:
            data = path.read_bytes()
        except OSError as error:
            raise BpfError("object_missing", f"{path.name} is missing", "build it: make build") from error
        made = self._object = Object(data, path.name)
        self._choose(made)
        made.map(".rodata.config").set_initial(bytes(self._constants()))
        made.map(".rodata.rows").set_initial(syscalls.rows_image())
        made.map("ring").set_max_entries(max(self.config.ring_bytes, self._ring_for_walk()))
        made.load()
        self._live = lay.Live.from_buffer(made.map(".data.live").memory())
        self._targets = made.map("targets")
        for tgid in sorted(self.config.targets or ())[1:]:
            self.add_target(tgid)
        self._ring = Ring(made.map("ring"), self._take)
        return made

    def _find_python(self, made: Object) -> None:
        maps = Maps(made.map("python_processes"), made.map("python_seeds"), made.map("codes_told"))
        self._python = PythonProcesses(maps, named_only=self.config.targets is None)
        self._look_for_python()
        self._python.seed()
        self._stacks |= self._python.stacks

    def _look_for_python(self) -> None:
        """Processes start and execute other programs while the window runs."""
        targets = self.config.targets
        if self._python is None or self._targets is None:
            return
        self._python_looked = time.monotonic()
        if targets is None:
            self._python.look(every_process())
        else:
            followed = (int.from_bytes(key, "little") for key, _ in self._targets.items())
            self._python.look(targets.union(followed))

    def _ring_for_walk(self) -> int:
        """Ring that holds what the last walk tells at once: an open segment of every thread there is."""
        if self.config.targets is not None or not self._walks:
            return 0
        threads = int(Path("/proc/loadavg").read_text().split()[3].split("/")[1])
        return min(_WALK_RING_MAX, 1 << (2 * threads * ct.sizeof(lay.SegmentRecord)).bit_length())

    @property
    def _walks(self) -> bool:
        return self.config.syscalls or self.config.switches

    def _wanted(self) -> list[str]:
        """Programs, in the order they attach."""
        config = self.config
        names = ["on_exit", "on_enter"] if config.syscalls else []
        if self._walks:
            names.append("on_switch")
        if not self.variants["task_storage"] and (self._walks or self._pages is not None):
            names.append("on_thread_exit")
        if config.switches and self.variants["fault_hook"]:
            names.append("on_fault")
        if config.wakers and config.switches:
            names.append("on_waking")
        if config.follow and config.targets:
            names.append("on_fork")
        if config.sample_ns:
            names.append("on_tick")
        if config.block:
            names.extend(_BLOCK_HOOKS)
            if self.variants["block_merge_hook"]:
                names.append("on_merge")
        if config.interrupts:
            names.extend(capture_interrupts.PROGRAMS)
        if config.run_queue:
            names.extend(capture_run_queue.PROGRAMS)
        if self._pages is not None:
            names.extend(self._pages.programs())
        return names

    def _iterators(self) -> list[str]:
        """Programs that look at every thread at the end (and ``walk`` at the start)."""
        walks = ["walk"] * self._walks + ["walk_stalls"] * (self._pages is not None)
        return walks + [capture_run_queue.WALK] * self.config.run_queue

    def _choose(self, made: Object) -> None:
        wanted = {*self._wanted(), *self._iterators()}
        for name in made.program_names():
            made.program(name).set_autoload(name in wanted)
        made.map("state_storage").set_autocreate(self.variants["task_storage"])
        if not self.config.interrupts:
            capture_interrupts.leave_out(made)
        if not self.config.run_queue:
            capture_run_queue.leave_out(made)
        if self._pages is None:
            page_session.leave_out(made)
        elif self.variants["task_storage"]:
            made.map("page_hash").set_max_entries(1)
        else:
            made.map("page_storage").set_autocreate(False)
        # an unused map still exists, since programs name it, but costs nothing
        unused = {"state_hash"} if self.variants["task_storage"] else set()
        unused |= {"call_totals", "file_slots"} if not self.config.syscalls else set()
        unused |= {"off_totals"} if not self.config.switches else set()
        unused |= {"requests", "block_slots", "block_totals"} if not self.config.block else set()
        unused |= {"stacks_told"} if not self._walks else set()
        if not self.config.python:
            unused |= {"python_processes", "python_threads", "python_seeds", "codes_told", "python_buffers"}
        for name in unused:
            made.map(name).set_max_entries(1)
        if self.config.sample_ns:
            made.map("stacks_told").set_max_entries(_STACKS_TOLD)

    def _constants(self) -> lay.Config:
        config = self.config
        targets = sorted(config.targets or ())
        own = 0 if config.self_tgid in targets else config.self_tgid
        return lay.Config(
            call_min_ns=config.call_min_ns,
            switch_min_ns=config.switch_min_ns,
            block_min_ns=config.block_min_ns,
            wakeup_bytes=config.ring_bytes // 4,
            target=targets[0] if targets else 0,
            self_tgid=own,
            thread_size=16384 if os.uname().machine == "x86_64" else max(16384, resource.getpagesize()),
            follow=config.follow and bool(targets),
            syscalls=config.syscalls,
            switches=config.switches,
            user_stacks=config.user_stacks,
            wakers=config.wakers,
            samples=config.sample_ns > 0,
            python=config.python,
            **(page_session.constants(self._pages, bool(targets)) if self._pages is not None else {}),
            **{name: value for name, value in self.variants.items() if name in _CONSTANT_VARIANTS},
        )

    def _attach(self, made: Object) -> None:
        for name in self._wanted():
            program = made.program(name)
            if name == "on_tick":
                self._attach_timers(program)
            else:
                self._links.append(program.attach())
            self._programs.append(program)
        self.hooks = tuple(program.name for program in self._programs)

    def _attach_timers(self, program: Program) -> None:
        """Attach to a timer of every CPU; they tick out of step, each since its own start."""
        cpus = online_cpus()
        _room_for(2 * len(cpus) + _OTHER_DESCRIPTORS)
        for cpu in cpus:
            timer = cpu_clock(cpu, self.config.sample_ns)
            if timer is not None:
                self._links.append(program.attach_to_timer(timer))
                self._timers += 1

    def _take(self, record: bytes) -> None:
        if record[0] == lay.RECORD_STACK:
            if len(self._stacks) < _MOST_STACKS:
                number, stack = cap.stack(record)
                self._stacks[number] = stack
            else:
                self._stacks_full += 1
            return
        if record[0] == lay.RECORD_CODE:
            if self._python is not None:
                self._python.take(record)
            return
        if record[0] == lay.RECORD_SAMPLE:
            place = self._samples.add(record)
            if place is not None:
                self._arrived.append(place)
            return
        if self._bytes + len(record) > self.config.max_bytes and record[0] != lay.RECORD_FILE:
            self._dropped += 1
            return
        self._bytes += len(record)
        self._records.append(record)

    def fileno(self) -> int:
        """Readable when the ring buffer fills; call ``poll`` then, and every second or so anyway."""
        if self._ring is None:
            raise BpfError("read_failed", "the session is not open", "open it first")
        return self._ring.fileno()

    def poll(self) -> int:
        """Take the records there are; their number."""
        every = _PYTHON_LOOK_S * (4 if self.config.targets is None else 1)
        if self._python is not None and time.monotonic() - self._python_looked >= every:
            self._look_for_python()
        return self._ring.consume() if self._ring is not None else 0

    def new_places(self) -> list[tuple[Place, cap.Stack | None]]:
        """Where samples were taken for the first time since the last call, each with its user stack: whoever names
        addresses must look at a process while it lives."""
        arrived, self._arrived = self._arrived, []
        return [(place, self._stacks.get(place.ustack)) for place in arrived]

    @property
    def timers(self) -> int:
        """CPUs that are sampled."""
        return self._timers

    @property
    def python_refused(self) -> list[int]:
        """Python processes whose frames cannot be walked, as far as known now."""
        return sorted(self._python.seen.refused) if self._python is not None else []

    def add_target(self, tgid: int) -> None:
        """Look at one more process from now on."""
        if self._targets is None or self.config.targets is None:
            raise BpfError("bad_config", "the session has no targets", "open it with targets")
        self._targets.update(tgid.to_bytes(4, "little"), b"\1")
        self._live.more_targets = 1

    def counters(self) -> dict[str, list[int]]:
        """Every counter (layout.COUNTERS), per CPU, now."""
        if self._object is None:
            return {}
        raw = self._object.map("counters").lookup(bytes(4), per_cpu=True) or b""
        words = memoryview(raw).cast("Q")
        width = len(lay.COUNTERS)
        return {name: [words[i] for i in range(at, len(words), width)] for at, name in enumerate(lay.COUNTERS)}

    def cease(self) -> int:
        """Look no longer, and tell what is still open: what happens from now on is not of this window. Returned is the
        instant. What was seen waits for ``finish``, which also detaches. Raises ``BpfError``."""
        made = self._object
        if made is None:
            raise BpfError("read_failed", "the session is not open", "open it first")
        if self._live.window_end:
            return int(self._live.window_end)
        self.poll()  # room for what the walk tells, before the end: what waits is decoded, which takes a while
        end = self._live.window_end = time.monotonic_ns()
        self._missed += self._misses()
        self._live.walk_stage = 1  # at once: a call that ends until it is met is not told
        for iterator in self._iterators():
            made.program(iterator).run_iterator()
            self.poll()
        return end

    def finish(self) -> cap.Capture:
        """Cease, detach, read everything, close. Raises ``BpfError``."""
        made = self._object
        if made is None:
            raise BpfError("read_failed", "the session is not open", "open it first")
        try:
            end = self.cease()
            self._detach()
            self.poll()
            return self._capture(made, end, self._missed)
        finally:
            self.close()

    def _capture(self, made: Object, end: int, missed: int) -> cap.Capture:
        records = cap.Records(self._records)
        counters = self.counters()
        lost = {name: counters[name] for name in lay.LOSSES if any(counters[name])}
        if self._dropped:
            lost["reader_full"] = [self._dropped]
        if self._stacks_full:
            lost["stacks_full"] = [self._stacks_full]
        if missed:
            lost["recursion"] = [missed]
        seen = {name.removeprefix("seen_"): sum(counters[name]) for name in lay.COUNTERS[len(lay.LOSSES) :]}
        seen["records"] = seen.pop("kept_records")
        totals = cap.call_totals(made.map("call_totals").items())
        off_totals = cap.off_totals(made.map("off_totals").items())
        seen["calls"] = sum(total.count for total in totals) + sum(lost.get("call_totals_full", ()))
        seen["switches"] = sum(total.count for total in off_totals) + sum(lost.get("off_totals_full", ()))
        return cap.Capture(
            window_start=self._live.window_start,
            window_end=end,
            calls=[self._with_open_paths(call, records) for call in records.calls],
            call_totals=totals,
            file_slots=cap.file_slots(made.map("file_slots").items()),
            files=records.files,
            segments=records.segments,
            off_totals=off_totals,
            threads=cap.threads(made.map("threads").items()),
            block_slots=cap.block_slots(made.map("block_slots").items()),
            block_totals=cap.block_totals(made.map("block_totals").items()),
            block_ios=records.block_ios,
            # without the merge hook, what was queued and never issued may just have been merged
            block_open=[
                io
                for io in cap.open_ios(made.map("requests").items(), end)
                if io.issue or self.variants["block_merge_hook"]
            ],
            stacks=self._stacks,
            samples=self._samples.samples(),
            python=self._python.seen if self._python is not None else PythonSeen(),
            pages=page_session.read_pages(made, self._pages) if self._pages is not None else None,
            interrupts=capture_interrupts.read(made) if self.config.interrupts else None,
            run_queue=capture_run_queue.read(made) if self.config.run_queue else None,
            lost=lost,
            seen=seen,
            hooks=self.hooks,
            variants={name: "new" if here else "old" for name, here in self.variants.items()},
        )

    @staticmethod
    def _with_open_paths(call: cap.Call, records: cap.Records) -> cap.Call:
        """An open call's path lies in its caller's memory, which only user space can read."""
        addresses = records.open_paths.get((call.tid, call.start))
        if addresses is None:
            return call
        return call._replace(path=remote_text(call.tid, addresses[0]), path2=remote_text(call.tid, addresses[1]))

    def _misses(self) -> int:
        """How often a program did not run because it ran already, since it is attached."""
        return sum(program.recursion_misses() for program in self._programs)

    def _detach(self) -> None:
        while self._links:
            self._links.pop().close()

    def close(self) -> None:
        """Detach and free everything; harmless to repeat, at any point."""
        self._detach()
        ring, self._ring = self._ring, None
        if ring is not None:
            ring.close()
        self._live = lay.Live()  # the shared one goes with the object
        self._targets = None
        self._programs = []
        made, self._object = self._object, None
        if made is not None:
            made.close()


def _room_for(descriptors: int) -> None:
    """Raise our limit of open files, where it leaves no room for so many and may be raised: of a soft limit of 1024 the
    timers of 512 CPUs take all. A limit that cannot be raised shows where it is reached."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY or soft >= descriptors:
        return
    most = descriptors if hard == resource.RLIM_INFINITY else min(descriptors, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, most), hard))


def remote_text(tid: int, address: int) -> bytes:
    """A NUL-ended text in another thread's memory; empty when it cannot be read."""
    if not address:
        return b""
    text = b""
    with contextlib.suppress(OSError, ValueError, OverflowError), open(f"/proc/{tid}/mem", "rb", buffering=0) as memory:
        memory.seek(address)
        while b"\0" not in text and len(text) < lay.PATH_BYTES:  # page by page: the next may be unmapped
            chunk = memory.read(4096 - (address + len(text)) % 4096)
            if not chunk:
                break
            text += chunk
    return text.split(b"\0", 1)[0]
