"""The cases of the hybrid I/O benchmark: each runs all methods once per round, and returns samples."""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.common import Metrics, Samples, rotated
from benchmarks.hybrid_io_setup import (
    BUFFERED,
    DIRECT,
    MIB,
    UNALIGNED,
    Kernel,
    Neighbour,
    Unmeasurable,
    Way,
    fio,
    forget,
    have_fio,
    make_file,
    memory_cgroup,
    resident,
)

KIB = 1 << 10
_RECORD = 4 * KIB
_RATE = 4000  # reads per second of the neighbour: a loader's look-ups
_SETTLE_S = 0.2
BIG = 4 * MIB  # block size of data loaders, and of torch.save
SMALL = 128 * KIB  # block size of Python's buffered files, cp and tar
FIO = {"fio BIO": False, "fio DIO": True}


@dataclass(frozen=True)
class Sizes:
    """Sizes in bytes. Without streams, the kernel easily keeps the hot set cached."""

    limit: int = 1024 * MIB
    hot: int = 640 * MIB
    read: int = 3072 * MIB
    write: int = 2048 * MIB
    shards: int = 1536 * MIB
    checkpoint: int = 768 * MIB
    again: int = 64 * MIB  # a small data set, read in each epoch
    job_limit: int = 768 * MIB
    job_hot: int = 320 * MIB  # of the neighbour: fits together with what the job reads again
    of_block: int = 256 * MIB  # most bytes moved per block size
    blocks: tuple[int, ...] = tuple(size * KIB for size in (4, 16, 64, 256, 512, 1024, 2048, 4096, 8192, 16384))
    fio_blocks: tuple[int, ...] = tuple(size * KIB for size in (4, 64, 1024, 4096, 16384))
    epochs: int = 5
    unaligned: int = 1024 * KIB  # least block size for which memory of malloc is measured too
    calls: int = 200_000


QUICK = Sizes(
    read=1536 * MIB,
    write=768 * MIB,
    shards=768 * MIB,
    checkpoint=256 * MIB,
    of_block=96 * MIB,  # more than the policy keeps cached of a small file
    blocks=tuple(size * KIB for size in (4, 64, 256, 512, 1024, 4096, 16384)),
    fio_blocks=(64 * KIB, 4 * MIB),
    epochs=4,
    calls=50_000,
)

Condition = Callable[[], Metrics]


def rounds(conditions: Mapping[str, Condition], count: int) -> Samples:
    """Measure each condition once per round."""
    samples = Samples({name: [] for name in conditions})
    for name in rotated(conditions, count):
        samples.by_condition[name].append(conditions[name]())
    return samples


def block_sizes(ways: Mapping[str, Way], place: Path, count: int, sizes: Sizes) -> dict[tuple[str, int], Samples]:
    """Measure reading a cold file once, and writing one with fsync, by (operation, block size); fio at some sizes.

    Metrics, each in us per MiB moved: ``wall``, ``cpu`` (of the process), ``workers`` (all kernel workers).
    """
    paths = {"read": place / "source", "write": place / "out"}
    make_file(paths["read"], sizes.of_block)
    found = {}
    with memory_cgroup(sizes.limit) as group:
        for op, path in paths.items():
            for block in sizes.blocks:
                size = min(sizes.of_block, max(16 * MIB, block * 512))

                chosen = {name: way for name, way in ways.items() if name != UNALIGNED or block >= sizes.unaligned}
                run = partial(_per_mib, path, size)
                step = f"{op}:{path}:{size}:{block}"
                conditions: dict[str, Condition] = {
                    name: partial(run, partial(_only, way, step, group)) for name, way in chosen.items()
                }
                if block in sizes.fio_blocks and have_fio():
                    conditions |= {
                        name: partial(run, partial(fio, group, path, op, size, block, direct))
                        for name, direct in FIO.items()
                    }
                found[op, block] = rounds(conditions, count)
    _remove(paths.values())
    return found


