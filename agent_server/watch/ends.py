"""Who has the other ends of the sockets and pipes of a process, read after its stall.

A socket or pipe is known by the number of its inode, which stays as long as it is open: who has its other end now had
it then, too. Locks and states of threads are of the moment, so that those read here are left out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from whystall.tools.recording.store import Recording

_LASTING = ("sockets", "ends")
_WINDOW_S = 0.1


async def with_ends(recording: Recording, pid: int) -> Recording:
    """Return `recording` with the sockets and ends of pipes that process `pid` has now; unchanged if they were recorded
    or cannot be read."""
    import polars as pl

    from whystall.tools.collect.engines import ENGINES
    from whystall.tools.collect.tables import OBJECTS, filled
    from whystall.tools.contract.errors import ToolError
    from whystall.tools.contract.params import TargetParams
    from whystall.tools.recording.collector import Need
    from whystall.tools.recording.store import Recording
    from whystall.tools.recording.target import resolve
    from whystall.tools.recording.window import observe

    if recording.has("objects"):
        return recording
    try:
        now = await observe([Need("objects")], resolve(TargetParams(pid=pid)), _WINDOW_S, ENGINES)
    except ToolError:
        return recording  # it has ended, or its files may not be read
    if not now.has("objects"):
        return recording
    manifest = recording.manifest.model_copy(deep=True)
    manifest.collectors["objects"] = now.manifest.collectors["objects"].model_copy(deep=True)
    manifest.left_out.pop("objects", None)
    empty = filled(OBJECTS)
    at_end = pl.lit(manifest.window_ns, dtype=pl.Int64).alias("at_ns")
    tables = {f"objects.{name}": frame for name, frame in empty.items()}
    for name in _LASTING:
        frame = now.table(f"objects.{name}")
        last = frame.filter(pl.col("at_ns") >= now.manifest.window_ns / 2)
        tables[f"objects.{name}"] = last.with_columns(at_end.cast(frame.schema["at_ns"]))
    return Recording.in_memory(manifest, {**recording.tables(), **tables})
