"""Interleaved rounds, medians with their spread, and the table."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import kernel

ROOT = Path(__file__).resolve().parent.parent
SOURCES = Path(__file__).resolve().parent / "src"
PYTHON = sys.executable
_PATIENCE_S = 20.0  # wait at most so long for others' programs to go
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
    """What one benchmark found."""

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
        """``median unit (low to high)``, each multiplied by `scale`; `sign` shows a plus too."""
        form = f"{'+' if sign else ''}.{digits}f"
        median, low, high = (f"{value * scale:{form}}" for value in (self.median, self.low, self.high))
        return f"{median} {unit}".rstrip() + f" ({low} to {high})"


def spread(values: Iterable[float]) -> Spread:
    """Raises ``StatisticsError`` for none at all."""
    ordered = sorted(values)
    if len(ordered) == 1:
        return Spread(ordered[0], ordered[0], ordered[0])
    low, median, high = statistics.quantiles(ordered, n=4, method="inclusive")
    return Spread(median, low, high)


Metrics = dict[str, float]
# Entering puts a tracer in place; the processes that belong to it come out.
Condition = Callable[[], AbstractContextManager[Sequence[int]]]


@dataclass
class Samples:
    """Metrics by condition, one list entry per round; ``disturbed`` counts those taken beside others' BPF programs."""

    by_condition: dict[str, list[Metrics]]
    disturbed: int = 0

    def of(self, condition: str, metric: str) -> list[float]:
        """One metric of one condition, by round."""
        return [sample[metric] for sample in self.by_condition[condition]]

    def spread(self, condition: str, metric: str) -> Spread:
        """Its median and quartiles."""
        return spread(self.of(condition, metric))

    def added(self, condition: str, metric: str, base: str) -> Spread:
        """What a condition adds to `base`, compared within each round."""
        pairs = zip(self.of(condition, metric), self.of(base, metric), strict=True)
        return spread(here - there for here, there in pairs)

    def ratio(self, condition: str, metric: str, base: str) -> Spread:
        """How many times `base` it is, compared within each round."""
        pairs = zip(self.of(condition, metric), self.of(base, metric), strict=True)
        return spread(here / there for here, there in pairs)

    def notes(self) -> list[str]:
        """What is to be said about the samples as a whole."""
        return [f"{self.disturbed} samples were taken beside BPF programs of others"] if self.disturbed else []


def interleave(
    conditions: Mapping[str, Condition], rounds: int, measure: Callable[[str, Sequence[int]], Metrics]
) -> Samples:
    """Every condition once per round, in rotated order, so that what drifts meets all of them alike.

    A sample beside somebody else's BPF programs is taken again, at most three times.
    """
    samples = Samples({name: [] for name in conditions})
    names = list(conditions)
    for turn in range(rounds):
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
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
    """Wait for `true`; False when patience ran out."""
    deadline = time.monotonic() + patience_s
    while not true():
        if time.monotonic() > deadline:
            return False
        time.sleep(step_s)
    return True


def cpu_ns(pids: Iterable[int]) -> int:
    """CPU time of all living threads of some processes, in ns; what has exited counts 0."""
    total = 0
    for pid in pids:
        for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
            try:
                total += int(path.read_text().split()[0])
            except OSError:
                continue  # the thread ended
    return total


def mortal(command: Sequence[str]) -> list[str]:
    """The command as a child that dies with this process, however that ends."""
    return ["setpriv", "--pdeathsig", "KILL", "--", *command]


class Workload:
    """A compiled C workload that does as told, line by line (see its source)."""

    def __init__(self, source: str, *arguments: str) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="whystall-bench-")
        program = Path(self._directory.name, Path(source).stem)
        flags = ["-O1", "-fno-omit-frame-pointer", "-fno-optimize-sibling-calls", "-Wall"]
        subprocess.run(["cc", *flags, "-o", str(program), str(SOURCES / source)], check=True)
        self._process = subprocess.Popen(
            mortal([str(program), *arguments]), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    @property
    def pid(self) -> int:
        """Of the process that obeys."""
        return self._process.pid

    def begin(self, command: str) -> None:
        """Tell it; ``end`` gets the answer."""
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()

    def end(self) -> tuple[float, float]:
        """(CPU ns, wall ns) per call of the command begun."""
        assert self._process.stdout is not None
        calls, cpu, wall = (int(word) for word in self._process.stdout.readline().split())
        return cpu / calls, wall / calls

    def run(self, command: str) -> tuple[float, float]:
        """Both."""
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
    """What a program says of its version; "missing" when it is not there."""
    try:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=30)
    except OSError:
        return "missing"
    lines = done.stdout.strip().splitlines()
    return lines[0].strip() if lines and not done.returncode else "does not start"


def machine() -> list[str]:
    """The machine and the programs compared, for the head of the report."""
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
    """Rows as a Markdown table."""
    verdict = {True: "yes", False: "**no**", None: "unclear"}
    lines = ["| what | ours | peer | ratio | goal | met |", "|---|---|---|---|---|---|"]
    for row in rows:
        cells = (row.what, row.ours, row.peer, row.ratio, row.goal, verdict[row.met] if row.goal else "")
        lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return lines


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