def _only(way: Way, step: str, group: Path | None) -> Metrics:
    return way.run([step], group)[0]


def _per_mib(path: Path, size: int, run: Condition) -> Metrics:
    forget(path)
    before = Kernel.now()
    account = run()
    workers_s = Kernel.now().since(before).workers_s
    scale = MIB / size / 1e3
    return {"wall": account["wall_ns"] * scale, "cpu": account["cpu_ns"] * scale, "workers": workers_s * 1e9 * scale}


def streams(ways: Mapping[str, Way], program: Path, place: Path, count: int, sizes: Sizes, block: int = BIG) -> Samples:
    """Measure a one-pass read and a checkpoint with a neighbour in the same cgroup, a new one for each method.

    Metrics with ``read_`` and ``write_``: ``mb_s``, ``cpu_s``, ``workers_s``, ``both_s`` (their sum); of the neighbour
    meanwhile ``hit`` (share of its reads), ``p99_us``, ``p999_us``, ``max_us``, ``done`` (reads per s), ``disk_mib``
    (read from the disk), ``kept`` (share of the hot set cached afterwards).
    """
    source, out, hot = place / "source", place / "out", place / "hot"
    make_file(source, sizes.read)
    make_file(hot, sizes.hot)

    def sample(run: Callable[[str, Path, int, Path], Metrics]) -> Metrics:
        forget(source, out, hot)
        metrics: Metrics = {}
        with (
            memory_cgroup(sizes.limit) as group,
            Neighbour(program, group, hot, sizes.hot, _RECORD, _RATE) as neighbour,
        ):
            time.sleep(_SETTLE_S)
            for op, path, size in (("read", source, sizes.read), ("write", out, sizes.write)):
                neighbour.seen()
                before = Kernel.now()
                account = run(op, path, size, group)
                workers_s = Kernel.now().since(before).workers_s
                of_phase = {
                    "mb_s": size / 1e6 / account["wall_ns"] * 1e9,
                    "cpu_s": account["cpu_ns"] / 1e9,
                    "workers_s": workers_s,
                    "both_s": account["cpu_ns"] / 1e9 + workers_s,
                    **_of_neighbour(neighbour),
                    "kept": resident(hot) / sizes.hot,
                }
                metrics |= {f"{op}_{name}": value for name, value in of_phase.items()}
        return metrics

    def by_way(way: Way) -> Condition:
        return lambda: sample(lambda op, path, size, group: way.run([f"{op}:{path}:{size}:{block}"], group)[0])

    def by_fio(direct: bool) -> Condition:
        return lambda: sample(lambda op, path, size, group: fio(group, path, op, size, block, direct))

    conditions = {name: by_way(way) for name, way in ways.items()}
    if have_fio() and block == BIG:
        conditions |= {name: by_fio(direct) for name, direct in FIO.items()}
    samples = rounds(conditions, count)
    _remove((source, out, hot))
    return samples


def _of_neighbour(neighbour: Neighbour) -> Metrics:
    seen = neighbour.seen()
    return {
        "hit": seen["hits"] / max(1, seen["calls"]),
        "p99_us": seen["p99_ns"] / 1e3,
        "p999_us": seen["p999_ns"] / 1e3,
        "max_us": seen["max_ns"] / 1e3,
        "done": seen["calls"] / seen["wall_ns"] * 1e9,
        "disk_mib": seen["read_bytes"] / MIB,
    }


