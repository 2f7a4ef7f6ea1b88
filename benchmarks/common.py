"""Interleaved rounds, medians with quartiles, and the report's tables."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import kernel

ROOT = Path(__file__).resolve().parent.parent
SOURCES = Path(__file__).resolve().parent / "src"
PYTHON = sys.executable
_PATIENCE_S = 20.0  # how long to wait until BPF programs of others are detached
_RETRIES = 3


@dataclass(frozen=True)
class Row:
    """One line of the report; texts carry their units. ``met`` None: no goal, or the noise hides the answer."""

    what: str
    ours: str
    peer: str = ""
    ratio: str = ""
    goal: str = ""
    met: bool | None = None


@dataclass
class Report:
    """The results of one benchmark."""

    title: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of a sample."""

    median: float
    low: float
    high: float

    def text(self, unit: str = "", digits: int = 0, scale: float = 1.0, sign: bool = False) -> str:
        """Return ``median unit (low to high)``, multiplied by `scale`; `sign`: with a plus sign."""
        form = f"{'+' if sign else ''}.{digits}f"
        median, low, high = (f"{value * scale:{form}}" for value in (self.median, self.low, self.high))
        return f"{median} {unit}".rstrip() + f" ({low} to {high})"


def spread(values: Iterable[float]) -> Spread:
    """Return median and quartiles; raise ``StatisticsError`` without values."""
    ordered = sorted(values)
    if len(ordered) == 1:
        return Spread(ordered[0], ordered[0], ordered[0])
    low, median, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return Spread(median, low, high)


Metrics = dict[str, float]
# The context runs a tracer and yields its processes.
Condition = Callable[[], AbstractContextManager[Sequence[int]]]


@dataclass
class Samples:
    """Metrics by condition, one per round; ``disturbed``: samples taken while others had BPF programs attached."""

    by_condition: dict[str, list[Metrics]]
    disturbed: int = 0

    def of(self, condition: str, metric: str) -> list[float]:
        """Return one metric of one condition, by round."""
        return [sample[metric] for sample in self.by_condition[condition]]

    def spread(self, condition: str, metric: str) -> Spread:
        """Return median and quartiles of a metric."""
        return spread(self.of(condition, metric))

    def added(self, condition: str, metric: str, base: str) -> Spread:
        """Return how much a condition adds to `base`, compared within each round."""
        pairs = zip(self.of(condition, metric), self.of(base, metric), strict=True)
        return spread(here - there for here, there in pairs)

    def ratio(self, condition: str, metric: str, base: str) -> Spread:
        """Return the ratio to `base`, compared within each round."""
        pairs = zip(self.of(condition, metric), self.of(base, metric), strict=True)
        return spread(here / there for here, there in pairs)

    def notes(self) -> list[str]:
        """Return notes on all samples."""
        return [f"{self.disturbed} samples were taken beside BPF programs of others"] if self.disturbed else []


@contextmanager
def no_tracer() -> Iterator[list[int]]:
    """Run no tracer."""
    yield []


def rotated(names: Iterable[str], rounds: int) -> Iterator[str]:
    """Yield every name once per round, in rotated order, so that drift affects all alike."""
    order = list(names)
    for turn in range(rounds):
        shift = turn % len(order)
        yield from order[shift:] + order[:shift]


def interleave(
    conditions: Mapping[str, Condition], rounds: int, measure: Callable[[str, Sequence[int]], Metrics]
) -> Samples:
    """Measure every condition once per round; repeat a sample beside others' BPF programs, at most three times."""
    samples = Samples({name: [] for name in conditions})
    for name in rotated(conditions, rounds):
        for attempt in range(_RETRIES + 1):
            wait_until(lambda: not kernel.foreign_links(()), _PATIENCE_S)
            with conditions[name]() as tracers:
                before = kernel.foreign_links(tracers)
                metrics = measure(name, tracers)
                disturbed = bool(before or kernel.foreign_links(tracers))
            if not disturbed:
                break
            samples.disturbed += attempt == _RETRIES
        samples.by_condition[name].append(metrics)
    return samples


