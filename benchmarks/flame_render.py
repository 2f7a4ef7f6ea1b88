"""Draw a million folded lines as a whole process, compared with ``flamegraph.pl`` (Debian: libdevel-nytprof-perl) and
``inferno-flamegraph`` if installed.
"""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from pathlib import Path

from benchmarks.common import PYTHON, ROOT, Metrics, Report, Row, Samples, child_command, rotated

_LINES = 1_000_000
_GOAL = 10.0
_PERL = Path("/usr/share/perl5/Devel/NYTProf/flamegraph.pl")
# The picture alone.
_PICTURE = """
import sys
from pathlib import Path
from whystall.agent_server.presentation.flame_pages import drawable
from whystall.prompts.render import words
from whystall.tools.profiles.common.open_stacks import open_stacks
from whystall.tools.stacks.tree import Part, call_tree
from whystall.tools.views.flame_layout import layout
from whystall.tools.views.flame_svg import MOST_SVG_NODES, flame_svg
texts = words("en")["flame_page"]
tree = call_tree(Part(open_stacks(Path(sys.argv[1]))))
shown = layout(drawable(tree), root=texts["all"], rest=texts["rest"], most=MOST_SVG_NODES)
Path(sys.argv[2]).write_text(flame_svg(shown, texts, heading=texts["heading"], unit="samples"), "utf-8")
"""
_VERBS = ("read", "write", "open", "parse", "copy", "merge", "hash", "pack", "lock", "wait", "send", "load", "scan")
_NOUNS = ("page", "tensor", "batch", "index", "block", "graph", "shard", "token", "queue", "frame", "cache", "inode")


def _name(chance: random.Random) -> str:
    """Return a function name as long as in C++ and kernels: 10 to 30 characters."""
    words = [
        chance.choice(_VERBS),
        chance.choice(_NOUNS),
        *(chance.choice(_NOUNS) for _ in range(chance.randint(0, 2))),
    ]
    return "_".join(words) + str(chance.randint(0, 99))


def _stacks(chance: random.Random) -> Iterator[str]:
    """Yield walks through a call graph, 20 to 40 deep; a function's first callee is the most frequent."""
    names = sorted({_name(chance) for _ in range(6000)})
    weights = list(accumulate([88, 7, 3, 1, 1]))
    calls = [[chance.choice(names) for _ in weights] for _ in range(len(names) * 8)]
    number = {name: at for at, name in enumerate(names)}
    while True:
        frames = ["main"]
        at = 0
        for level in range(chance.randint(20, 40)):
            name = chance.choices(calls[(at * 8 + level % 8) % len(calls)], cum_weights=weights)[0]
            frames.append(name)
            at = number[name]
        yield ";".join(frames)


def write_distinct(path: Path, lines: int = _LINES) -> str:
    """Write lines as from a day of samples of many threads: most stacks occur only a few times."""
    chance = random.Random(1)
    stacks = _stacks(chance)
    with path.open("w") as file:
        for _ in range(lines):
            file.write(f"{next(stacks)} {chance.randint(1, 20)}\n")
    return "about 30 deep, many distinct stacks"


def write_repeated(path: Path, lines: int = _LINES) -> str:
    """Write lines as from a sampler that does not aggregate: a thousand stacks, repeated."""
    chance = random.Random(2)
    stacks = _stacks(chance)
    known = [next(stacks) for _ in range(1000)]
    with path.open("w") as file:
        for _ in range(lines):
            file.write(f"{chance.choice(known)} 1\n")
    return "about 30 deep, 1,000 distinct stacks"


def _measure(command: Sequence[str], into: Path | None) -> Metrics:
    """Return wall and CPU seconds and peak memory of one process."""
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as home, tempfile.TemporaryFile() as errors:
        environment = {**os.environ, "WHYSTALL_HOME": home}
        begin = time.monotonic()
        with (into or Path(os.devnull)).open("wb") as output:
            process = subprocess.Popen(child_command(command), stdout=output, stderr=errors, env=environment, cwd=ROOT)
            _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        wall = time.monotonic() - begin
        if process.returncode:
            errors.seek(0)
            raise RuntimeError(f"{command[0]}: {process.returncode}: {errors.read()[-400:].decode(errors='replace')}")
    return {"wall": wall, "cpu": used.ru_utime + used.ru_stime, "memory": used.ru_maxrss / 1024}


def _conditions(file: Path, directory: Path) -> dict[str, tuple[list[str], Path | None]]:
    """Return by name the command, and the file for its output."""
    picture = directory / "ours.svg"
    found: dict[str, tuple[list[str], Path | None]] = {
        "ours": ([PYTHON, "-c", _PICTURE, str(file), str(picture)], None),
        "answer": ([PYTHON, "-m", "whystall.agent_server", "run", "flame_graph", "--from", str(file)], None),
        "flamegraph.pl": (["perl", str(_PERL), str(file)], directory / "perl.svg"),
    }
    inferno = shutil.which("inferno-flamegraph")
    if inferno:
        found["inferno"] = ([inferno, str(file)], directory / "inferno.svg")
    return found


def _rows(shape: str, samples: Samples) -> list[Row]:
    rows = []
    peers = [name for name in samples.by_condition if name not in ("ours", "answer")]
    for metric, label, unit, digits in (
        ("wall", "wall time", "s", 1),
        ("cpu", "CPU time", "s", 1),
        ("memory", "peak of memory", "MB", 0),
    ):
        for own, what in (("ours", "picture"), ("answer", "whole answer of flame_graph")):
            for peer in peers:
                ratio = samples.ratio(peer, metric, own)
                goal = metric == "cpu" and own == "ours" and peer == "flamegraph.pl"
                rows.append(
                    Row(
                        f"{shape}: {what}, {label}, beside {peer}",
                        samples.spread(own, metric).text(unit, digits),
                        samples.spread(peer, metric).text(unit, digits),
                        ratio.text("", 1),
                        f">= {_GOAL:g}" if goal else "",
                        (ratio.median >= _GOAL) if goal else None,
                    )
                )
    return rows


def run(rounds: int) -> Report:
    """Measure a fifth of the rounds, as each takes minutes. Raises FileNotFoundError without flamegraph.pl."""
    if not _PERL.exists():
        raise FileNotFoundError(f"{_PERL}: apt-get install libdevel-nytprof-perl")
    report = Report("A flame graph of 1,000,000 folded lines, file to picture, whole process")
    shapes: tuple[Callable[[Path], str], ...] = (write_distinct, write_repeated)
    with tempfile.TemporaryDirectory(prefix="whystall-bench-") as name:
        for write in shapes:
            file = Path(name, "stacks.folded")
            shape = write(file)
            conditions = _conditions(file, Path(name))
            samples = Samples({one: [] for one in conditions})
            for one in rotated(conditions, max(rounds // 5, 2)):
                samples.by_condition[one].append(_measure(*conditions[one]))
            report.rows += _rows(shape, samples)
            report.notes.append(f"{shape}: {file.stat().st_size / 1e6:,.0f} MB; {_sizes(Path(name))}")
    report.notes.append("the ratio is the peer's figure divided by ours: larger is better for us")
    report.notes.append(
        "the whole answer is the tables, the page, the picture and the folded stacks, through the command"
    )
    if shutil.which("inferno-flamegraph") is None:
        report.notes.append("inferno is not installed on this machine; it would be measured too")
    return report


def _sizes(directory: Path) -> str:
    return ", ".join(f"{one.name} {one.stat().st_size / 1e6:.1f} MB" for one in sorted(directory.glob("*.svg")))
