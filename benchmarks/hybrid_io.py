"""Compare buffered, direct and hybrid I/O, with a neighbour in the same memory cgroup that re-reads a hot set.

    python -m benchmarks.hybrid_io [--quick] [--rounds N] [--only CASE ...] [--host-pressure] [--place DIR] [--out FILE]

Cases: ``mixed`` (a training job of many phases), ``streams`` (several GB read once and a checkpoint beside the
neighbour), ``small`` (the same in blocks of 128 KiB), ``again`` (data read more than once), ``sizes`` (a cold file
read once and one written, 4 KiB to 16 MiB), ``requests`` (the cost of one request). ``--quick`` takes about three
minutes, all of it half an hour. ``--host-pressure`` adds ``kswapd``: it fills the host's memory with clean cache, which
is dropped afterwards: not on a machine in use. Root, 8 GB of disk and a memory cgroup are needed; fio is compared if
installed.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from benchmarks import hybrid_io_cases as cases
from benchmarks.common import Report, Row, Samples, Spread, compiled, replace_section, table
from benchmarks.hybrid_io_cases import QUICK, Sizes
from benchmarks.hybrid_io_setup import (
    BUFFERED,
    DIRECT,
    MIB,
    OBJECT,
    PLAIN,
    PRELOADED,
    UNALIGNED,
    Unmeasurable,
    Way,
    ways,
)

TITLE = "Hybrid I/O: "
_CASES = ("mixed", "streams", "small", "again", "sizes", "requests")
# For each hybrid method, the same program with buffered I/O. There is one direct method, without a form in Python.
_BASE = {PRELOADED: BUFFERED, UNALIGNED: BUFFERED, OBJECT: PLAIN}
_NO_WORSE = "no worse than the better, within the spread"
_SHOWN = {"wall": "wall", "cpu": "CPU time"}


def _no_worse(samples: Samples, way: str, metric: str, peer: str) -> bool:
    """Return whether ours is lower or within the spread: by quartiles, or by the ratios within rounds."""
    return (
        samples.spread(way, metric).low <= samples.spread(peer, metric).high
        or samples.ratio(way, metric, peer).low <= 1.0
    )


def _faster(samples: Samples, way: str, metric: str, peer: str) -> bool:
    """Return the same for metrics that should be high."""
    return (
        samples.spread(way, metric).high >= samples.spread(peer, metric).low
        or samples.ratio(way, metric, peer).high >= 1.0
    )


def _better(ratio: Spread) -> bool | None:
    """Return whether the ratio is below 1; None if the median is, but the spread contains 1."""
    return None if ratio.median < 1.0 <= ratio.high else ratio.median < 1.0


def _peers(samples: Samples, way: str) -> tuple[str, ...]:
    return tuple(name for name in (_BASE[way], DIRECT) if name in samples.by_condition)


def _better_peer(samples: Samples, way: str, metric: str) -> str:
    return min(_peers(samples, way), key=lambda name: samples.spread(name, metric).median)


def _hybrids(samples: Samples) -> Iterator[str]:
    return (way for way in _BASE if way in samples.by_condition)


def _beside(samples: Samples, way: str, metric: str, unit: str, digits: int, scale: float = 1.0) -> tuple[str, str]:
    """Return ours and the peers' as text."""
    texts = [f"{name}: {samples.spread(name, metric).text(unit, digits, scale)}" for name in _peers(samples, way)]
    return samples.spread(way, metric).text(unit, digits, scale), "; ".join(texts)


def _ratio(ratio: Spread, peer: str) -> str:
    return f"{ratio.text(digits=2)} of {peer}"


def _size(size: int) -> str:
    return f"{size // MIB} MiB" if size >= MIB else f"{size // 1024} KiB"


def sizes_report(all_ways: dict[str, Way], place: Path, rounds: int, sizes: Sizes) -> Report:
    """Report wall and CPU time per MiB of each method, by block size."""
    chosen = {name: way for name, way in all_ways.items() if name not in (PLAIN, OBJECT)}
    found = cases.block_sizes(chosen, place, rounds, sizes)
    report = Report(f"{TITLE}a cold file read once, and one written with fsync, by block size")
    for metric, shown in _SHOWN.items():
        for (op, block), samples in found.items():
            others = [name for name in samples.by_condition if name not in _BASE]
            peers = "; ".join(f"{name}: {samples.spread(name, metric).text()}" for name in others)
            for way in _hybrids(samples):
                # CPU time saved by waiting for the device is no gain; memory of malloc is not aligned for direct I/O.
                both = metric == "wall" and way != UNALIGNED
                peer = _better_peer(samples, way, metric) if both else BUFFERED
                goal = _NO_WORSE if both else "no worse than buffered, within the spread"
                ours = samples.spread(way, metric).text("us per MiB")
                compared = _ratio(samples.ratio(way, metric, peer), peer)
                met = _no_worse(samples, way, metric, peer)
                report.rows.append(Row(f"{op}, {_size(block)}, {shown}: {way}", ours, peers, compared, goal, met))
    report.notes += [_crossover(found, op, metric) for op in ("read", "write") for metric in _SHOWN]
    report.notes.append(
        f"{_size(sizes.of_block)} at most, at least 512 blocks or 16 MiB; cgroup of {_size(sizes.limit)}, without "
        f"a neighbour; read-ahead of this disk {_read_ahead(place)}; ours with the cost per process (loading the "
        "shim, finding its cgroup: 0.2 to 0.5 ms of CPU time, visible where 16 MiB are moved in 10)"
    )
    return report


