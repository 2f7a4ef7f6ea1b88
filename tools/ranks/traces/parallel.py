"""Run one function on many inputs: on the workers of a dask cluster, in processes of this machine, or in this one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from whystall.tools.ranks.traces.dask_cluster import on_cluster
from whystall.tools.ranks.traces.workers import in_processes, processors

_SMALL = 4 << 20
"""Bytes below which all inputs are read in this process: another one takes longer to start."""


class Sized(Protocol):
    """An input. `size`: bytes to read."""

    @property
    def size(self) -> int: ...


T = TypeVar("T", bound=Sized)
R = TypeVar("R")


def in_parallel(
    function: Callable[[T], R],
    inputs: Sequence[T],
    failed: Callable[[T, str], R],
    *,
    scheduler: str | None = None,
    jobs: int | None = None,
    here: bool | None = None,
) -> list[R]:
    """Return `function` of each of `inputs`, in their order; `function` must be importable by name.

    `scheduler`: of a dask cluster (``tcp://host:8786``) whose workers run it; else this process (`here`; None: if all
    inputs are small), or at most `jobs` others of this machine (None: one per CPU). `failed` makes the result of an
    input whose process ended during it, from the input and the reason. Raises what `on_cluster` raises.
    """
    # the largest first, so that the last ones are short
    order = sorted(range(len(inputs)), key=lambda number: -inputs[number].size)
    ordered = [inputs[number] for number in order]
    if scheduler is not None:
        results = on_cluster(function, ordered, scheduler, failed)
    elif sum(one.size for one in inputs) < _SMALL if here is None else here:
        results = [function(one) for one in ordered]
    else:
        results = in_processes(function, ordered, min(jobs or processors(), len(ordered)), failed)
    found = dict(zip(order, results, strict=True))
    return [found[number] for number in range(len(inputs))]