def job_of(place: Path, sizes: Sizes) -> dict[str, str]:
    """Return the phases of a training job as steps: some better buffered, some better direct."""
    index, text, again = place / "index", place / "text", place / "again"
    shards, checkpoint, log = place / "shards", place / "checkpoint", place / "log"
    lookups = f"random:{index}:{64 * MIB}:{16 * KIB}:4000"
    epoch = f"read:{again}:{sizes.again}:{BIG}"
    return {
        "look-ups": lookups,
        "text, 64 KiB": f"read:{text}:{32 * MIB}:{64 * KIB}",
        "shards, 4 MiB": f"read:{shards}:{sizes.shards}:{BIG}",
        "look-ups again": lookups,
        "epoch 1, 4 MiB": epoch,
        "epoch 2": epoch,
        "epoch 3": epoch,
        "epoch 4": epoch,
        "checkpoint, 4 MiB": f"write:{checkpoint}:{sizes.checkpoint}:{BIG}",
        "log, 4 KiB": f"write:{log}:{4 * MIB}:{4 * KIB}",
        "look-ups at last": lookups,
    }


def mixed(ways: Mapping[str, Way], program: Path, place: Path, count: int, sizes: Sizes) -> Samples:
    """Measure all phases of a job in one process, with a neighbour in the same cgroup.

    Metrics: ``wall PHASE`` and ``cpu PHASE`` in s, ``wall`` and ``cpu`` of all phases, ``workers_s``, and of the
    neighbour as in `streams`.
    """
    steps = job_of(place, sizes)
    files = {"index": 64 * MIB, "text": 32 * MIB, "again": sizes.again, "shards": sizes.shards, "hot": sizes.job_hot}
    for name, size in files.items():
        make_file(place / name, size)
    everything = [place / name for name in (*files, "checkpoint", "log")]

    def sample(way: Way) -> Metrics:
        forget(*everything)
        with (
            memory_cgroup(sizes.job_limit) as group,
            Neighbour(program, group, place / "hot", files["hot"], _RECORD, _RATE) as neighbour,
        ):
            time.sleep(_SETTLE_S)
            neighbour.seen()
            before = Kernel.now()
            accounts = dict(zip(steps, way.run(steps.values(), group), strict=True))
            metrics = {"workers_s": Kernel.now().since(before).workers_s, **_of_neighbour(neighbour)}
        for name, account in accounts.items():
            metrics |= {f"wall {name}": account["wall_ns"] / 1e9, f"cpu {name}": account["cpu_ns"] / 1e9}
        for what in ("wall", "cpu"):
            metrics[what] = sum(value for name, value in metrics.items() if name.startswith(f"{what} "))
        return metrics

    samples = rounds({name: partial(sample, way) for name, way in ways.items()}, count)
    _remove(everything)
    return samples


def again(ways: Mapping[str, Way], place: Path, count: int, sizes: Sizes) -> dict[str, Samples]:
    """Measure repeated reads in blocks of 4 MiB, where direct I/O costs most, by data set, without a neighbour.

    Metrics: ``wall`` and ``cpu`` in s, of all passes together.
    """
    limit = sizes.limit // 2
    data, made = place / "data", place / "made"
    fits, large = limit // 2, limit * 3 // 2
    kinds = {
        f"{_mib(fits)} read {sizes.epochs} times, limit {_mib(limit)}": [f"read:{data}:{fits}:{BIG}"] * sizes.epochs,
        f"{_mib(large)} read {sizes.epochs} times, limit {_mib(limit)}": [f"read:{data}:{large}:{BIG}"] * sizes.epochs,
        f"{_mib(fits)} written and read once": [f"write:{made}:{fits}:{BIG}", f"read:{made}:{fits}:{BIG}"],
    }

    def sample(way: Way, steps: list[str]) -> Metrics:
        forget(data, made)
        made.unlink(missing_ok=True)
        with memory_cgroup(limit) as group:
            accounts = way.run(steps, group)
        return {what: sum(account[f"{what}_ns"] for account in accounts) / 1e9 for what in ("wall", "cpu")}

    found = {}
    for kind, steps in kinds.items():
        if steps[0].startswith("read:"):
            make_file(data, int(steps[0].split(":")[2]))
        found[kind] = rounds({name: partial(sample, way, steps) for name, way in ways.items()}, count)
    _remove((data, made))
    return found