def _crossover(found: dict[tuple[str, int], Samples], op: str, metric: str) -> str:
    """Report the size from which direct is cheaper at every measured size."""
    first = None
    for block in sorted((block for known, block in found if known == op), reverse=True):
        ratio = found[op, block].ratio(DIRECT, metric, BUFFERED)
        if ratio.median >= 1.0:
            break
        first = block
    compared = "at no size" if first is None else f"from {_size(first)} on"
    return f"{op}, {_SHOWN[metric]}: direct is cheaper than buffered {compared} (medians)"


def _read_ahead(place: Path) -> str:
    device = os.stat(place).st_dev
    queue = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    for at in (queue / "queue", queue / ".." / "queue"):
        if (at / "read_ahead_kb").exists():
            return (at / "read_ahead_kb").read_text().strip() + " KiB"
    return "unknown"


def streams_report(
    all_ways: dict[str, Way], program: Path, place: Path, rounds: int, sizes: Sizes, block: int = cases.BIG
) -> Report:
    """Report the one-pass reader and the checkpoint in blocks of `block`, and their effect on the neighbour."""
    samples = cases.streams(all_ways, program, place, rounds, sizes, block)
    report = Report(
        f"{TITLE}one pass and a checkpoint in blocks of {_size(block)} beside a neighbour that re-reads a hot set"
    )
    metrics = (
        ("mb_s", "throughput", "MB/s", 0, False),
        ("cpu_s", "CPU time of the process", "s", 2, True),
        ("both_s", "CPU time, with the kernel's workers'", "s", 2, True),
        ("p99_us", "the neighbour's p99", "us", 1, True),
        ("p999_us", "the neighbour's p99.9", "us", 1, True),
    )
    for op in ("read", "write"):
        for way in _hybrids(samples):
            for metric, shown, unit, digits, low_is_good in metrics:
                name = f"{op}_{metric}"
                ours, peers = _beside(samples, way, name, unit, digits)
                base = _BASE[way]
                goal, met = "", None
                ratio = samples.ratio(way, name, base) if min(samples.of(base, name)) > 0 else None
                if metric == "both_s" and ratio is not None:
                    goal, met = "no worse than buffered, within the spread", _no_worse(samples, way, name, base)
                elif metric == "p999_us" and ratio is not None:
                    goal, met = "better than buffered", _better(ratio)
                elif not low_is_good:
                    goal, met = "no worse than buffered, within the spread", _faster(samples, way, name, base)
                report.rows.append(
                    Row(f"{op}, {way}: {shown}", ours, peers, _ratio(ratio, base) if ratio else "", goal, met)
                )
            for metric, shown in (("hit", "the neighbour's hit ratio"), ("kept", "of the hot set cached afterwards")):
                ours, peers = _beside(samples, way, f"{op}_{metric}", "%", 2, 100)
                report.rows.append(Row(f"{op}, {way}: {shown}", ours, peers))
            for metric, shown, unit in (
                ("disk_mib", "the neighbour read from the disk", "MiB"),
                ("done", "reads that the neighbour could do", "per s"),
            ):
                ours, peers = _beside(samples, way, f"{op}_{metric}", unit, 0)
                report.rows.append(Row(f"{op}, {way}: {shown}", ours, peers))
    for name in cases.FIO:
        if name in samples.by_condition:
            report.notes.append(_of_fio(samples, name))
    report.notes += [
        f"cgroup of {_size(sizes.limit)}, hot set of {_size(sizes.hot)} read at random, 4 KiB at a time, 4000 per s; "
        f"{_size(sizes.read)} read once, then a checkpoint of {_size(sizes.write)}; each way in a fresh cgroup",
        "a hit: preadv2 with RWF_NOWAIT gave the whole record; from the disk: read_bytes of /proc/PID/io",
        "memory of a cgroup is reclaimed by the allocating process, in its CPU time, not by kswapd",
        "the kernel's workers write back dirty pages of all processes: on an idle machine, of these",
    ]
    return report


