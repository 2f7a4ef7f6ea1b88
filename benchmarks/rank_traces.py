"""Write Kineto traces of a synchronous job quickly, for the benchmarks of ranks.

A step has segments; in each, every rank runs its kernels and enters an all_reduce that all leave together. One rank's
kernels take longer. Names of collectives are those before NCCL 2.19 (``ncclKernel_``), the only ones that
HolisticTraceAnalysis supports; events have libkineto's shape and arguments.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import polars as pl

_BASE_NS = 1_711_964_646_000_000_000
_BEGIN_NS = 4_458_676_416_788_066
_STREAM, _COMMUNICATION = 7, 20
_AHEAD_NS = 40_000  # from the host's launch to the device's start
_UNIT_NS = 30_000  # from one kernel's start to the next
_ELEMENTS = 6_553_600
_UNIT_BYTES = 1_460
"""Size of the events of one kernel, measured."""
_COLLECTIVE = "ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)"


@dataclass(frozen=True)
class Shape:
    """A job: `segments` per step, `kernels` per segment."""

    ranks: int
    steps: int
    segments: int = 4
    kernels: int = 100

    @classmethod
    def of_size(cls, ranks: int, size: int, steps: int = 20) -> Shape:
        """Return a shape with about `size` bytes per rank."""
        units = max(size // _UNIT_BYTES // steps, 8)
        return cls(ranks, steps, 4, units // 4)


def write_job(directory: Path, shape: Shape, slow: Mapping[int, float]) -> int:
    """Write ``rank<N>.json`` for each rank; return the bytes written. `slow`: factor of a rank's kernel times."""
    directory.mkdir(parents=True, exist_ok=True)
    ends = _ends(shape, slow)
    return sum(
        _write(directory / f"rank{rank}.json", shape, rank, slow.get(rank, 1.0), ends) for rank in range(shape.ranks)
    )


def _lengths(shape: Shape, rank: int, factor: float) -> list[int]:
    """Return the total length of each segment's kernels on a rank, ns."""
    source = random.Random(rank)
    plain = shape.kernels * _UNIT_NS
    return [int(plain * factor * source.uniform(1.0, 1.02)) for _ in range(shape.steps * shape.segments)]


def _ends(shape: Shape, slow: Mapping[int, float]) -> list[int]:
    """Return when all ranks leave the collective of each segment."""
    lengths = [_lengths(shape, rank, slow.get(rank, 1.0)) for rank in range(shape.ranks)]
    now, ends = _BEGIN_NS, []
    for longest in map(max, zip(*lengths, strict=True)):
        now += longest + shape.kernels * _UNIT_NS // 10
        ends.append(now)
    return ends


def _write(path: Path, shape: Shape, rank: int, factor: float, ends: list[int]) -> int:
    begins = [_BEGIN_NS, *ends[:-1]]
    lengths = _lengths(shape, rank, factor)
    unit = pl.int_range(shape.kernels, eager=True).alias("unit").to_frame()
    segments = pl.DataFrame({"segment": range(len(ends)), "begin": begins, "length": lengths, "end": ends})
    units = segments.join(unit, how="cross").with_columns(
        number=pl.int_range(1, pl.len() + 1) * 2,
        start=pl.col("begin") + pl.col("length") * pl.col("unit") // shape.kernels,
        each=(pl.col("length") * 9) // (shape.kernels * 10),
    )
    collectives = segments.with_columns(
        number=(pl.col("segment") + 1) * shape.kernels * 2 + 1, start=pl.col("begin") + pl.col("length")
    )
    lines = pl.concat([*_unit_lines(units), *_collective_lines(collectives, shape, rank), *_step_lines(ends, shape)])
    # libkineto prints host and device separately, and neither in order of time; readers must sort.
    text = ",\n".join(lines.to_list())
    info = {
        "backend": "nccl",
        "rank": rank,
        "world_size": shape.ranks,
        "pg_count": 1,
        "pg_config": [
            {"pg_name": "0", "pg_desc": "default_pg", "pg_size": shape.ranks, "ranks": list(range(shape.ranks))}
        ],
        "nccl_version": "2.18.1",
    }
    head = f'{{\n  "schemaVersion": 1,\n  "distributedInfo": {json.dumps(info)},\n  "traceEvents": [\n'
    tail = f'\n  ],\n  "displayTimeUnit": "ms",\n  "baseTimeNanoseconds": {_BASE_NS}\n}}\n'
    return path.write_text(head + text + tail)


