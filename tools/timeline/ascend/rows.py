"""What text and database of the Ascend profilers share: kinds of tasks and calls, streams of collectives."""

from __future__ import annotations

import re

import polars as pl

from whystall.tools.timeline.profile_reading.build import call_kind, is_collective, is_step

NO_ID = 2**32 - 1
"""The profilers' value for a missing identifier."""

_MEMCPY = re.compile(r"MEMCPY|PCIE_DMA|^SDMA_SQE$", re.IGNORECASE)
_MEMSET = re.compile(r"^MEMSET", re.IGNORECASE)
# Engines that compute: AI_CORE, AI_VECTOR_CORE, AI_CPU, MIX_AIC, MIX_AIV, KERNEL_AICORE, DSA_SQE (random numbers) ...
_COMPUTE = re.compile(r"^(?:AI_|AICPU|AIV|AIC|MIX_|KERNEL_|DSA|DVPP|STARS_COMMON)")
_ASYNC = re.compile(r"^aclrt(?:Memcpy|Memset)\w*Async")


def task_kind(task_type: str, name: str, *, listed: bool) -> str:
    """Return the kind of a device task. Parts of a collective, events and waits are ``other``; so is the kernel of a
    collective if collectives are `listed` separately."""
    if _MEMCPY.search(name) or _MEMCPY.search(task_type):
        return "memcpy"
    if _MEMSET.search(name):
        return "memset"
    if is_collective(name):
        return "other" if listed else "collective"
    return "kernel" if _COMPUTE.search(task_type) else "other"


def cann_kind(level: str, name: str) -> str:
    """Return the kind of a call into CANN; `level` is node, acl, runtime, hccl or model, in any case."""
    if level.lower() == "node":
        return "launch" if name == "launch" else "other"
    kind = call_kind(name)
    return kind if kind == "sync" or _ASYNC.search(name) else "other"


def host_kind(category: str, name: str) -> str:
    """Return the kind of a framework record: cpu_op, python_function, enqueue, dequeue ..."""
    if category in ("cpu_op", "op"):
        return "annotation" if is_step(name) else "operator"
    return {"python_function": "python", "trace": "python", "mstx": "annotation"}.get(category, "other")


def with_streams(rows: list[pl.DataFrame]) -> list[pl.DataFrame]:
    """Give collectives, which are listed without a stream, that of the tasks they consist of (same correlation)."""
    if not rows:
        return rows
    frame = pl.concat(rows)
    known = (
        frame.filter((pl.col("device") >= 0) & (pl.col("stream") >= 0) & (pl.col("correlation") >= 0))
        .unique("correlation", keep="first", maintain_order=True)
        .select("correlation", of_task="stream")
    )
    missing = (pl.col("device") >= 0) & (pl.col("stream") < 0)
    frame = frame.join(known, on="correlation", how="left").with_columns(
        pl.when(missing).then(pl.col("of_task").fill_null(-1)).otherwise("stream").alias("stream")
    )
    return [frame.drop("of_task")]