def _of_fio(samples: Samples, name: str) -> str:
    shown: tuple[tuple[str, str, str, int, float], ...] = (
        ("mb_s", "", "MB/s", 0, 1.0),
        ("cpu_s", "CPU ", "s", 2, 1.0),
        ("p99_us", "neighbour's p99 ", "us", 1, 1.0),
        ("hit", "hits ", "%", 2, 100.0),
    )
    parts = [
        f"{op}: "
        + ", ".join(head + samples.spread(name, f"{op}_{metric}").text(*form) for metric, head, *form in shown)
        for op in ("read", "write")
    ]
    return f"{name}: {'; '.join(parts)}"


def mixed_report(all_ways: dict[str, Way], program: Path, place: Path, rounds: int, sizes: Sizes) -> Report:
    """Report each phase compared with the better method, and the sum with both."""
    samples = cases.mixed(all_ways, program, place, rounds, sizes)
    report = Report(f"{TITLE}a training job of many phases beside a neighbour")
    phases = list(cases.job_of(place, sizes))
    for way in _hybrids(samples):
        for phase in phases if way != UNALIGNED else ():
            for what in ("wall", "cpu"):
                metric = f"{what} {phase}"
                peer = _better_peer(samples, way, f"wall {phase}")
                compared = _ratio(samples.ratio(way, metric, peer), peer)
                ours, peers = _beside(samples, way, metric, "ms", 1, 1e3)
                goal = _NO_WORSE if what == "wall" else ""
                met = _no_worse(samples, way, metric, peer)
                report.rows.append(Row(f"{phase}, {_SHOWN[what]}: {way}", ours, peers, compared, goal, met))
        for metric, shown, unit, digits in (
            ("wall", "sum of all phases, wall", "s", 2),
            ("cpu", "sum of all phases, CPU time", "s", 2),
            ("p99_us", "the neighbour's p99 over the job", "us", 1),
            ("p999_us", "the neighbour's p99.9 over the job", "us", 1),
        ):
            ours, peers = _beside(samples, way, metric, unit, digits)
            ratios = {name: samples.ratio(way, metric, name) for name in _peers(samples, way)}
            verdicts = {_better(ratio) for ratio in ratios.values()}
            goal, met = "better than both", False if False in verdicts else (None if None in verdicts else True)
            if metric in ("p99_us", "p999_us"):  # direct I/O does not affect the neighbour: nothing can be better
                goal, met = _NO_WORSE, _no_worse(samples, way, metric, _better_peer(samples, way, metric))
            compared = "; ".join(_ratio(ratio, name) for name, ratio in ratios.items())
            report.rows.append(Row(f"**{shown}: {way}**", ours, peers, compared, goal, met))
        for metric, shown, unit, scale in (
            ("hit", "the neighbour's hit ratio over the job", "%", 100.0),
            ("workers_s", "CPU time of the kernel's workers meanwhile", "s", 1.0),
        ):
            ours, peers = _beside(samples, way, metric, unit, 2, scale)
            report.rows.append(Row(f"{shown}: {way}", ours, peers))
    report.notes += [
        f"in one process, in this order: {', '.join(phases)}; cgroup of {_size(sizes.job_limit)}, neighbour's hot set "
        f"{_size(sizes.job_hot)}, shards {_size(sizes.shards)}, checkpoint {_size(sizes.checkpoint)}, a small data set "
        f"of {_size(sizes.again)} read in four epochs",
        "the sum is that of the phases' times, each from open to close, including fsync for writes; the better of both "
        "is the one with the shorter phase (waiting for the device repeatedly saves CPU time too)",
    ]
    return report


def again_report(all_ways: dict[str, Way], place: Path, rounds: int, sizes: Sizes) -> Report:
    """Report data that is read again, where a wrong choice costs most."""
    report = Report(f"{TITLE}what is read again in large blocks")
    chosen = {name: way for name, way in all_ways.items() if name in (BUFFERED, DIRECT, PRELOADED)}
    for kind, samples in cases.again(chosen, place, rounds, sizes).items():
        for way in _hybrids(samples):
            for metric, shown in _SHOWN.items():
                ours, peers = _beside(samples, way, metric, "s", 3)
                peer = _better_peer(samples, way, "wall")
                compared = _ratio(samples.ratio(way, metric, peer), peer)
                goal = _NO_WORSE if metric == "wall" else ""
                met = _no_worse(samples, way, metric, peer)
                report.rows.append(Row(f"{kind}, {shown}: {way}", ours, peers, compared, goal, met))
    report.notes.append(
        "that a file will be read again is not known the first time: one that is larger than what the policy keeps is "
        "read direct then, from the device once more the second time, and from the cache from the third on"
    )
    return report