def _us(column: pl.Expr) -> pl.Expr:
    """Return nanoseconds as microseconds with three decimals."""
    return pl.format("{}.{}", column // 1000, (column % 1000).cast(pl.String).str.zfill(3))


def _event(
    category: str, name: pl.Expr, pid: int, tid: int, start: pl.Expr, duration: pl.Expr, *args: object
) -> pl.Expr:
    """Return an event as libkineto prints it; `args`: texts and columns of its arguments, in order."""
    parts = [
        pl.lit(f'  {{\n    "ph": "X", "cat": "{category}", "name": "'),
        name,
        pl.lit(f'", "pid": {pid}, "tid": {tid},\n    "ts": '),
        _us(start),
        pl.lit(', "dur": '),
        _us(duration),
        pl.lit(',\n    "args": {\n      '),
        *(arg if isinstance(arg, pl.Expr) else pl.lit(arg) for arg in args),
        pl.lit("\n    }\n  }"),
    ]
    return pl.concat_str(parts)


def _flow(phase: str, pid: int, tid: int, start: pl.Expr, number: pl.Expr) -> pl.Expr:
    """Return an arrow from a launch to its work."""
    parts = [
        pl.lit(f'  {{\n    "ph": "{phase}", "id": '),
        number,
        pl.lit(f', "pid": {pid}, "tid": {tid}, "ts": '),
        _us(start),
        pl.lit(', "cat": "ac2g", "name": "ac2g", "bp": "e"\n  }'),
    ]
    return pl.concat_str(parts)


def _unit_lines(units: pl.DataFrame) -> list[pl.Series]:
    number, start = pl.col("number"), pl.col("start")
    launched = start - _AHEAD_NS
    kernel = pl.format(
        "void at::native::vectorized_elementwise_kernel<4, at::native::Functor<{}>>(int)", number // 2 % 40
    )
    frame = pl.format("torch/nn/modules/module.py({}): _call_impl", number % 400 + 1700)
    shapes = '"Input Dims": [[64, 1024], [1024, 1024], []], "Input type": ["float", "float", "Scalar"]'
    launch: list[object] = ['"External id": ', number, ', "cbid": 211, "correlation": ', number]
    device: list[object] = [
        '"External id": ',
        number,
        f', "queued": 0, "device": 0, "context": 1, "stream": {_STREAM}, "correlation": ',
        number,
        ', "registers per thread": 32, "blocks per SM": 1520.5, "grid": [1568, 1, 128], "block": [256, 1, 1], ',
        '"est. achieved occupancy %": 100',
    ]
    traced: list[object] = ['"Python parent id": ', number, ', "Python id": ', number + 1, ', "Ev Idx": ', number]
    outer = ['"External id": ', number, f', "Ev Idx": 7, {shapes}']
    calls = pl.lit("cudaLaunchKernel")
    rows = units.select(
        _event("python_function", frame, 17, 17, launched - 6_000, pl.lit(26_000), *traced),
        _event("cpu_op", pl.lit("aten::addmm"), 17, 17, launched - 5_000, pl.lit(22_000), *outer).alias("b"),
        _event("cuda_runtime", calls, 17, 17, launched, pl.lit(5_125), *launch).alias("c"),
        _event("kernel", kernel, 0, _STREAM, start, pl.col("each"), *device).alias("d"),
        _flow("s", 17, 17, launched, number).alias("e"),
        _flow("f", 0, _STREAM, start, number).alias("f"),
    )
    return [series.alias("line") for series in rows.get_columns()]


def _collective_lines(collectives: pl.DataFrame, shape: Shape, rank: int) -> list[pl.Series]:
    number, start = pl.col("number"), pl.col("start")
    launched = start - _AHEAD_NS + 25_000
    listed = list(range(min(shape.ranks, 30)))
    shown = f"[{', '.join(map(str, listed))}{', ...' if shape.ranks > 30 else ''}]"
    details = (
        f'"Collective name": "allreduce", "In msg nelems": {_ELEMENTS}, "Out msg nelems": {_ELEMENTS}, '
        f'"Group size": {shape.ranks}, "dtype": "Float", "Process Group Name": "0", '
        f'"Process Group Description": "default_pg", "Process Group Ranks": "{shown}", "Rank": {rank}'
    )
    record: list[object] = ['"External id": ', number, f', "Ev Idx": 9, {details}, "Seq": ', pl.col("segment")]
    device: list[object] = [
        '"External id": ',
        number,
        f', "queued": 0, "device": 0, "context": 1, "stream": {_COMMUNICATION}, "correlation": ',
        number,
        f', "grid": [24, 1, 1], "block": [544, 1, 1], {details}, "Seq": ',
        pl.col("segment"),
    ]
    rows = collectives.select(
        _event("cpu_op", pl.lit("record_param_comms"), 17, 17, launched - 2_000, pl.lit(12_000), *record),
        _event(
            "cuda_runtime",
            pl.lit("cudaLaunchKernelExC"),
            17,
            17,
            launched,
            pl.lit(5_250),
            '"External id": ',
            number,
            ', "cbid": 430, "correlation": ',
            number,
        ).alias("b"),
        _event("kernel", pl.lit(_COLLECTIVE), 0, _COMMUNICATION, start, pl.col("end") - start, *device).alias("c"),
        _flow("s", 17, 17, launched, number).alias("d"),
        _flow("f", 0, _COMMUNICATION, start, number).alias("e"),
    )
    return [series.alias("line") for series in rows.get_columns()]


def _step_lines(ends: list[int], shape: Shape) -> list[pl.Series]:
    last = ends[shape.segments - 1 :: shape.segments]
    begins = [_BEGIN_NS, *last[:-1]]
    steps = pl.DataFrame({"step": range(len(last)), "begin": begins, "end": last})
    begin = pl.col("begin") - _AHEAD_NS - 10_000
    name = pl.format("ProfilerStep#{}", pl.col("step"))
    length = pl.col("end") - pl.col("begin") - 1_000
    line = _event("user_annotation", name, 17, 17, begin, length, '"External id": ', pl.col("step"))
    return [steps.select(line.alias("line"))["line"]]