def wait_until(true: Callable[[], object], patience_s: float, step_s: float = 0.01) -> bool:
    """Wait for `true`; return False after `patience_s`."""
    deadline = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(step_s)
    return True


def cpu_ns(pids: Iterable[int]) -> int:
    """Return the CPU time of all running threads of some processes, ns; ended ones count 0."""
    total = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(path.read_text().split()[0])
            except OSError:
                continue  # the thread ended
    return total


def child_command(command: Sequence[str]) -> list[str]:
    """Return the command for a child that is killed when this process ends, in whatever way."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *command]


def compiled(source: str, directory: Path, *flags: str) -> Path:
    """Compile a C program of `SOURCES` into `directory`; return the program."""
    program = directory / Path(source).stem
    subprocess.run(["cc", *flags, "-Wall", "-o", str(program), str(SOURCES / source)], check=True)
    return program


class Workload:
    """A compiled C workload that executes commands line by line (see its source)."""

    def __init__(self, source: str, *arguments: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="whystall-bench-")
        flags = ("-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls")
        program = compiled(source, Path(self._directory.name), *flags)
        self._process = subprocess.Popen(
            child_command([str(program), *arguments]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def begin(self, command: str) -> None:
        """Send a command; ``end`` reads the result."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def end(self) -> tuple[float, float]:
        """Return (CPU ns, wall ns) per call of the command begun."""
        assert self._process.stdout is not None
        calls, cpu, wall = (int(word) for word in self._process.stdout.readline().split())
        return cpu / calls, wall / calls

    def run(self, command: str) -> tuple[float, float]:
        """Send a command and return its result, as ``end`` does."""
        self.begin(command)
        return self.end()

    def __enter__(self) -> Workload:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.kill()
        self._process.communicate()
        self._directory.cleanup()


def first_line(command: Sequence[str]) -> str:
    """Return the first line that a program prints about its version; "missing" if it is not installed."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30)
    except OSError:
        return "missing"
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if lines and not done.returncode else "does not start"


def machine() -> list[str]:
    """Return lines about the machine and the programs compared."""
    from whystall.bpf import libbpf

    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith(("model name", "CPU implementer")):
            model = line.partition(":")[2].strip()
            break
    memory = int(Path("/proc/meminfo").read_text().split()[1]) / 2**20
    return [
        f"Linux {platform.release()} {platform.machine()}, {os.cpu_count()} CPUs ({model}), {memory:.0f} GiB",
        f"Python {platform.python_version()}, libbpf {libbpf.version()}",
        f"peers: {first_line(['strace', '-V'])}; {first_line(['perf', '--version'])}; "
        f"libbpf-tools {first_line(['offcputime', '--version'])}; "
        f"BCC {first_line(['/usr/bin/python3', '-c', 'import bcc; print(bcc.__version__)'])}",
    ]


def table(rows: Sequence[Row]) -> list[str]:
    """Return rows as a Markdown table."""
    verdict = {True: "yes", False: "**no**", None: "unclear"}
    lines = ["| what | ours | peer | ratio | goal | met |", "|---|---|---|---|---|---|"]
    for row in rows:
        cells = (row.what, row.ours, row.peer, row.ratio, row.goal, verdict[row.met] if row.goal else "")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


def publish(report: Report, out: Path | None) -> int:
    """Print `report`, and replace its section in the file `out` if given; return 1 if it missed a goal, else 0."""
    print("\n".join([*table(report.rows), *report.notes]), flush=True)
    if out:
        replace_section(report, out)
    return 0 if all(row.met is not False for row in report.rows) else 1


def replace_section(report: Report, path: Path) -> None:
    """Replace the section of `report` in the file at `path`, or add it."""
    lines = path.read_text().splitlines() if path.exists() else ["# Measurements", ""]
    head = f"## {report.title}"
    section = [head, "", *table(report.rows), "", *(f"* {note}" for note in [*machine(), *report.notes]), ""]
    if head in lines:
        start = lines.index(head)
        end = next((at for at in range(start + 1, len(lines)) if lines[at].startswith("## ")), len(lines))
        lines[start:end] = section
    else:
        lines += ["", *section]
    path.write_text("\n".join(lines).rstrip() + "\n")