def requests_report(all_ways: dict[str, Way], place: Path, rounds: int, sizes: Sizes) -> Report:
    """Report what we add to a request that is served from the cache."""
    report = Report(f"{TITLE}what one request costs")
    for kind, samples in cases.requests(all_ways, place, rounds, sizes).items():
        for way in _hybrids(samples):
            base = _BASE[way]
            added, ratio = samples.added(way, "cpu", base), samples.ratio(way, "cpu", base)
            report.rows.append(
                Row(
                    f"{kind}: {way}",
                    samples.spread(way, "cpu").text("ns"),
                    f"{base}: {samples.spread(base, 'cpu').text('ns')}",
                    f"{ratio.text(digits=2)}, {added.text('ns', sign=True)}",
                )
            )
    report.notes.append("CPU time of the process per request at random offsets of a file of 64 MiB that is cached")
    return report


def kswapd_report(all_ways: dict[str, Way], place: Path, rounds: int, sizes: Sizes) -> Report:
    """Report one pass with the host's memory full of cache."""
    samples = cases.host_pressure(all_ways, place, rounds, sizes)
    report = Report(f"{TITLE}one pass where the host's memory is full of cache")
    shown = {"kswapd_s": "CPU time of kswapd", "cpu_s": "CPU time of the process", "wall_s": "wall"}
    for way in _hybrids(samples):
        base = _BASE[way]
        for metric, what in shown.items():
            ours, peers = _beside(samples, way, metric, "s", 3)
            ratio = samples.ratio(way, metric, base) if min(samples.of(base, metric)) > 0 else None
            goal = "better than buffered" if ratio and metric != "wall_s" else ""
            compared = _ratio(ratio, base) if ratio else ""
            report.rows.append(
                Row(f"{what}: {way}", ours, peers, compared, goal, _better(ratio) if ratio and goal else None)
            )
    report.notes.append(
        f"{_size(sizes.read)} in blocks of 4 MiB, no cgroup; before each, holes of a sparse file are read until kswapd "
        "works"
    )
    return report


def main(words: Sequence[str]) -> int:
    """Run the command line; return 0 if all was measured, 1 if that is impossible."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller, fewer rounds: about three minutes")
    parser.add_argument("--rounds", type=int, help="of each case (default: 9, quick 3 to 5)")
    parser.add_argument("--only", nargs="+", choices=(*_CASES, "kswapd"), default=_CASES, help="these cases")
    parser.add_argument("--ways", nargs="+", help="these ways only")
    parser.add_argument("--host-pressure", action="store_true", help="fill the host's memory with clean cache, too")
    parser.add_argument("--place", type=Path, help="where files are made (default: the directory for temporary files)")
    parser.add_argument("--out", type=Path, help="the report whose sections are replaced (default: none)")
    options = parser.parse_args(words)
    if os.geteuid() != 0:
        print("benchmarks: run as root: a memory cgroup is made", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # clean up as after Ctrl-C
    sizes = QUICK if options.quick else Sizes()
    begin = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="whystall-bench-", dir=options.place) as directory:
        place = Path(directory)
        program = compiled("page_cache_load.c", place, "-O2", "-Wextra", "-Werror")
        all_ways = ways(program)
        if options.ways:
            all_ways = {name: way for name, way in all_ways.items() if name in options.ways}
        runs: dict[str, tuple[int, Callable[[int], Report]]] = {
            "mixed": (4, lambda count: mixed_report(all_ways, program, place, count, sizes)),
            "streams": (3, lambda count: streams_report(all_ways, program, place, count, sizes)),
            "small": (2, lambda count: streams_report(all_ways, program, place, count, sizes, cases.SMALL)),
            "again": (3, lambda count: again_report(all_ways, place, count, sizes)),
            "sizes": (3, lambda count: sizes_report(all_ways, place, count, sizes)),
            "requests": (2, lambda count: requests_report(all_ways, place, count, sizes)),
            "kswapd": (3, lambda count: kswapd_report(all_ways, place, count, sizes)),
        }
        for name, (few, run) in runs.items():
            if name not in options.only and not (name == "kswapd" and options.host_pressure):
                continue
            rounds = options.rounds or (few if options.quick else 9)
            started = time.monotonic()
            try:
                report = run(rounds)
            except Unmeasurable as error:
                print(f"benchmarks: {name}: {error}", file=sys.stderr)
                return 1
            report.notes.append(f"{rounds} rounds, interleaved, {time.monotonic() - started:.0f} s{_load()}")
            print("\n".join([f"## {report.title}", *table(report.rows), *(f"* {note}" for note in report.notes), ""]))
            sys.stdout.flush()
            if options.out:
                replace_section(report, options.out)
    print(f"benchmarks: {time.monotonic() - begin:.0f} s", file=sys.stderr)
    return 0


def _load() -> str:
    return f", load {os.getloadavg()[0]:.1f} on {os.cpu_count()} CPUs"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