def _mib(size: int) -> str:
    return f"{size // MIB} MiB"


def requests(ways: Mapping[str, Way], place: Path, count: int, sizes: Sizes) -> dict[str, Samples]:
    """Measure one request to a cached file, by kind of request; metric: ``cpu`` in ns per request."""
    path = place / "source"
    make_file(path, 64 * MIB)
    small = f"{path}:{64 * MIB}:{4 * KIB}"
    kinds = {
        "4 KiB read": f"random:{small}:{sizes.calls}",
        "4 KiB read, after one of 4 MiB on the same descriptor": f"random:{small}:{sizes.calls}:{BIG}",
        "64 KiB read": f"random:{path}:{64 * MIB}:{64 * KIB}:{sizes.calls // 10}",
        "4 MiB read of what is cached": f"random:{path}:{64 * MIB}:{BIG}:{max(50, sizes.calls // 1000)}",
    }
    found = {}
    for kind, step in kinds.items():

        def sample(way: Way, step: str = step) -> Metrics:
            ways[BUFFERED].run([f"read:{path}:{64 * MIB}:{64 * KIB}"], None)
            (account,) = way.run([step], None)
            return {"cpu": account["cpu_ns"] / account["calls"]}

        chosen = {name: way for name, way in ways.items() if name not in (DIRECT, UNALIGNED)}
        found[kind] = rounds({name: partial(sample, way) for name, way in chosen.items()}, count)
    _remove((path,))
    return found


def host_pressure(ways: Mapping[str, Way], place: Path, count: int, sizes: Sizes) -> Samples:
    """Measure a one-pass read, and kswapd meanwhile, with the host's memory full of clean cache.

    Reading holes of a sparse file fills it without a disk; the pages are freed as soon as memory is needed, and dropped
    afterwards. Metrics: ``kswapd_s``, ``cpu_s``, ``wall_s``.
    """
    source, holes = place / "source", place / "holes"
    make_file(source, sizes.read)
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with holes.open("wb") as file:
        file.truncate(4 * memory)
    filled = _Filler(holes, 4 * memory)

    def sample(way: Way) -> Metrics:
        forget(source)
        filled.until_kswapd_works(memory * 2)
        before = Kernel.now()
        (account,) = way.run([f"read:{source}:{sizes.read}:{BIG}"], None)
        kswapd_s = Kernel.now().since(before).kswapd_s
        return {"kswapd_s": kswapd_s, "cpu_s": account["cpu_ns"] / 1e9, "wall_s": account["wall_ns"] / 1e9}

    try:
        return rounds({name: partial(sample, way) for name, way in ways.items()}, count)
    finally:
        filled.close()
        _remove((source, holes))


class _Filler:
    """Fill the page cache by reading holes."""

    def __init__(self, path: Path, size: int) -> None:
        self._fd = os.open(path, os.O_RDONLY)
        self._size, self._at = size, 0
        self._buffer = mmap.mmap(-1, 4 * MIB)

    def until_kswapd_works(self, most: int) -> None:
        """Read until kswapd scans, so that memory is at its low watermark; at most `most` bytes."""
        before, read = _scanned(), 0
        while _scanned() - before < 64 * MIB // mmap.PAGESIZE:
            if read >= most:
                raise Unmeasurable("kswapd did not wake, though twice the memory was read")
            for _ in range(16):
                read += os.preadv(self._fd, [self._buffer], self._at)
                self._at = (self._at + 4 * MIB) % (self._size - 4 * MIB)

    def close(self) -> None:
        """Drop the pages from the cache."""
        os.posix_fadvise(self._fd, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(self._fd)


def _scanned() -> int:
    with open("/proc/vmstat") as lines:
        return sum(int(line.split()[1]) for line in lines if line.startswith("pgscan_kswapd"))


def _remove(paths: Iterable[Path]) -> None:
    for path in paths:
        path.unlink(missing_ok=True)
