"""Find the NVTX ranges that are the steps of a training loop."""

from __future__ import annotations

import re

import polars as pl

_LIMIT = 10**9
_WORDS = r"(?:train(?:ing)?[ _-]?)?(?:profiler ?step|global[ _-]?step|step|iteration|iter|batch)"
_NUMBERED = re.compile(rf"({_WORDS})(?:[ _#:=.-]+|(?=[0-9]))([0-9]{{1,9}})(?![0-9.]).{{0,40}}", re.IGNORECASE)
_PLAIN = re.compile(_WORDS, re.IGNORECASE)


def step_numbers(ranges: pl.DataFrame) -> dict[int, int]:
    """Return the row of each range that is a step, and its number. `ranges`: label, pid, tid, start, end.

    ``ProfilerStep#3`` of PyTorch's profiler comes first; else the words of `_WORDS` with a number, else without one,
    counted in order. Only one kind of range on one thread can be steps: the most frequent one, of equally frequent ones
    the longest.
    """
    words = [_word(label) for label in ranges["label"].unique().to_list()]
    known = {label: (family, number) for label, family, number in words if family}
    if not known:
        return {}
    frame = ranges.with_row_index("row").filter(pl.col("label").is_in(list(known)))
    frame = frame.with_columns(
        family=pl.col("label").replace_strict(
            {label: family for label, (family, _) in known.items()}, return_dtype=pl.String
        ),
        number=pl.col("label").replace_strict(
            {label: number for label, (_, number) in known.items()}, return_dtype=pl.Int64
        ),
    )
    # PyTorch's own before numbered before plain ones
    order = pl.when(pl.col("family") == "profilerstep").then(0).when(pl.col("number") >= 0).then(1).otherwise(2)
    best = (
        frame.with_columns(order=order)
        .group_by("order", "family", "pid", "tid")
        .agg(pl.len().alias("count"), (pl.col("end") - pl.col("start")).sum().alias("length"))
        .sort("order", "count", "length", "family", "tid", descending=[False, True, True, False, False])
        .row(0, named=True)
    )
    same = (pl.col(name).eq_missing(pl.lit(best[name])) for name in ("family", "pid", "tid"))
    chosen = frame.filter(*same, (pl.col("number") >= 0) == (best["order"] < 2)).sort("start", "row")
    if best["order"] == 2:
        chosen = chosen.with_columns(number=pl.int_range(pl.len(), dtype=pl.Int64))
    return dict(chosen.select("row", "number").rows())


def _word(label: str) -> tuple[str, str, int]:
    """Return a range's name, its family and its number (-1 none); an empty family: no step."""
    if numbered := _NUMBERED.fullmatch(label):
        return label, re.sub(r"[ _-]", "", numbered.group(1)).lower(), min(int(numbered.group(2)), _LIMIT)
    return (label, re.sub(r"[ _-]", "", label).lower(), -1) if _PLAIN.fullmatch(label) else (label, "", -1)
