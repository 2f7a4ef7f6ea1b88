"""The operators of two runs of one job whose kernels were compiled anew."""

from __future__ import annotations

import polars as pl

from whystall.tools.ranks.compare_runs.work import aligned_operators
from whystall.tools.ranks.job import Job
from whystall.tools.timeline.rank_data.tables import TABLES


def job(*names: str) -> Job:
    rows = pl.DataFrame(
        {"rank": [0] * len(names), "name": names, "kind": ["kernel"] * len(names), "total_ns": [5] * len(names)}
    )
    schema = TABLES["operators"]
    missing = [pl.lit(0).cast(dtype).alias(name) for name, dtype in schema.items() if name not in rows.columns]
    made = rows.with_columns(missing).select(schema.names()).cast(dict(schema))
    return Job({name: made if name == "operators" else of.to_frame() for name, of in TABLES.items()}, (0,), (), 1)


def test_kernels_of_another_compilation_are_the_same_operators() -> None:
    before, after = job("triton_poi_fused_add_3", "gemm"), job("triton_poi_fused_add_9", "gemm", "new")
    one, other, found = aligned_operators(before, after)
    assert set(one.table("operators")["name"]) == {"triton_poi_fused_add_9", "gemm"}
    assert set(other.table("operators")["name"]) == {"triton_poi_fused_add_9", "gemm", "new"}
    assert [(row.rule, row.before) for row in found] == [("numbered", ("triton_poi_fused_add_3",))]
